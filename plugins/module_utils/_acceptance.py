# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Acceptance of real cards: the CUDA jobs that are tried, what became of each, and what that proves.

No input or output, no clock: gpu_acceptance_verify creates, watches and deletes; the jobs are all
roles/gpu_acceptance/files/probe.py, whose last line is an outcome's ``result``. Memory in MiB, compute in percent of a
card, times in seconds unless a name says otherwise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._evidence import FAILED, PASSED, SKIPPED, Evidence
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import MODE_HAMI_CORE, POD_USE_UUID
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import (
    NOTHING_EXPECTED,
    Case,
    Container,
    Seen,
    Setting,
    pod_of,
)

Object = dict[str, Any]

CONCURRENT, REPEATS, OVERHEAD, CORES, HALVES = (
    "cuda-concurrent",
    "cuda-repeats",
    "cuda-overhead",
    "cuda-cores",
    "cuda-halves",
)
MEMORY, APART, CHILDREN, EXEC, IMAGES = ("cuda-memory", "cuda-oom-apart", "cuda-children", "cuda-exec", "cuda-images")
UNREQUESTED, QUOTA = "no-request", "quota-refused"

_CLAIMS = {
    CONCURRENT: "Two CUDA jobs run on one card at the same time.",
    REPEATS: "The same work takes the same time again and again on a card of one's own.",
    OVERHEAD: "HAMi's control costs little on a card of one's own.",
    CORES: "A job that has a part of a card's compute gets that part in throughput.",
    HALVES: "Two jobs that have half a card's compute each get half of it at the same time.",
    MEMORY: "An allocation above the share fails with a CUDA error, and the process lives on.",
    APART: "A container that the kernel kills for host memory does not look like a refused allocation.",
    CHILDREN: "A child process is held to its container's share.",
    EXEC: "A process that is started in a running container is held to the container's share.",
    IMAGES: "Images with another C library are held to their share.",
    UNREQUESTED: "A pod that asks for no card sees none.",
    QUOTA: "A pod that asks for more than its namespace's quota is refused.",
}
CHECKS = tuple(_CLAIMS)

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY, which HAMi-core answers (src/allocator/allocator.c)
SIGKILLED = 137
# Enough for a CUDA context (some hundred MiB, counted as the share's) and something to allocate.
SHARE_MIB = 2048
CHUNK_MIB = 16
# HAMi's own figure is 4147 MiB enforced of 4096 asked, on a T4.
MEMORY_TOLERANCE_PERCENT = 5
STEADY_FACTOR = 1.5
HOST_LIMIT_MIB = 64

_PINNED = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


class AcceptanceError(ValueError):
    """A setting with which nothing can be proved; the message says what to do."""


@dataclass(frozen=True)
class TrialCard:
    """The card on which everything is tried."""

    node: str
    uuid: str
    memory_mib: int

    @property
    def share_mib(self) -> int:
        """Memory of the small shares, several of which are on the card together."""
        return min(SHARE_MIB, self.memory_mib // 8)


@dataclass(frozen=True)
class Plan:
    """What is tried on which card, and how far off it may be: compute in points of percent, overhead in percent."""

    card: TrialCard
    image: str
    other_images: tuple[str, ...] = ()
    share_cores: int = 30
    repeats: int = 100
    warm_up_s: float = 5.0
    native: bool = True
    runtime_class: str = ""
    cores_tolerance: float = 10.0
    overhead_tolerance: float = 5.0


def check_plan(plan: Plan) -> None:
    """Whether the plan can prove what it is for. Raises AcceptanceError."""
    for image in (plan.image, *plan.other_images):
        if not _PINNED.fullmatch(image):
            raise AcceptanceError(
                f"image {image!r} is not pinned; give it with its digest, as name@sha256:<64 hexadecimal digits>."
            )
    if not 1 <= plan.share_cores <= 99:
        raise AcceptanceError(f"share_cores is {plan.share_cores}; give a part of a card, from 1 to 99.")
    if plan.repeats < 20 or plan.repeats > 300:
        # Percentiles of fewer say nothing; the times of more do not fit a termination message.
        raise AcceptanceError(f"repeats is {plan.repeats}; give 20 to 300.")


@dataclass(frozen=True)
class Trial:
    """One pod: what its probe is to do, and what it asks of the card (nothing: a pod without a card).

    ``hook`` is what kubelet starts in its container beside it, by the same call of the runtime as kubectl exec.
    """

    name: str
    arguments: tuple[str, ...]
    memory_mib: int | None = None
    cores: int | None = None
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    hook: tuple[str, ...] = ()
    host_limit_mib: int | None = None
    runtime_class: str = ""

    @property
    def measures(self) -> bool:
        return self.arguments[0] == "measure"


def stages_of(plan: Plan) -> list[list[Trial]]:
    """The trials in the order in which they are made; those of one stage are on the card at the same time."""
    memory = plan.card.memory_mib
    stages = [
        [_measure(plan, "whole", memory, 100)],
        [_measure(plan, "share", memory // 2, plan.share_cores)],
        [_measure(plan, "half-0", memory // 2, 50), _measure(plan, "half-1", memory // 2, 50)],
        [*_of_memory(plan), *_without_card(plan)],
        # One by one: a card may have few slots, and there may be many images.
        *([trial] for trial in _of_images(plan)),
    ]
    if plan.native:
        # HAMi's device plugin then does not preload its library (nvinternal/plugin/server.go).
        stages.insert(0, [_measure(plan, "native", memory, 100, {"CUDA_DISABLE_CONTROL": "true"})])
    return stages


def _measure(plan: Plan, name: str, memory_mib: int, cores: int, env: Mapping[str, str] | None = None) -> Trial:
    arguments = ("measure", "--repeats", str(plan.repeats), "--warm-up-s", str(plan.warm_up_s))
    # Else HAMi's monitor lifts the limit of a job that is alone on its card (cmd/vGPUmonitor/feedback.go).
    force = {"GPU_CORE_UTILIZATION_POLICY": "force"}
    return Trial(name, arguments, memory_mib, cores, plan.image, {**force, **(env or {})})


def _fill(plan: Plan) -> tuple[str, ...]:
    return ("memory", "--chunk-mib", str(CHUNK_MIB), "--most-mib", str(plan.card.share_mib * 5 // 4))


def _of_memory(plan: Plan) -> list[Trial]:
    share = plan.card.share_mib
    return [
        Trial("memory", _fill(plan), share, image=plan.image),
        Trial("children", ("children",), share, image=plan.image),
        Trial("exec", ("hold",), share, image=plan.image, hook=("ask", "--answer")),
    ]


def _of_images(plan: Plan) -> list[Trial]:
    share = plan.card.share_mib
    return [Trial(f"image-{number}", _fill(plan), share, image=each) for number, each in enumerate(plan.other_images)]


def _without_card(plan: Plan) -> list[Trial]:
    # What NVIDIA's own images say of themselves, and so every image that is made from one.
    all_cards = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all"}
    exhaust = ("exhaust", "--most-mib", str(4 * HOST_LIMIT_MIB))
    return [
        Trial("bare", ("look",), image=plan.image),
        Trial("bare-all", ("look",), image=plan.image, env=all_cards, runtime_class=plan.runtime_class),
        Trial("exhaust", exhaust, image=plan.image, host_limit_mib=HOST_LIMIT_MIB),
    ]


def same_work(trial: Trial, outcomes: Mapping[str, Outcome]) -> Trial:
    """The trial with the work of the first one that has measured, without which times cannot be compared."""
    found = [outcome.result["iterations"] for outcome in outcomes.values() if "iterations" in outcome.result]
    if not (trial.measures and found):
        return trial
    return Trial(**{**vars(trial), "arguments": (*trial.arguments, "--iterations", str(found[0]))})


def in_vain(stage: Sequence[Trial], outcomes: Mapping[str, Outcome]) -> str:
    """Why a stage need not be tried; empty where it does."""
    whole = outcomes.get("whole")
    if whole and any(trial.measures for trial in stage) and not whole.measured:
        return f"not tried, since there is nothing to compare with: {whole.trouble()}"
    return ""


PROBE = "probe"
_PROBE_PATH = "/probe/probe.py"
_PROGRAM = ("python3", _PROBE_PATH)


def case_of(trial: Trial, card: TrialCard) -> Case:
    """The trial as gpu_scheduling_verify would have it: what it asks, and of which card."""
    asks = Container(cards=1 if trial.memory_mib else None, memory_mib=trial.memory_mib, cores=trial.cores)
    annotations = {POD_USE_UUID: card.uuid} if asks.asks else {}
    return Case(trial.name, NOTHING_EXPECTED, (asks,), annotations=annotations)


def pod_of_trial(trial: Trial, card: TrialCard, setting: Setting) -> Object:
    """The pod of a trial. It keeps to Kubernetes' restricted standard, and runs on the card's node, tainted or not."""
    pod = pod_of(case_of(trial, card), trial.name, setting)
    spec: Object = pod["spec"]
    (container,) = spec["containers"]
    capabilities = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"} if trial.memory_mib else {}
    env = {**capabilities, "CUDA_CACHE_DISABLE": "1", "PYTHONUNBUFFERED": "1", **trial.env}
    container.update(
        image=trial.image,
        command=[*_PROGRAM, *trial.arguments],
        terminationMessagePolicy="FallbackToLogsOnError",
        env=[{"name": name, "value": value} for name, value in env.items()],
        volumeMounts=[
            {"name": PROBE, "mountPath": "/probe", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    )
    container["securityContext"]["readOnlyRootFilesystem"] = True
    if trial.host_limit_mib:
        container["resources"]["limits"]["memory"] = f"{trial.host_limit_mib}Mi"
    if trial.hook:
        container["lifecycle"] = {"postStart": {"exec": {"command": [*_PROGRAM, *trial.hook]}}}
    if trial.runtime_class:
        spec["runtimeClassName"] = trial.runtime_class
    on_node = {"key": "metadata.name", "operator": "In", "values": [card.node]}
    required = {"nodeSelectorTerms": [{"matchFields": [on_node]}]}
    spec.update(
        volumes=[
            {"name": PROBE, "configMap": {"name": PROBE}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
        ],
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        tolerations=[{"operator": "Exists"}],
    )
    return pod


# How a container can end.
COMPLETED, REFUSED, CUDA_FAILED, NO_LIBRARY, OOM_KILLED, KILLED, CRASHED, NEVER_RAN = (
    "it ended by itself",
    "CUDA refused",
    "CUDA failed",
    "the CUDA driver's library cannot be loaded",
    "the kernel killed it for host memory (OOMKilled)",
    "it was killed by signal 9, and not for host memory",
    "it crashed",
    "it did not run to its end",
)


@dataclass(frozen=True)
class Outcome:
    """What became of a trial's pod: ``uuid`` is the card that HAMi gave it, ``exit_code`` None where nothing ended.

    ``problem`` is why it did not run, or the last word of one that told no result.
    """

    name: str
    exit_code: int | None = None
    kubelet_reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    uuid: str = ""
    problem: str = ""
    denied: bool = False

    @property
    def ending(self) -> str:
        """How it ended. The kernel's word counts before the process's own, which may have been its last but one."""
        if self.exit_code is None:
            return NEVER_RAN
        if self.kubelet_reason == "OOMKilled":
            return OOM_KILLED
        if self.exit_code == SIGKILLED:
            return KILLED
        code = error_code(self.result)
        if code is not None and self.exit_code:
            return REFUSED if code == OUT_OF_MEMORY and self.exit_code == OUT_OF_MEMORY else CUDA_FAILED
        if self.exit_code and "no_library" in self.result:
            return NO_LIBRARY
        return CRASHED if self.exit_code or not self.result else COMPLETED

    @property
    def measured(self) -> bool:
        return self.ending == COMPLETED and bool(self.result.get("repeat_ms"))

    @property
    def gfma_s(self) -> float:
        """Throughput in 10^9 multiplications with addition a second."""
        times = self.result["repeat_ms"]
        return float(self.result["repeat_gfma"] * len(times) / (sum(times) / 1000))

    def trouble(self) -> str:
        """What stood in the way of it, in half a sentence with its name."""
        more = {
            NEVER_RAN: self.problem,
            NO_LIBRARY: f"{self.result.get('no_library')}; its node has no driver, or its container got no card",
            CUDA_FAILED: error_text(self.result.get("error")),
            REFUSED: error_text(self.result.get("error")),
            CRASHED: f"exit status {self.exit_code} ({self.kubelet_reason}) {self.problem}".strip(),
        }.get(self.ending, "")
        return f"{self.name}: {self.ending}" + (f": {more}" if more else "")

    def proof(self) -> Object:
        return {
            "exit_code": self.exit_code,
            "kubelet_reason": self.kubelet_reason,
            "card": self.uuid,
            "problem": self.problem,
            **self.result,
        }


def outcome_of(name: str, seen: Seen) -> Outcome:
    """The outcome of a trial from the last state of its pod."""
    status = (seen.pod or {}).get("status") or {}
    states = [entry.get("state") or {} for entry in status.get("containerStatuses") or ()]
    ended = next((state["terminated"] for state in states if "terminated" in state), None)
    uuid = seen.shares[0].uuid if seen.shares else ""
    if ended is None:
        word = "the time was over" if seen.phase == "Running" and not seen.lost else seen.last_word()
        return Outcome(name, uuid=uuid, problem=word, denied=bool(seen.denied))
    message = str(ended.get("message") or "").strip()
    result = result_from_message(message)
    # Of a job that told no result it is the end of its log, or why the runtime did not start it.
    last_line = "" if result else message.rpartition("\n")[2]
    return Outcome(name, int(ended["exitCode"]), str(ended.get("reason") or ""), result, uuid, last_line)


def result_from_message(message: str) -> Object:
    """The probe's result from a termination message; empty where it is none, as after a kill."""
    try:
        found = json.loads(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def error_code(result: Mapping[str, Any] | None) -> int | None:
    error = (result or {}).get("error")
    return int(error["code"]) if error else None


def error_text(error: Mapping[str, Any] | None) -> str:
    return "{call} answered {name} ({code})".format(**error) if error else ""


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least ``percent`` % of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{percent}": round(percentile(values, percent), 2) for percent in (50, 95, 99)}


def overlap_s(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """For how long two jobs ran at the same time, each with ``start`` and ``end`` on one machine's monotonic clock."""
    return max(0.0, min(first["end"], second["end"]) - max(first["start"], second["start"]))


def within(value: float, wanted: float, tolerance: float) -> bool:
    return abs(value - wanted) <= tolerance


class Judge:
    """What the outcomes of a plan prove for a tenant."""

    def __init__(self, plan: Plan, tenant: str, outcomes: Mapping[str, Outcome]) -> None:
        self._plan, self._tenant, self._outcomes = plan, tenant, outcomes

    def evidence(self) -> list[Evidence]:
        return [
            self._concurrent(),
            self._repeats(),
            self._overhead(),
            self._cores(),
            self._halves(),
            self._memory(),
            self._apart(),
            self._second_process(CHILDREN, "children"),
            self._second_process(EXEC, "exec"),
            self._images(),
            self._unrequested(),
        ]

    def _concurrent(self) -> Evidence:
        expected = f"both on {self._plan.card.uuid}, half of the shorter one's time together"
        pair = self._of("half-0", "half-1")
        trouble = _trouble(each for each in pair if not each.measured)
        if trouble:
            return self._failed(CONCURRENT, expected, trouble, pair)
        first, second = (each.result for each in pair)
        together = overlap_s(first, second)
        shorter = min(each["end"] - each["start"] for each in (first, second))
        cards = {self._plan.card.uuid, *(each.uuid for each in pair), first["uuid"], second["uuid"]}
        observed = f"{together:.1f} s of {shorter:.1f} s together on {' and '.join(sorted(cards))}"
        return self._told(CONCURRENT, expected, observed, len(cards) == 1 and together >= shorter / 2, pair)

    def _repeats(self) -> Evidence:
        expected = f"p99 at most {STEADY_FACTOR} times p50 of {self._plan.repeats} repeats on the whole card"
        whole = self._outcomes["whole"]
        measured = [each for each in self._outcomes.values() if each.measured]
        if not whole.measured:
            return self._failed(REPEATS, expected, whole.trouble(), [whole])
        found = {each.name: percentiles(each.result["repeat_ms"]) for each in measured}
        observed = "; ".join(f"{name} {_times(times)}" for name, times in found.items())
        steady = found["whole"]["p99"] <= STEADY_FACTOR * found["whole"]["p50"]
        record = self._told(REPEATS, expected, observed, steady, measured)
        return Evidence(**{**vars(record), "proof": {**record.proof, "percentiles_ms": found}})

    def _overhead(self) -> Evidence:
        expected = f"p50 at most {self._plan.overhead_tolerance:g} % above that without HAMi's control"
        if not self._plan.native:
            return self._record(OVERHEAD, SKIPPED, expected, "", "it is not asked for (native)")
        native, whole = self._of("native", "whole")
        if native.denied:
            return self._record(OVERHEAD, SKIPPED, expected, "", f"nobody may do without the control: {native.problem}")
        trouble = _trouble(each for each in (native, whole) if not each.measured)
        if trouble:
            return self._failed(OVERHEAD, expected, trouble, [native, whole])
        before, after = (percentiles(each.result["repeat_ms"]) for each in (native, whole))
        more = {name: 100 * (after[name] / before[name] - 1) for name in before}
        observed = ", ".join(f"{name} {percent:+.1f} %" for name, percent in more.items())
        if native.result["libvgpu"]:
            return self._failed(OVERHEAD, expected, "native: HAMi's library is loaded in it all the same", [native])
        return self._told(OVERHEAD, expected, observed, more["p50"] <= self._plan.overhead_tolerance, [native, whole])

    def _cores(self) -> Evidence:
        return self._throughput(CORES, self._plan.share_cores, self._of("share"))

    def _halves(self) -> Evidence:
        return self._throughput(HALVES, 50, self._of("half-0", "half-1"))

    def _throughput(self, check: str, cores: int, jobs: Sequence[Outcome]) -> Evidence:
        tolerance = self._plan.cores_tolerance
        expected = f"{cores} % of the whole card's throughput, {tolerance:g} points more or less"
        whole = self._outcomes["whole"]
        trouble = _trouble(each for each in (whole, *jobs) if not each.measured)
        if trouble:
            return self._failed(check, expected, trouble, [whole, *jobs])
        parts = [100 * each.gfma_s / whole.gfma_s for each in jobs]
        observed = " and ".join(f"{part:.1f} %" for part in parts)
        if len(parts) > 1:
            observed += f", {sum(parts):.1f} % together"
        held = all(within(part, cores, tolerance) for part in parts)
        unheld = "" if held or all(each.result["libvgpu"] for each in jobs) else "HAMi's library is not loaded"
        return self._told(check, expected, observed, held, [whole, *jobs], unheld)

    def _memory(self) -> Evidence:
        expected = f"CUDA_ERROR_OUT_OF_MEMORY (2) at {self._plan.card.share_mib:,} MiB, exit status 2"
        (outcome,) = self._of("memory")
        wrong, observed = self._refused(outcome)
        return self._told(MEMORY, expected, observed, not wrong, [outcome], wrong)

    def _refused(self, outcome: Outcome) -> tuple[str, str]:
        """What is wrong with a trial that was to be refused, and what was seen of it."""
        result, share = outcome.result, self._plan.card.share_mib
        if outcome.ending not in (REFUSED, COMPLETED) or "granted_mib" not in result:
            return outcome.trouble(), outcome.ending
        granted = f"{result['granted_mib']:,} of {share:,} MiB granted"
        if outcome.ending == COMPLETED:
            unheld = "" if result["libvgpu"] else ", since HAMi's library is not loaded in it (an image on musl?)"
            return f"{outcome.name}: nothing was refused{unheld}", f"{granted}, and nothing refused"
        observed = f"{granted}, then {error_text(result['error'])}"
        if error_code({"error": result.get("single")}) != OUT_OF_MEMORY:
            return f"{outcome.name}: one allocation above the share was not refused", observed
        if result["granted_mib"] > share * (1 + MEMORY_TOLERANCE_PERCENT / 100):
            return f"{outcome.name}: more than {MEMORY_TOLERANCE_PERCENT} % above the share were granted", observed
        if outcome.uuid != result["uuid"]:
            return f"{outcome.name}: HAMi gave it {outcome.uuid} and it found {result['uuid']}", observed
        return "", observed

    def _apart(self) -> Evidence:
        expected = "OOMKilled with exit status 137, no CUDA error"
        (outcome,) = self._of("exhaust")
        apart = outcome.ending == OOM_KILLED and error_code(outcome.result) is None
        observed = f"{outcome.kubelet_reason or 'no reason'} with exit status {outcome.exit_code}, no CUDA error"
        if outcome.exit_code is None:
            return self._failed(APART, expected, outcome.trouble(), [outcome])
        return self._told(APART, expected, observed, apart, [outcome])

    def _second_process(self, check: str, name: str) -> Evidence:
        expected = "the second process is refused 60 % of the share beside the first one's 60 %"
        (outcome,) = self._of(name)
        if outcome.ending != COMPLETED:
            return self._failed(check, expected, outcome.trouble(), [outcome])
        other = outcome.result.get("other")
        if not other:
            return self._failed(check, expected, f"{name}: the second process gave no answer within 60 s", [outcome])
        if "no_library" in other:
            return self._failed(check, expected, f"{name}: the second process: {other['no_library']}", [outcome])
        code = error_code(other)
        observed = (
            f"{outcome.result['held_mib']:,} MiB held, then {error_text(other.get('error')) or 'as much granted'}"
        )
        return self._told(check, expected, observed, code == OUT_OF_MEMORY, [outcome])

    def _images(self) -> Evidence:
        expected = f"each refused above {self._plan.card.share_mib:,} MiB"
        if not self._plan.other_images:
            return self._record(IMAGES, SKIPPED, expected, "", "no other images are given")
        outcomes = self._of(*(f"image-{number}" for number in range(len(self._plan.other_images))))
        found = [self._refused(each) for each in outcomes]
        pairs = zip(outcomes, found)
        observed = "; ".join(f"{each.result.get('libc', each.name)}: {seen}" for each, (_wrong, seen) in pairs)
        wrong = "; ".join(wrong for wrong, _seen in found if wrong)
        return self._told(IMAGES, expected, observed, not wrong, outcomes, wrong)

    def _unrequested(self) -> Evidence:
        expected = "no /dev/nvidia*, no card through CUDA, also where NVIDIA_VISIBLE_DEVICES=all is set"
        outcomes = self._of("bare", "bare-all")
        # A container that the runtime does not let start is a refusal, but not the one that is to be seen here.
        trouble = _trouble(each for each in outcomes if each.ending != COMPLETED)
        if trouble:
            return self._failed(UNREQUESTED, expected, trouble, outcomes)
        seen = {each.name: [*each.result["devices"], *filter(None, [each.result.get("uuid")])] for each in outcomes}
        found = "; ".join(f"{name} sees {', '.join(what)}" for name, what in seen.items() if what)
        remedy = "set the toolkit's accept-nvidia-visible-devices-envvar-when-unprivileged to false"
        return self._told(
            UNREQUESTED, expected, found or "nothing", not found, outcomes, f"{found}; {remedy}" if found else ""
        )

    def _of(self, *names: str) -> list[Outcome]:
        return [self._outcomes[name] for name in names]

    def _told(
        self, check: str, expected: str, observed: str, passed: bool, outcomes: Sequence[Outcome], reason: str = ""
    ) -> Evidence:
        why = "" if passed else reason or f"expected {expected}; {observed}"
        return self._record(check, PASSED if passed else FAILED, expected, observed, why, outcomes)

    def _failed(self, check: str, expected: str, reason: str, outcomes: Sequence[Outcome]) -> Evidence:
        return self._record(check, FAILED, expected, "nothing", reason, outcomes)

    def _record(
        self,
        check: str,
        verdict: str,
        expected: str,
        observed: str,
        reason: str,
        outcomes: Sequence[Outcome] = (),
    ) -> Evidence:
        proof = {outcome.name: outcome.proof() for outcome in outcomes}
        return Evidence(check, _CLAIMS[check], expected, observed, verdict, self._tenant, reason, proof)


def _trouble(outcomes: Iterable[Outcome]) -> str:
    return "; ".join(outcome.trouble() for outcome in outcomes)


def _times(times: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {time:g}" for name, time in times.items()) + " ms"


def untried(tenant: str, verdict: str, reason: str) -> list[Evidence]:
    """Evidence of a tenant on whose cards nothing could be tried."""
    return [
        Evidence(check, claim, "jobs are tried", "nothing", verdict, tenant, reason) for check, claim in _CLAIMS.items()
    ]


def card_of(nodes: Sequence[Mapping[str, Any]], workers: Sequence[str]) -> Object:
    """The largest idle card of the named workers, from hami_device_info's nodes; empty where there is none."""
    cards = [
        {"node": node["name"], "uuid": card["uuid"], "memory_mib": card["memory_mib"]}
        for node in nodes
        if node["name"] in workers
        for card in node["cards"]
        if card["mode"] == MODE_HAMI_CORE and card["cores"] == 100
        if card["healthy"] and not card["cordoned"] and not card["shares"]
    ]
    return max(cards, key=lambda card: card["memory_mib"], default={})


def quota_evidence(tenant: str, result: Mapping[str, Any]) -> Evidence:
    """What gpu_scheduling_verify's answer to a case above its quota proves."""
    (case,) = result.get("cases") or [{}]
    expected = case.get("expected") or "1 pod refused for the namespace's quota"
    verdict = PASSED if case.get("passed") else FAILED
    reason = "" if case.get("passed") else str(case.get("verdict") or result.get("msg") or "it was not tried")
    proof = {"pods": case["pods"]} if "pods" in case else {}
    return Evidence(QUOTA, _CLAIMS[QUOTA], expected, case.get("observed") or "nothing", verdict, tenant, reason, proof)
