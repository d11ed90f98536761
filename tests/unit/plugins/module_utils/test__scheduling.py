# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import (
    LIMITS_END,
    CaseError,
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
    return Seen(name, pod=pod, events=told, **{"limits": [GOOD], "lock_released": True, **more})


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
        ({"outcome": "refused", "reason": "CardInsufficientMemory"}, [refused()], False, "ended at filter"),
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
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "Train"}, "a name is up to 42 lower case"),
        ({"name": "x" * 43}, "a name is up to 42"),
        ({"memory_mib": None, "cores": None}, "asks for no card"),
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
