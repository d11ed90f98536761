# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What outcomes of CUDA jobs prove: tables of outcomes, and properties of the figures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils import _acceptance as acceptance
from ansible_collections.tenantry.gpu.plugins.module_utils._acceptance import (
    COMPLETED,
    CRASHED,
    CUDA_FAILED,
    KILLED,
    NEVER_RAN,
    NO_LIBRARY,
    OOM_KILLED,
    REFUSED,
    AcceptanceError,
    Judge,
    Outcome,
    Plan,
    TrialCard,
    card_of,
    check_plan,
    in_vain,
    outcome_of,
    overlap_s,
    percentile,
    pod_of_trial,
    quota_evidence,
    same_work,
    stages_of,
    untried,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._evidence import Evidence, evidence_from_dict
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import Seen, Setting

Object = dict[str, Any]

UUID = "GPU-6d0c1c9b-6a53-5c6e-9d7f-0d7b1f0f6b0e"
CARD = TrialCard("gpu-0", UUID, 81920)
IMAGE = "registry.example.com/python@sha256:" + 64 * "a"
PLAN = Plan(CARD, IMAGE)
REFUSAL = {"call": "cuMemAlloc_v2", "code": 2, "name": "CUDA_ERROR_OUT_OF_MEMORY"}
NO_DEVICE = {"call": "cuInit", "code": 100, "name": "CUDA_ERROR_NO_DEVICE"}
MISSING = {"no_library": "libcuda.so.1: cannot open shared object file: No such file or directory"}
SEEN_NONE = {"devices": [], **MISSING}
HELD: Object = {"held_mib": 1100, "uuid": UUID, "libvgpu": True, "other": {"error": REFUSAL}}


def job(name: str, repeat_ms: float = 100.0, start: float = 0.0, last: float = 1.0, **more: Any) -> Outcome:
    """An outcome of 100 repeats of the same work; ``last`` is how much longer than the others the last ones take."""
    times = [repeat_ms] * 98 + [repeat_ms * last] * 2
    result = {
        "uuid": UUID,
        "start": start,
        "end": start + sum(times) / 1000,
        "repeat_ms": times,
        "repeat_gfma": 500.0,
        "iterations": 60,
        "libvgpu": name != "native",
        **more,
    }
    return Outcome(name, 0, "Completed", result, UUID)


def refused(name: str, granted_mib: int = 2032, **more: Any) -> Outcome:
    result = {"uuid": UUID, "granted_mib": granted_mib, "single": REFUSAL, "error": REFUSAL, "libvgpu": True, **more}
    return Outcome(name, 2, "Error", result, UUID)


GOOD = {
    each.name: each
    for each in (
        job("native", 99.0),
        job("whole", 100.0),
        job("share", 100 / 0.3),
        job("half-0", 200.0),
        job("half-1", 200.0, start=2.0),
        refused("memory"),
        Outcome("children", 0, "Completed", HELD, UUID),
        Outcome("exec", 0, "Completed", HELD, UUID),
        Outcome("bare", 0, "Completed", SEEN_NONE),
        Outcome("bare-all", 0, "Completed", {"devices": [], "error": NO_DEVICE}),
        Outcome("exhaust", 137, "OOMKilled"),
    )
}


def judged(plan: Plan = PLAN, **outcomes: Outcome) -> dict[str, Evidence]:
    named = {name.replace("_", "-"): outcome for name, outcome in outcomes.items()}
    return {record.id: record for record in Judge(plan, "tenant-a", {**GOOD, **named}).evidence()}


def test_a_good_card_passes_every_check() -> None:
    records = judged()
    skipped = records.pop("cuda-images")
    assert (skipped.verdict, skipped.reason) == ("skipped", "no other images are given")
    assert {record.id: record.reason for record in records.values() if record.verdict != "passed"} == {}
    assert list(judged()) == [check for check in acceptance.CHECKS if check != "quota-refused"]
    assert records["cuda-concurrent"].observed == f"18.0 s of 20.0 s together on {UUID}"
    assert records["cuda-memory"].observed == (
        "2,032 of 2,048 MiB granted, then cuMemAlloc_v2 answered CUDA_ERROR_OUT_OF_MEMORY (2)"
    )
    assert records["cuda-oom-apart"].observed == "OOMKilled with exit status 137, no CUDA error"
    assert records["cuda-cores"].observed == "30.0 %"
    assert records["cuda-halves"].observed == "50.0 % and 50.0 %, 100.0 % together"
    assert records["cuda-overhead"].observed == "p50 +1.0 %, p95 +1.0 %, p99 +1.0 %"
    assert "whole p50 100, p95 100, p99 100 ms" in records["cuda-repeats"].observed
    assert records["cuda-repeats"].proof["percentiles_ms"]["half-0"] == {"p50": 200.0, "p95": 200.0, "p99": 200.0}


def test_every_record_is_one_that_a_report_takes() -> None:
    for record in judged().values():
        assert evidence_from_dict(json.loads(json.dumps(record.to_dict()))) == record


OTHER = "GPU-00000000-0000-0000-0000-000000000000"
BAD = [
    ("cuda-concurrent", {"half_1": job("half-1", 200.0, start=15.0)}, "5.0 s of 20.0 s together"),
    ("cuda-concurrent", {"half_1": job("half-1", 200.0, uuid=OTHER)}, f"{OTHER} and {UUID}"),
    ("cuda-concurrent", {"half_1": replace(job("half-1", 200.0), uuid=OTHER)}, OTHER),
    ("cuda-concurrent", {"half_0": Outcome("half-0", problem="0/3 nodes are available")}, "half-0: it did not run"),
    ("cuda-repeats", {"whole": job("whole", last=1.6)}, "p99 160"),
    ("cuda-overhead", {"whole": job("whole", 105.0)}, "p50 +6.1 %"),
    ("cuda-overhead", {"native": job("native", libvgpu=True)}, "native: HAMi's library is loaded in it all the same"),
    ("cuda-cores", {"share": job("share", 120.0)}, "83.3 %"),
    ("cuda-cores", {"share": job("share", 120.0, libvgpu=False)}, "HAMi's library is not loaded"),
    ("cuda-cores", {"share": job("share", 1000.0)}, "10.0 %"),
    ("cuda-cores", {"whole": Outcome("whole", 126, "Error", MISSING)}, "no driver, or its container got no card"),
    ("cuda-halves", {"half_0": job("half-0", 150.0)}, "66.7 % and 50.0 %, 116.7 % together"),
    ("cuda-memory", {"memory": Outcome("memory", 137, "OOMKilled")}, "memory: the kernel killed it for host memory"),
    ("cuda-memory", {"memory": Outcome("memory", 137, "Error")}, "killed by signal 9, and not for host memory"),
    ("cuda-memory", {"memory": replace(refused("memory", 2560, error=None), exit_code=0)}, "nothing was refused"),
    (
        "cuda-memory",
        {"memory": replace(refused("memory", 2560, error=None, libvgpu=False), exit_code=0)},
        "since HAMi's library is not loaded in it (an image on musl?)",
    ),
    ("cuda-memory", {"memory": refused("memory", 2160)}, "more than 5 % above the share were granted"),
    ("cuda-memory", {"memory": refused("memory", single=None)}, "one allocation above the share was not refused"),
    ("cuda-memory", {"memory": refused("memory", uuid=OTHER)}, f"HAMi gave it {UUID} and it found {OTHER}"),
    ("cuda-memory", {"memory": Outcome("memory", 1, "Error")}, "memory: it crashed: exit status 1"),
    ("cuda-memory", {"memory": Outcome("memory", 100, "Error", {"error": NO_DEVICE})}, "CUDA_ERROR_NO_DEVICE (100)"),
    ("cuda-oom-apart", {"exhaust": Outcome("exhaust", 0, "Completed", {"host_mib": 256})}, "Completed with exit"),
    ("cuda-oom-apart", {"exhaust": Outcome("exhaust", 137, "Error")}, "Error with exit status 137"),
    ("cuda-oom-apart", {"exhaust": Outcome("exhaust", problem="ErrImagePull")}, "ErrImagePull"),
    ("cuda-children", {"children": replace(GOOD["children"], result={**HELD, "other": {"error": None}})}, "as much"),
    ("cuda-exec", {"exec": replace(GOOD["exec"], result={**HELD, "other": None})}, "gave no answer within 60 s"),
    ("cuda-exec", {"exec": replace(GOOD["exec"], result={**HELD, "other": MISSING})}, "libcuda.so.1"),
    ("cuda-exec", {"exec": Outcome("exec", 137, "Error")}, "exec: it was killed"),
    ("no-request", {"bare": Outcome("bare", 0, "", {"devices": ["/dev/nvidia0"]})}, "bare sees /dev/nvidia0; set"),
    ("no-request", {"bare_all": Outcome("bare-all", 0, "", {"devices": [], "uuid": UUID})}, f"bare-all sees {UUID}"),
    ("no-request", {"bare": Outcome("bare", problem="denied")}, "denied"),
]


@pytest.mark.parametrize(("check", "outcomes", "said"), BAD)
def test_a_check_that_fails_says_what_was_seen(check: str, outcomes: dict[str, Outcome], said: str) -> None:
    record = judged(**outcomes)[check]
    assert record.verdict == "failed"
    assert said in record.reason


def test_a_cluster_that_denies_uncontrolled_jobs_has_no_overhead_to_compare() -> None:
    denied = Outcome("native", problem="CUDA_DISABLE_CONTROL is not allowed", denied=True)
    record = judged(native=denied)["cuda-overhead"]
    assert record.verdict == "skipped"
    assert record.reason == "nobody may do without the control: CUDA_DISABLE_CONTROL is not allowed"
    assert judged(replace(PLAN, native=False))["cuda-overhead"].verdict == "skipped"


def test_other_images_are_judged_one_by_one() -> None:
    plan = replace(PLAN, other_images=(IMAGE, IMAGE))
    first = refused("image-0", libc="glibc 2.31")
    second = replace(refused("image-1", 2560, libc="not glibc", error=None, libvgpu=False), exit_code=0)
    assert judged(plan, image_0=first, image_1=first)["cuda-images"].verdict == "passed"
    record = judged(plan, image_0=first, image_1=second)["cuda-images"]
    assert record.verdict == "failed" and record.reason.startswith("image-1: nothing was refused, since HAMi's")
    assert record.observed.startswith("glibc 2.31: 2,032 of 2,048 MiB granted, then")


ENDINGS = [
    ("refused", Outcome("x", 2, "Error", {"error": REFUSAL}), REFUSED),
    ("oom killed after a refusal", Outcome("x", 137, "OOMKilled", {"error": REFUSAL}), OOM_KILLED),
    ("killed by HAMi, not for memory", Outcome("x", 137, "Error", {}), KILLED),
    ("wrong arguments, which also are status 2", Outcome("x", 2, "Error", {}), CRASHED),
    ("another CUDA error", Outcome("x", 100, "Error", {"error": NO_DEVICE}), CUDA_FAILED),
    ("a refusal and another status", Outcome("x", 1, "Error", {"error": REFUSAL}), CUDA_FAILED),
    ("no library", Outcome("x", 126, "Error", MISSING), NO_LIBRARY),
    ("well", Outcome("x", 0, "Completed", {"uuid": UUID}), COMPLETED),
    ("well, and nothing told", Outcome("x", 0, "Completed", {}), CRASHED),
    ("never", Outcome("x", problem="Unschedulable"), NEVER_RAN),
]


@pytest.mark.parametrize(("outcome", "ending"), [case[1:] for case in ENDINGS], ids=[case[0] for case in ENDINGS])
def test_endings_are_told_apart(outcome: Outcome, ending: str) -> None:
    assert outcome.ending == ending


@given(st.integers(0, 255), st.sampled_from(["Error", "Completed", "OOMKilled"]), st.sampled_from([None, 2, 100, 700]))
def test_an_oom_kill_is_never_taken_for_a_refusal(status: int, reason: str, code: int | None) -> None:
    error = {"call": "c", "code": code, "name": "n"} if code else None
    ending = Outcome("x", status, reason, {"error": error}).ending
    assert (ending == REFUSED) == (reason != "OOMKilled" and status == 2 and code == 2)
    assert (ending == OOM_KILLED) == (reason == "OOMKilled")


TIMES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=300)


@given(TIMES, st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    needed = len(values) * percent / 100
    assert sum(value <= found for value in values) >= needed - 1e-9
    assert sum(value < found for value in values) < needed + 1e-9


@given(TIMES)
def test_percentiles_are_in_order(values: list[float]) -> None:
    assert min(values) <= percentile(values, 50) <= percentile(values, 95) <= percentile(values, 99) <= max(values)


SPANS = st.tuples(st.floats(0, 1e5), st.floats(0, 1e3)).map(lambda span: {"start": span[0], "end": sum(span)})


@given(st.tuples(SPANS, SPANS))
def test_an_overlap_is_mutual_and_no_longer_than_either(pair: tuple[dict[str, float], dict[str, float]]) -> None:
    together = overlap_s(*pair)
    assert together == overlap_s(*reversed(pair))
    assert 0 <= together <= min(each["end"] - each["start"] for each in pair) + 1e-9
    assert all(overlap_s(each, each) == each["end"] - each["start"] for each in pair)


@given(st.floats(0.1, 1000), st.floats(0.01, 1))
def test_a_share_of_throughput_is_that_of_the_time(repeat_ms: float, share: float) -> None:
    whole, part = job("whole", repeat_ms), job("share", repeat_ms / share)
    assert part.gfma_s / whole.gfma_s == pytest.approx(share)


def all_trials(plan: Plan) -> list[acceptance.Trial]:
    return [trial for stage in stages_of(plan) for trial in stage]


def test_stages_never_ask_for_more_than_the_card() -> None:
    for memory_mib in (15360, 24576, 81920, 183359):
        plan = Plan(TrialCard("n", UUID, memory_mib), IMAGE, (IMAGE,) * 4)
        for stage in stages_of(plan):
            assert sum(trial.memory_mib or 0 for trial in stage) <= memory_mib
            assert sum(trial.cores or 0 for trial in stage) <= 100
            assert sum(trial.memory_mib is not None for trial in stage) <= 3  # slots


SETTING = Setting("1f3a", "gpu-verify-1f3a", IMAGE)


def test_every_pod_keeps_to_the_restricted_standard() -> None:
    for trial in all_trials(replace(PLAN, other_images=(IMAGE,))):
        pod = pod_of_trial(trial, CARD, SETTING)
        spec = pod["spec"]
        (container,) = spec["containers"]
        assert "initContainers" not in spec
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 65534
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert all("configMap" in volume or "emptyDir" in volume for volume in spec["volumes"])
        assert "@sha256:" in container["image"]


def test_pods_with_a_share_are_held_to_the_card_and_those_without_to_its_node() -> None:
    for trial in all_trials(PLAN):
        pod = pod_of_trial(trial, CARD, SETTING)
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        bare = trial.name in ("bare", "bare-all", "exhaust")
        assert ("nvidia.com/gpumem" in limits) != bare
        assert pod["metadata"]["annotations"] == ({} if bare else {"nvidia.com/use-gpuuuid": UUID})
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["gpu-0"]


def test_pods_differ_in_what_they_are_to_show() -> None:
    pods = {
        trial.name: pod_of_trial(trial, CARD, SETTING) for trial in all_trials(replace(PLAN, runtime_class="nvidia"))
    }
    containers = {name: pod["spec"]["containers"][0] for name, pod in pods.items()}

    def env(name: str) -> dict[str, str]:
        return {each["name"]: each["value"] for each in containers[name]["env"]}

    assert env("native")["CUDA_DISABLE_CONTROL"] == "true"
    assert env("share")["GPU_CORE_UTILIZATION_POLICY"] == "force"
    assert env("bare-all")["NVIDIA_VISIBLE_DEVICES"] == "all" and "NVIDIA_VISIBLE_DEVICES" not in env("bare")
    assert pods["bare-all"]["spec"]["runtimeClassName"] == "nvidia" and "runtimeClassName" not in pods["bare"]["spec"]
    assert containers["exhaust"]["resources"]["limits"] == {"memory": "64Mi"}
    hook = containers["exec"]["lifecycle"]["postStart"]["exec"]["command"]
    assert hook == ["python3", "/probe/probe.py", "ask", "--answer"]
    assert "lifecycle" not in containers["memory"]


def test_later_jobs_do_the_work_of_the_first() -> None:
    trial = stages_of(PLAN)[1][0]
    assert same_work(trial, {}) == trial
    assert same_work(trial, {"native": job("native")}).arguments[-2:] == ("--iterations", "60")
    bare = stages_of(PLAN)[-1][-1]
    assert same_work(bare, {"native": job("native")}) == bare


def test_without_a_whole_card_to_compare_with_no_share_is_measured() -> None:
    stages = {stage[0].name: stage for stage in stages_of(PLAN)}
    broken = {"whole": Outcome("whole", 126, "Error", MISSING)}
    assert in_vain(stages["share"], broken).startswith("not tried, since there is nothing to compare with: whole: the")
    assert not in_vain(stages["memory"], broken)
    assert not in_vain(stages["share"], {"whole": job("whole")})


WRONG_PLANS = [
    (
        {"image": "python:3.12"},
        "image 'python:3.12' is not pinned; give it with its digest, as name@sha256:<64 hexadecimal digits>.",
    ),
    ({"image": "python:3.12@sha256:abc"}, "image 'python:3.12@sha256:abc' is not pinned"),
    ({"other_images": ("debian:12",)}, "image 'debian:12' is not pinned"),
    ({"share_cores": 100}, "share_cores is 100; give a part of a card, from 1 to 99."),
    ({"repeats": 10}, "repeats is 10; give 20 to 300."),
    ({"repeats": 400}, "repeats is 400; give 20 to 300."),
]


@pytest.mark.parametrize(("change", "said"), WRONG_PLANS)
def test_a_plan_that_proves_nothing_is_refused(change: Object, said: str) -> None:
    with pytest.raises(AcceptanceError) as raised:
        check_plan(replace(PLAN, **change))
    assert said in str(raised.value)


def test_a_plan_with_a_pinned_image_is_taken() -> None:
    check_plan(replace(PLAN, other_images=(f"docker.io/library/python:3.12-slim@sha256:{64 * '0'}",)))


def seen(status: Object, **more: Any) -> Seen:
    annotations = {"hami.io/vgpu-devices-allocated": f"{UUID},NVIDIA,2048,0:;", "hami.io/bind-phase": "success"}
    pod = {"metadata": {"annotations": annotations}, "spec": {"schedulerName": "hami-scheduler"}, "status": status}
    return Seen("memory", pod=pod, **more)


def test_an_outcome_is_read_from_a_pod_s_state() -> None:
    message = json.dumps({"error": REFUSAL})
    ended = {"exitCode": 2, "reason": "Error", "message": message}
    found = outcome_of("memory", seen({"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}))
    assert found == Outcome("memory", 2, "Error", {"error": REFUSAL}, UUID)
    assert found.trouble() == "memory: CUDA refused: cuMemAlloc_v2 answered CUDA_ERROR_OUT_OF_MEMORY (2)"


@pytest.mark.parametrize("message", ["", "Killed", "[1]", '{"error": '])
def test_a_message_that_is_no_result_is_none(message: str) -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": message}
    found = outcome_of("exhaust", seen({"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}))
    assert found.result == {} and found.ending == OOM_KILLED and found.problem == message.strip()


def test_a_job_that_crashed_says_its_last_word() -> None:
    message = 'Traceback (most recent call last):\n  File "probe.py"\nRuntimeError: a bug\n'
    ended = {"exitCode": 1, "reason": "Error", "message": message}
    found = outcome_of("whole", seen({"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}))
    assert found.trouble() == "whole: it crashed: exit status 1 (Error) RuntimeError: a bug"


def test_a_pod_that_did_not_end_says_why() -> None:
    assert outcome_of("whole", seen({"phase": "Running"})).problem == "the time was over"
    denied = outcome_of("native", Seen("native", denied="CUDA_DISABLE_CONTROL is not allowed"))
    assert denied.denied and denied.problem == "CUDA_DISABLE_CONTROL is not allowed"
    waiting = {"name": "c0", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    assert "not found" in outcome_of("whole", seen({"phase": "Pending", "containerStatuses": [waiting]})).problem


def node(name: str, *cards: Object) -> Object:
    whole = {"mode": "hami-core", "healthy": True, "cordoned": False, "shares": [], "cores": 100, "memory_mib": 24576}
    return {"name": name, "cards": [{**whole, "uuid": f"{name}-{number}", **card} for number, card in enumerate(cards)]}


def test_the_largest_idle_card_of_the_real_workers_is_tried() -> None:
    nodes = [
        node("gpu-0", {}, {"memory_mib": 81920, "shares": [{"pod": "p"}]}, {"memory_mib": 40960}),
        node("gpu-1", {"memory_mib": 81920, "healthy": False}, {"memory_mib": 81920, "cordoned": True}),
        node("gpu-2", {"memory_mib": 81920, "mode": "mig"}, {"memory_mib": 81920, "cores": 50}),
        node("simulated", {"memory_mib": 183359}),
    ]
    assert card_of(nodes, ["gpu-0", "gpu-1", "gpu-2"]) == {"node": "gpu-0", "uuid": "gpu-0-2", "memory_mib": 40960}
    assert card_of(nodes, ["gpu-1"]) == {}
    assert card_of([], ["gpu-0"]) == {}


def test_a_quota_case_becomes_evidence() -> None:
    case = {"passed": True, "expected": "e", "observed": "denied: exceeding resource quota", "verdict": "v", "pods": []}
    record = quota_evidence("tenant-a", {"cases": [case]})
    assert (record.verdict, record.observed, record.subject) == ("passed", case["observed"], "tenant-a")
    failed = quota_evidence("tenant-a", {"cases": [{**case, "passed": False, "verdict": "quota: it was placed"}]})
    assert (failed.verdict, failed.reason) == ("failed", "quota: it was placed")
    assert quota_evidence("tenant-a", {"msg": "no connection"}).reason == "no connection"
    assert quota_evidence("tenant-a", {}).reason == "it was not tried"


def test_a_tenant_on_which_nothing_was_tried_has_a_record_for_every_check() -> None:
    records = untried("tenant-a", "skipped", "no card is idle")
    assert [record.id for record in records] == list(acceptance.CHECKS)
    assert {record.reason for record in records} == {"no card is idle"}
