# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import (
    LIMITS_END,
    CaseError,
    Container,
    Limit,
    Seen,
    Setting,
    case_from_options,
    check_order,
    judge,
    limits_from_log,
    pod_of,
    settled,
)

SETTING = Setting("1f3a", "gpu-verify-1f3a", "image:1")
GOOD = {"CUDA_DEVICE_MEMORY_LIMIT_0": "20000m", "CUDA_DEVICE_SM_LIMIT": "30"}


def case(**options: Any) -> Any:
    base = {"name": "train", "replicas": 1, "memory_mib": 20000, "cores": 30, "expect": {"outcome": "placed"}}
    return case_from_options({**base, **options})


def seen(
    name: str = "train-0",
    card: str = "GPU-1",
    scheduler: str = "hami-scheduler",
    node: str = "n1",
    phase: str = "Running",
    bind: str = "success",
    filtered: bool = True,
    condition: str = "",
    events: tuple[tuple[str, str], ...] = (),
    **more: Any,
) -> Seen:
    annotations = {"hami.io/bind-phase": bind} if bind else {}
    if filtered:
        annotations |= {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": f"{card},NVIDIA,20000,30:;"}
    conditions = [{"type": "PodScheduled", "status": "False", "message": condition}] if condition else []
    pod = {
        "metadata": {"annotations": annotations},
        "spec": {"schedulerName": scheduler, **({"nodeName": node} if node else {})},
        "status": {"phase": phase, "conditions": conditions},
    }
    told = [{"reason": reason, "message": message, "type": "Warning"} for reason, message in events]
    asked = (Container(memory_mib=20000, cores=30),)
    return Seen(name, pod=pod, events=told, **{"containers": asked, "limits": [GOOD], "lock_released": True, **more})


def refused(reason: str = "CardInsufficientCore", condition: str = "0/1 nodes are available") -> Seen:
    events = (("FilteringFailed", f"1 nodes {reason}(n1)"),)
    return seen(node="", phase="Pending", bind="", filtered=False, condition=condition, events=events)


@pytest.mark.parametrize(
    ("pod", "broke_at"),
    [
        (seen(), ""),
        (seen(phase="Succeeded"), ""),
        (Seen("x", denied="admission webhook denied the request"), "webhook"),
        (seen(scheduler="default-scheduler", node="", phase="Pending", bind="", filtered=False), "webhook"),
        (seen(node="", phase="Pending", bind="", filtered=False), "scheduler"),
        (refused(), "filter"),
        (refused(condition="1 node unregistered"), "registration"),
        (
            seen(node="", phase="Pending", bind="", events=(("BindingFailed", "node n1 has been locked within 5m0s"),)),
            "lock",
        ),
        (seen(node="", phase="Pending", bind="allocating"), "bind"),
        (seen(phase="Pending", bind="allocating"), "allocate"),
        (seen(phase="Failed", bind="failed"), "allocate"),
        (seen(phase="Pending"), "start"),
        (seen(limits=[{**GOOD, "CUDA_DEVICE_SM_LIMIT": "90"}]), "limits"),
        (seen(limits=[]), ""),
    ],
)
def test_where_a_chain_breaks(pod: Seen, broke_at: str) -> None:
    assert pod.broke_at() == broke_at
    assert pod.result()["broke_at"] == broke_at


@pytest.mark.parametrize(
    ("expect", "pods", "passed", "observed"),
    [
        ({"outcome": "placed"}, [seen()], True, "1 on GPU-1 of n1, limits set, lock released"),
        ({"outcome": "placed", "spread": "one_card"}, [seen(), seen(card="GPU-2")], False, "GPU-1 of n1, GPU-2 of n1"),
        ({"outcome": "placed", "spread": "distinct_cards"}, [seen(), seen(card="GPU-2")], True, "2 on GPU-1"),
        ({"outcome": "placed", "spread": "distinct_cards"}, [seen(), seen()], False, "2 on GPU-1"),
        ({"outcome": "placed", "uuid": "GPU-2"}, [seen()], False, "train-0 was placed on GPU-1"),
        ({"outcome": "placed", "node": "n2"}, [seen()], False, "train-0 was placed on GPU-1 of n1"),
        ({"outcome": "placed"}, [seen(), refused()], False, "train-0 ended at filter: 1 nodes CardInsufficientCore"),
        ({"outcome": "placed"}, [seen(lock_released=False)], False, "node n1 is still locked for it"),
        ({"outcome": "placed"}, [seen(limits=[{}])], False, "CUDA_DEVICE_MEMORY_LIMIT_0=20000m"),
        ({"outcome": "refused"}, [refused()], True, "refused: CardInsufficientCore"),
        ({"outcome": "refused", "reason": "CardInsufficientCore"}, [refused()], True, "refused"),
        (
            {"outcome": "refused", "reason": "CardInsufficientMemory"},
            [refused()],
            False,
            "was refused for CardInsufficientCore",
        ),
        ({"outcome": "refused", "reason": "CardInsufficientCore", "node": "n1"}, [refused()], True, "refused: CardIns"),
        ({"outcome": "refused", "reason": "CardInsufficientCore", "node": "n2"}, [refused()], False, "was refused for"),
        ({"outcome": "refused"}, [seen(lost="it was deleted by somebody else")], False, "deleted by somebody else"),
        ({"outcome": "placed"}, [seen(lost="node n1 is gone")], False, "ended at start: node n1 is gone"),
        ({"outcome": "over_quota"}, [Seen("x", denied="exceeding resource quota")], True, "denied: exceeding"),
        ({"outcome": "over_quota"}, [refused("ResourceQuotaNotFit")], True, "refused: ResourceQuotaNotFit"),
        ({"outcome": "over_quota"}, [refused()], False, "was refused for CardInsufficientCore"),
        ({"outcome": "over_quota"}, [seen()], False, "train-0 was placed on GPU-1"),
        (
            {"outcome": "placed"},
            [seen(scheduler="default-scheduler")],
            False,
            "ended at webhook: it goes to default-scheduler, since HAMi's webhook was not called",
        ),
        ({"outcome": "placed"}, [seen(scheduler="volcano")], False, "ended at scheduler: it goes to volcano"),
        ({"outcome": "refused"}, [seen()], False, "train-0 was placed on GPU-1"),
        ({"outcome": "refused"}, [Seen("train-0", denied="no")], False, "ended at webhook: no"),
        ({"outcome": "denied", "denial": "privileged"}, [Seen("x", denied="c is privileged")], True, "denied: c is"),
        ({"outcome": "denied", "denial": "quota"}, [Seen("x", denied="c is privileged")], False, "denied: c is"),
        ({"outcome": "denied"}, [seen()], False, "train-0 was admitted"),
    ],
)
def test_judgement(expect: dict[str, str], pods: list[Seen], passed: bool, observed: str) -> None:
    judgement = judge(case(replicas=len(pods), expect=expect), pods)
    assert judgement.passed is passed
    assert observed in judgement.observed
    assert passed or judgement.broke_at


@pytest.mark.parametrize(
    ("expect", "pod", "done"),
    [
        ({"outcome": "placed"}, seen(), True),
        ({"outcome": "placed"}, seen(phase="Pending"), False),
        ({"outcome": "placed"}, refused(), False),
        ({"outcome": "placed"}, seen(bind="failed"), True),
        ({"outcome": "refused"}, refused(), True),
        ({"outcome": "refused", "reason": "CardInsufficientMemory"}, refused(), False),
        ({"outcome": "refused"}, seen(), True),
        ({"outcome": "denied"}, seen(phase="Pending"), True),
    ],
)
def test_when_nothing_more_is_to_be_awaited(expect: dict[str, str], pod: Seen, done: bool) -> None:
    assert settled(case(expect=expect), pod) is done


@pytest.mark.parametrize(
    ("options", "expect", "reasons", "passed"),
    [
        ({}, {}, ["CardInsufficientCore", "CardInsufficientMemory"], False),
        ({}, {"other_reasons": True}, ["CardInsufficientCore", "CardInsufficientMemory"], True),
        ({}, {}, ["CardInsufficientCore", "AllocatedCardsInsufficientRequest", "NodeUnfitPod"], True),
        ({}, {}, ["CardInsufficientCore", "CardUuidMismatch"], False),
        ({"avoid_uuids": ["GPU-2"]}, {}, ["CardInsufficientCore", "CardUuidMismatch"], True),
        ({}, {"uuid": "GPU-1"}, ["CardInsufficientCore", "CardUuidMismatch"], True),
        ({}, {"uuid": "GPU-1"}, ["CardInsufficientCore", "CardNotHealth"], True),
        ({}, {}, ["CardInsufficientCore", "CardNotHealth"], False),
        ({"use_types": ["A100"]}, {}, ["CardInsufficientCore", "CardTypeMismatch"], True),
        ({}, {}, ["CardInsufficientMemory"], False),
    ],
)
def test_a_reason_is_the_only_one_but_for_those_that_the_case_brings_itself(
    options: dict[str, Any], expect: dict[str, Any], reasons: list[str], passed: bool
) -> None:
    events = tuple(("FilteringFailed", f"1 nodes {reason}(n1)") for reason in reasons)
    pod = seen(node="", phase="Pending", bind="", filtered=False, condition="0/1 nodes are available", events=events)
    wanted = {"outcome": "refused", "reason": "CardInsufficientCore", **expect}
    assert judge(case(**options, expect=wanted), [pod]).passed is passed


def test_reasons_are_those_of_the_last_attempt() -> None:
    pod = refused("CardInsufficientMemory")
    pod.events[0]["lastTimestamp"] = "2026-06-14T15:05:03Z"
    later = {"reason": "FilteringFailed", "type": "Warning", "lastTimestamp": "2026-06-14T15:05:05Z"}
    pod.events += [{**later, "message": "2 nodes CardInsufficientCore(n1,n2)"}]
    assert pod.reasons == ["CardInsufficientCore"]
    assert pod.reasons_by_node == {"n1": ["CardInsufficientCore"], "n2": ["CardInsufficientCore"]}


def test_limits_are_those_of_the_container_that_has_them() -> None:
    containers = (Container(cards=1, init=True), Container(), Container(memory_mib=20000, cores=30, priority=1))
    allocation = "GPU-1,NVIDIA,500,10:;GPU-1,NVIDIA,20000,30:;"
    told = [
        {"CUDA_DEVICE_MEMORY_LIMIT_0": "500m", "CUDA_DEVICE_SM_LIMIT": "10"},
        {},
        {**GOOD, "CUDA_TASK_PRIORITY": "1"},
    ]
    pod = seen(containers=containers, limits=told)
    assert pod.pod
    for text in (allocation, allocation.replace(";", ";;", 1)):
        pod.pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = text
        assert pod.missing_limits() == []
    told[2].pop("CUDA_TASK_PRIORITY")
    assert pod.missing_limits() == ["CUDA_TASK_PRIORITY=1"]


def test_an_image_that_cannot_be_had_is_the_last_word() -> None:
    pod = seen(phase="Pending")
    assert pod.pod
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pod.pod["status"]["containerStatuses"] = [{"name": "c0", "state": waiting}]
    assert pod.cannot_start == pod.last_word() == "ImagePullBackOff: no such image"


def test_what_is_expected_in_words() -> None:
    def sentence(**expect: str) -> str:
        return str(case(expect=expect).expect.sentence(1))

    refusal = {"outcome": "refused", "reason": "CardInsufficientCore"}
    assert sentence(**refusal, node="n1") == "1 pod refused with CardInsufficientCore on node n1"
    assert sentence(**refusal, uuid="GPU-1-2") == "1 pod refused with CardInsufficientCore on card GPU-1"
    assert sentence(outcome="over_quota") == "1 pod refused for the namespace's quota"
    assert sentence(outcome="placed", node="n1", uuid="GPU-1") == "1 pod placed on card GPU-1 on node n1"


def test_a_quota_is_written_as_hami_reads_it() -> None:
    assert Limit(1000, 50).hard() == {"limits.nvidia.com/gpumem": "1000", "limits.nvidia.com/gpucores": "50"}
    assert Limit().hard() == {}


def test_reasons_come_from_events_and_condition_each_once() -> None:
    pod = refused(condition="0/1 nodes are available: 1/2 CardInsufficientCore, 1/2 CardUuidMismatch")
    assert pod.reasons == ["CardInsufficientCore", "CardUuidMismatch"]


def test_a_pod_as_it_is_sent() -> None:
    pod = pod_of(case(use_uuids=["GPU-1", "GPU-2"], node_policy="binpack", labels={"team": "a"}), "train-0", SETTING)
    assert pod["metadata"]["annotations"] == {
        "hami.io/node-scheduler-policy": "binpack",
        "nvidia.com/use-gpuuuid": "GPU-1,GPU-2",
    }
    assert pod["metadata"]["labels"]["team"] == "a"
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "30"}
    assert "schedulerName" not in pod["spec"]


def test_a_pod_of_several_containers() -> None:
    containers = [{"cards": 1, "init": True}, {"cards": 2, "memory_percent": 50}, {"cores": 10}]
    spec = pod_of(case(memory_mib=None, cores=None, containers=containers), "train-0", SETTING)["spec"]
    assert [each["name"] for each in spec["initContainers"] + spec["containers"]] == ["c0", "c1", "c2"]
    assert "sleep" in spec["containers"][0]["command"][-1] and "sleep" not in spec["initContainers"][0]["command"][-1]
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "Train"}, "a name is up to 42 lower case"),
        ({"name": "x" * 43}, "a name is up to 42"),
        ({"memory_mib": None, "cores": None}, "asks for no card"),
        ({"memory_mib": None, "cores": None, "priority": 1}, "asks for no card"),
        ({"replicas": 0}, "replicas is 0; give 1 or more"),
        ({"expect": {"outcome": "placed", "reason": "X"}}, "expect.reason says nothing of a pod that is placed"),
        ({"expect": {"outcome": "denied", "spread": "one_card"}}, "expect.spread says nothing of a pod that is denied"),
        ({"expect": {"outcome": "refused", "node": "n1"}}, "give the reason for which"),
        (
            {"use_uuids": ["GPU-2"], "expect": {"outcome": "refused", "reason": "X", "uuid": "GPU-1"}},
            "must use that card alone",
        ),
        ({"containers": [{"cards": 1}]}, "either containers or"),
        ({"memory_mib": None, "cores": None, "containers": [{"cards": 1, "init": True}]}, "no init container"),
    ],
)
def test_a_case_that_cannot_be_understood(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CaseError, match=message):
        case(**options)


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ([{}, {}], "stands twice"),
        ([{"after": ["later"]}, {"name": "later"}], "waits for 'later', which does not stand before it"),
        ([{"expect": {"outcome": "over_quota"}}], "give quota.memory_mib or quota.cores"),
        ([{"expect": {"outcome": "refused"}}, {"name": "b", "while_running": ["train"]}], "expected not to run"),
    ],
)
def test_an_order_that_cannot_be_kept(cases: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(CaseError, match=message):
        check_order([case(**options) for options in cases])


def test_limits_are_read_from_a_log_once_it_has_told_them_all() -> None:
    told = "CUDA_DEVICE_SM_LIMIT=30\nNVIDIA_VISIBLE_DEVICES=GPU-1\n"
    assert limits_from_log(told) is None
    limits = limits_from_log(f"{told}{LIMITS_END}\nlater=noise\n")
    assert limits == {"CUDA_DEVICE_SM_LIMIT": "30", "NVIDIA_VISIBLE_DEVICES": "GPU-1"}
