# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""HAMi's placement rules as pure functions: what its webhook makes of a pod, and where its scheduler puts it.

The rules are those of HAMi 2.10 for NVIDIA cards; each docstring names the file that a rule comes from.
Kept with purpose are also its surprises (see Placement and Request.of), because the schedulers that these
functions imitate and predict have them. MIG placements are not modelled: a card in MIG mode takes nothing.
No input or output, no clock. Memory in MiB, compute in percent of one card.
"""

from __future__ import annotations

import copy
import itertools
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    DEVICE_NVIDIA,
    MODE_MIG,
    POD_GPU_POLICY,
    POD_MODE,
    POD_NODE_POLICY,
    POD_NOUSE_TYPE,
    POD_NOUSE_UUID,
    POD_NUMA_BIND,
    POD_SCORING_WEIGHTS,
    POD_USE_TYPE,
    POD_USE_UUID,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    RESOURCE_MEMORY_PERCENT,
    RESOURCE_PRIORITY,
    SCHEDULER_NAME,
    Allocation,
    Card,
    Share,
)

# Why a card takes no share: HAMi 2.10 pkg/device/common/common.go.
CARD_TYPE_MISMATCH = "CardTypeMismatch"
CARD_UUID_MISMATCH = "CardUuidMismatch"
CARD_SLOTS_EXHAUSTED = "CardTimeSlicingExhausted"
CARD_COMPUTE_EXHAUSTED = "CardComputeUnitsExhausted"
CARD_INSUFFICIENT_MEMORY = "CardInsufficientMemory"
CARD_INSUFFICIENT_CORE = "CardInsufficientCore"
CARD_NOT_HEALTHY = "CardNotHealth"
CARD_CORDONED = "CardCordoned"
CARD_MIG_INFEASIBLE = "CardMigTopologyInfeasible"
NUMA_NOT_FIT = "NumaNotFit"
EXCLUSIVE_CONFLICT = "ExclusiveDeviceAllocateConflict"
CARDS_INSUFFICIENT = "AllocatedCardsInsufficientRequest"
QUOTA_NOT_FIT = "ResourceQuotaNotFit"
NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice"
NODE_UNREGISTERED = "node unregistered"

_INT32_MAX = 2**31 - 1


class PlacementError(ValueError):
    """A pod that the rules cannot judge, such as one with malformed scoring weights."""


@dataclass(frozen=True)
class Rules:
    """What the scheduler was configured with; the defaults are those of HAMi's chart."""

    node_policy: str = "binpack"
    gpu_policy: str = "spread"
    scheduler_name: str = SCHEDULER_NAME
    overwrite_default_scheduler: bool = True
    default_count: int = 1
    default_memory_mib: int = 0
    default_cores: int = 0
    runtime_class: str = ""
    core_policy: str = "default"
    overwrite_env: bool = False


@dataclass(frozen=True)
class Usage:
    """What is taken of a card: slots, memory in MiB, cores in percent."""

    slots: int = 0
    memory_mib: int = 0
    cores: int = 0


@dataclass(frozen=True)
class Quota:
    """What a namespace may take of all cards together and has taken; None is no limit."""

    memory_mib: int | None = None
    cores: int | None = None
    used: Usage = Usage()

    def fits(self, memory_mib: int, cores: int) -> bool:
        """Whether so much more may be taken. FitQuota, HAMi 2.10 pkg/device/quota.go."""
        memory_fits = self.memory_mib is None or self.used.memory_mib + memory_mib <= self.memory_mib
        return memory_fits and (self.cores is None or self.used.cores + cores <= self.cores)


@dataclass(frozen=True)
class Node:
    """A node with its registered cards and what is taken of each, by UUID."""

    name: str
    cards: tuple[Card, ...] = ()
    usage: Mapping[str, Usage] = field(default_factory=dict)
    cordoned: frozenset[str] = frozenset()
    pair_scores: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


# --- what a pod asks for -----------------------------------------------------------------

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{suffix: Decimal(1000) ** (power + 1) for power, suffix in enumerate("kMGTPE")},
    **{suffix + "i": Decimal(1024) ** (power + 1) for power, suffix in enumerate("KMGTPE")},
}


def parse_quantity(text: object) -> Decimal:
    """Read a Kubernetes quantity such as 8k, 3Gi, 500m or 1e3; PlacementError names any other text."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise PlacementError(f"{text!r} is no Kubernetes quantity")
    number, exponent, suffix = match.groups()
    return Decimal(number + exponent) if exponent else Decimal(number) * _SUFFIXES[suffix or ""]


def _asked(container: Mapping[str, Any], resource: str) -> Decimal | None:
    resources = container.get("resources") or {}
    for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
        if resource in amounts:
            return parse_quantity(amounts[resource])
    return None


def _asked_integer(container: Mapping[str, Any], resource: str) -> int | None:
    amount = _asked(container, resource)
    return None if amount is None or amount != int(amount) else int(amount)


@dataclass(frozen=True)
class Request:
    """What one container asks for: count cards, and of each so much memory and compute.

    memory_percent, of a card's memory, counts where memory_mib is 0.
    """

    count: int = 0
    memory_mib: int = 0
    memory_percent: int | None = None
    cores: int = 0

    @classmethod
    def of(cls, container: Mapping[str, Any], rules: Rules = Rules()) -> Request:
        """Read a container's limits (or else requests); one that HAMi takes for no request asks for nothing.

        A memory that is no number of MiB within 32 bits, such as 3Gi, makes the container ask for
        nothing: it then passes the filter and gets no card.
        GenerateResourceRequests, HAMi 2.10 pkg/device/nvidia/device.go.
        """
        count = _asked_integer(container, RESOURCE_COUNT)
        if not count or count < 0:
            return cls()
        memory_mib = 0
        if _asked(container, RESOURCE_MEMORY) is not None:
            asked = _asked_integer(container, RESOURCE_MEMORY)
            if asked is None or not 0 <= asked <= _INT32_MAX:
                return cls()
            memory_mib = asked
        percent = _asked_integer(container, RESOURCE_MEMORY_PERCENT)
        memory_percent = min(percent, 100) if percent is not None and percent > 0 else None
        if memory_percent is None and memory_mib == 0:
            memory_mib = rules.default_memory_mib
            memory_percent = 100 if memory_mib == 0 else None
        cores = _asked_integer(container, RESOURCE_CORES)
        return cls(count, memory_mib, memory_percent, rules.default_cores if cores is None else cores)

    def memory_of(self, card: Card) -> int:
        """The memory that this request takes of a card, in MiB."""
        if self.memory_mib > 0 or self.memory_percent is None:
            return self.memory_mib
        return card.memory_mib * self.memory_percent // 100


@dataclass(frozen=True)
class PodRequest:
    """What a pod asks for: its containers, init containers first, and its annotations."""

    init: tuple[Request, ...] = ()
    containers: tuple[Request, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, pod: Mapping[str, Any], rules: Rules = Rules()) -> PodRequest:
        """Read a pod as the API serves it. Resourcereqs, HAMi 2.10 pkg/device/devices.go."""
        spec = pod.get("spec") or {}
        return cls(
            init=tuple(Request.of(container, rules) for container in spec.get("initContainers") or ()),
            containers=tuple(Request.of(container, rules) for container in spec.get("containers") or ()),
            annotations=(pod.get("metadata") or {}).get("annotations") or {},
        )

    @property
    def all(self) -> tuple[Request, ...]:
        return self.init + self.containers

    @property
    def asks_cards(self) -> bool:
        return any(request.count for request in self.all)


# --- the webhook -------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """The webhook's answer: the pod as it goes on, or why it is refused (code as in HTTP)."""

    allowed: bool
    pod: dict[str, Any]
    message: str = ""
    code: int = 200


class _DeniedError(Exception):
    def __init__(self, message: str, code: int = 403) -> None:
        super().__init__(message)
        self.code = code


def mutate(pod: Mapping[str, Any], rules: Rules = Rules(), quota: Quota | None = None) -> Verdict:
    """What HAMi's webhook makes of a new pod. Handle, HAMi 2.10 pkg/scheduler/webhook.go."""
    mutated: dict[str, Any] = copy.deepcopy(dict(pod))
    try:
        _admit(mutated, rules, quota)
    except _DeniedError as denied:
        return Verdict(False, mutated, str(denied), denied.code)
    return Verdict(True, mutated)


def _admit(pod: dict[str, Any], rules: Rules, quota: Quota | None) -> None:
    spec = pod.setdefault("spec", {})
    if not spec.get("containers"):
        raise _DeniedError("pod has no containers")
    if _names_other_scheduler(spec.get("schedulerName") or "", rules):
        return
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    asks = False
    for container in containers:
        _check_percentage(container)
        asks = _mutate_container(container, spec, rules) or asks
    privileged = [container for container in containers if (container.get("securityContext") or {}).get("privileged")]
    if privileged and asks:
        raise _DeniedError(f"container {privileged[0].get('name')} is privileged")
    if asks and rules.scheduler_name:
        spec["schedulerName"] = rules.scheduler_name
        if spec.get("nodeName"):
            raise _DeniedError("pod has node assigned")
    if quota is not None and not _quota_admits(PodRequest.of(pod, rules), quota):
        raise _DeniedError("exceeding resource quota")


def _names_other_scheduler(name: str, rules: Rules) -> bool:
    if not name or (name == "default-scheduler" and rules.overwrite_default_scheduler):
        return False
    return not rules.scheduler_name or name != rules.scheduler_name


def _check_percentage(container: Mapping[str, Any]) -> None:
    percent = _asked(container, RESOURCE_MEMORY_PERCENT)
    if percent is None or 0 <= percent <= 100:
        return
    value = int(percent.to_integral_value(ROUND_CEILING))
    name = container.get("name")
    raise _DeniedError(
        f"invalid {RESOURCE_MEMORY_PERCENT} value {value} in container {name}: must be an integer between 0 and 100",
        500,
    )


def _mutate_container(container: dict[str, Any], spec: dict[str, Any], rules: Rules) -> bool:
    """Complete a container's limits and environment; whether it asks for a card.

    MutateAdmission, HAMi 2.10 pkg/device/nvidia/device.go.
    """
    limits: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
    if RESOURCE_PRIORITY in limits:
        _add_env(container, "CUDA_TASK_PRIORITY", str(int(parse_quantity(limits[RESOURCE_PRIORITY]))))
    if rules.core_policy not in ("", "default"):
        _add_env(container, "GPU_CORE_UTILIZATION_POLICY", rules.core_policy)
    asks = RESOURCE_COUNT in limits
    if (
        not asks
        and rules.default_count > 0
        and any(name in limits for name in (RESOURCE_CORES, RESOURCE_MEMORY, RESOURCE_MEMORY_PERCENT))
    ):
        container["resources"]["limits"][RESOURCE_COUNT] = str(rules.default_count)
        asks = True
    if _wants_whole_card(container):
        resources = container["resources"]
        resources["limits"] = {**(resources.get("limits") or {}), RESOURCE_CORES: "100"}
        asks = True
    if asks and rules.runtime_class and spec.get("runtimeClassName") is None:
        spec["runtimeClassName"] = rules.runtime_class
    if not asks and rules.overwrite_env:
        _add_env(container, "NVIDIA_VISIBLE_DEVICES", "none")
    return asks


def _wants_whole_card(container: Mapping[str, Any]) -> bool:
    """A count without cores and without a part of the memory means the whole card.

    defaultExclusiveCoreIfNeeded, HAMi 2.10 pkg/device/nvidia/device.go.
    """
    if _asked(container, RESOURCE_COUNT) is None or _asked(container, RESOURCE_CORES) is not None:
        return False
    percent = _asked(container, RESOURCE_MEMORY_PERCENT)
    if percent is not None:
        return percent.to_integral_value(ROUND_CEILING) == 100
    return _asked(container, RESOURCE_MEMORY) is None


def _add_env(container: dict[str, Any], name: str, value: str) -> None:
    container["env"] = [*(container.get("env") or ()), {"name": name, "value": value}]


def _quota_admits(request: PodRequest, quota: Quota) -> bool:
    """Whether a quota admits a pod: the sum of its containers, or the largest init container.

    fitResourceQuota, HAMi 2.10 pkg/scheduler/webhook.go.
    """
    memory_mib = max(
        [sum(r.memory_mib * r.count for r in request.containers), *(r.memory_mib * r.count for r in request.init)]
    )
    cores = max([sum(r.cores * r.count for r in request.containers), *(r.cores * r.count for r in request.init)])
    return (memory_mib == 0 and cores == 0) or quota.fits(memory_mib, cores)


# --- what a pod takes --------------------------------------------------------------------


def usage_of(written: Allocation, init_count: int, init_finished: bool = False) -> dict[str, Usage]:
    """What a pod takes of each card, by UUID, from its hami.io/vgpu-devices-allocated.

    The containers' sum or the largest init container, whichever is more; once all init
    containers have succeeded, the sum alone. The first init_count entries count as init
    containers, also where 2.10 left out entries before them (see Placement).
    CollapseInitContainerUsage, AppContainersOnlyDeviceUsage, HAMi 2.10 pkg/device/initContainer.go.
    """
    peak: dict[str, Usage] = {}
    total: dict[str, Usage] = {}
    for index, container in enumerate(written):
        for share in container:
            if index >= init_count:
                total[share.uuid] = _plus(total.get(share.uuid, Usage()), Usage(1, share.memory_mib, share.cores))
            elif not init_finished:
                peak[share.uuid] = _largest(peak.get(share.uuid, Usage()), Usage(1, share.memory_mib, share.cores))
    return {uuid: _largest(peak.get(uuid, Usage()), total.get(uuid, Usage())) for uuid in sorted({*peak, *total})}


def _plus(one: Usage, other: Usage) -> Usage:
    return Usage(one.slots + other.slots, one.memory_mib + other.memory_mib, one.cores + other.cores)


def _largest(one: Usage, other: Usage) -> Usage:
    return Usage(max(one.slots, other.slots), max(one.memory_mib, other.memory_mib), max(one.cores, other.cores))


def add_usage(pods: Iterable[Mapping[str, Usage]]) -> dict[str, Usage]:
    """The sum of what several pods take of each card, by UUID."""
    total: dict[str, Usage] = {}
    for pod in pods:
        for uuid, usage in pod.items():
            total[uuid] = _plus(total.get(uuid, Usage()), usage)
    return total


# --- a node's judgement ------------------------------------------------------------------


@dataclass
class _Slate:
    """A card and what is taken of it while one pod is being judged."""

    card: Card
    used: int
    memory_mib: int
    cores: int
    score: float = 0.0

    @property
    def usage(self) -> Usage:
        return Usage(self.used, self.memory_mib, self.cores)


@dataclass(frozen=True)
class _Job:
    """One pod to be judged: what it asks for, by which rules."""

    request: PodRequest
    gpu_policy: str
    numa_bind: bool
    weights: tuple[int, int, int]
    quota: Quota | None

    def names_policy(self, name: str) -> bool:
        return name in (part.strip() for part in self.gpu_policy.split(","))


class _UnfitError(Exception):
    """A node does not fit; the message is HAMi's reason."""


def _single(number: float) -> float:
    """Round to 32 bits as HAMi's float32 does, so that scores tie where HAMi's tie."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def _ratio(part: int, whole: int) -> float:
    return _single(_single(part) / _single(whole))


def _score_card(slate: _Slate, request: Request, weights: tuple[int, int, int]) -> float:
    """How full a card is. ComputeScore, HAMi 2.10 pkg/scheduler/policy/gpu_policy.go.

    The request counts only where a card's type is exactly NVIDIA, which no plugin registers.
    """
    card = slate.card
    if not (card.slots and card.cores and card.memory_mib):
        return 0.0
    used, memory_mib, cores = slate.used, slate.memory_mib, slate.cores
    if card.type == DEVICE_NVIDIA:
        percent = request.memory_percent
        used += 1
        cores += request.cores
        memory_mib += request.memory_mib if percent is None else card.memory_mib * percent // 100
    slot, core, memory = weights
    parts = (
        (slot, _ratio(used, card.slots)),
        (core, _ratio(cores, card.cores)),
        (memory, _ratio(memory_mib, card.memory_mib)),
    )
    total = 0.0
    for weight, part in parts:
        total = _single(total + _single(_single(weight) * part))
    return _single(10.0 * total)


def _score_node(slates: Sequence[_Slate]) -> float:
    """How full a node's cards are. ComputeDefaultScore, HAMi 2.10 pkg/scheduler/policy/node_policy.go."""
    slots = sum(slate.card.slots for slate in slates)
    cores = sum(slate.card.cores for slate in slates)
    memory_mib = sum(slate.card.memory_mib for slate in slates)
    if not (slots and cores and memory_mib):
        return 0.0
    total = _ratio(sum(slate.used for slate in slates), slots)
    total = _single(total + _ratio(sum(slate.cores for slate in slates), cores))
    total = _single(total + _ratio(sum(slate.memory_mib for slate in slates), memory_mib))
    return _single(10.0 * total)


def _sort_cards(slates: list[_Slate], job: _Job) -> None:
    """Order cards so that the best is last. Less, HAMi 2.10 pkg/scheduler/policy/gpu_policy.go.

    Stable, as HAMi's is for up to 12 cards a node.
    """
    policy = job.gpu_policy
    if "," in policy or policy == "numa":
        _sort_by_chain(slates, job)
    elif policy == "mutex":
        slates.sort(key=lambda s: (-s.used, s.card.numa))
    elif policy == "binpack" and job.numa_bind:
        slates.sort(key=lambda s: (-s.card.numa, s.score))
    elif policy == "binpack":
        slates.sort(key=lambda s: (s.score, s.card.numa))
    elif job.numa_bind:
        slates.sort(key=lambda s: (s.card.numa, -s.score))
    else:
        slates.sort(key=lambda s: (-s.score, s.card.numa))


_CHAIN_KEYS = {
    "binpack": lambda slate: slate.score,
    "spread": lambda slate: -slate.score,
    "numa": lambda slate: slate.card.numa,
}


def _sort_by_chain(slates: list[_Slate], job: _Job) -> None:
    """lessByChain, HAMi 2.10 pkg/scheduler/policy/gpu_policy.go."""
    named = [part.strip() for part in job.gpu_policy.split(",")]
    chain = [name for name in dict.fromkeys(named) if name in _CHAIN_KEYS] or ["spread"]
    if job.numa_bind and chain[0] != "numa":
        chain = ["numa", *(name for name in chain if name != "numa")]
    slates.sort(key=lambda s: (*(_CHAIN_KEYS[name](s) for name in chain), s.card.index))


def _listed(annotations: Mapping[str, str], key: str) -> list[str]:
    """The entries of an annotation's list; none where it is absent or blank, which is no constraint."""
    text = annotations.get(key) or ""
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _type_allowed(card: Card, annotations: Mapping[str, str]) -> bool:
    """CheckType, HAMi 2.10 pkg/device/devices.go; checkType, pkg/device/nvidia/device.go."""

    def among(key: str) -> bool:
        return any(part and part.upper() in card.type.upper() for part in _listed(annotations, key))

    if _listed(annotations, POD_USE_TYPE) and not among(POD_USE_TYPE):
        return False
    if POD_MODE in annotations and card.mode not in annotations[POD_MODE]:
        return False
    return not among(POD_NOUSE_TYPE)


def _uuid_allowed(card: Card, annotations: Mapping[str, str]) -> bool:
    """CheckUUID, HAMi 2.10 pkg/device/devices.go."""
    wanted = _listed(annotations, POD_USE_UUID)
    return (not wanted or card.uuid in wanted) and card.uuid not in _listed(annotations, POD_NOUSE_UUID)


def _is_true(text: str) -> bool:
    return text in ("1", "t", "T", "true", "TRUE", "True")


def _closed(card: Card, node: Node, annotations: Mapping[str, str]) -> str:
    """Why a card is out of the question for a pod whatever is free on it, or nothing."""
    if not card.healthy:
        return CARD_NOT_HEALTHY
    if card.uuid in node.cordoned:
        return CARD_CORDONED
    return "" if _type_allowed(card, annotations) else CARD_TYPE_MISMATCH


def _occupied(slate: _Slate, share: Share, job: _Job, quota_fits: bool) -> str:
    """Why a share does not go on a card as it is taken now, or nothing; the first reason counts."""
    card = slate.card
    checks = (
        (not _uuid_allowed(card, job.request.annotations), CARD_UUID_MISMATCH),
        (card.slots <= slate.used, CARD_SLOTS_EXHAUSTED),
        (job.names_policy("mutex") and slate.used > 0, EXCLUSIVE_CONFLICT),
        (not quota_fits, QUOTA_NOT_FIT),
        (card.memory_mib - slate.memory_mib < share.memory_mib, CARD_INSUFFICIENT_MEMORY),
        (card.cores - slate.cores < share.cores, CARD_INSUFFICIENT_CORE),
        (card.cores == 100 == share.cores and slate.used > 0, EXCLUSIVE_CONFLICT),
        (card.cores != 0 and slate.cores == card.cores and share.cores == 0, CARD_COMPUTE_EXHAUSTED),
        (card.mode == MODE_MIG, CARD_MIG_INFEASIBLE),
    )
    return next((reason for hit, reason in checks if hit), "")


def _quota_fits(job: _Job, written: Sequence[tuple[Share, ...]], shares: Sequence[Share], share: Share) -> bool:
    """Whether the pod's shares so far and one more are within the quota.

    fitQuota, HAMi 2.10 pkg/device/nvidia/device.go.
    """
    if job.quota is None:
        return True
    usage = usage_of((*written, (*shares, share)), len(job.request.init)).values()
    return job.quota.fits(sum(u.memory_mib for u in usage), sum(u.cores for u in usage))


def _fit_container(
    node: Node, slates: Sequence[_Slate], request: Request, job: _Job, written: Sequence[tuple[Share, ...]]
) -> tuple[Share, ...]:
    """Choose the cards of one container, from the last in order. Fit, HAMi 2.10 pkg/device/nvidia/device.go."""
    topology = job.names_policy("topology-aware")
    cores = min(request.cores, 100)
    reasons: dict[str, int] = {}
    shares: list[Share] = []
    numa = -1
    for slate in reversed(slates):
        reason = _closed(slate.card, node, job.request.annotations)
        if not reason:
            if job.numa_bind and slate.card.numa != numa:
                if shares and not topology:
                    reasons[NUMA_NOT_FIT] = reasons.get(NUMA_NOT_FIT, 0) + len(shares)
                numa, shares = slate.card.numa, []
            share = Share(slate.card.uuid, DEVICE_NVIDIA, request.memory_of(slate.card), cores)
            reason = _occupied(slate, share, job, _quota_fits(job, written, shares, share))
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        shares.append(share)
        if len(shares) == request.count and not topology:
            return tuple(shares)
    if topology and len(shares) >= request.count:
        return _best_linked(shares, request.count, node.pair_scores)
    if shares:
        reasons[CARDS_INSUFFICIENT] = len(shares)
    raise _UnfitError(", ".join(sorted(f"{count}/{len(slates)} {reason}" for reason, count in reasons.items())))


def _best_linked(shares: Sequence[Share], count: int, scores: Mapping[str, Mapping[str, int]]) -> tuple[Share, ...]:
    """Of many cards the best linked ones, of one the worst linked.

    computeBestCombination, computeWorstSingleCard, HAMi 2.10 pkg/device/nvidia/device.go.
    """

    def link(one: Share, other: Share) -> int:
        return scores.get(one.uuid, {}).get(other.uuid, 0)

    if len(shares) == count:
        return tuple(shares)
    if count == 1:
        return (min(shares, key=lambda one: sum(link(one, other) for other in shares if other.uuid != one.uuid)),)
    return max(
        itertools.combinations(shares, count),
        key=lambda chosen: sum(link(a, b) for a, b in itertools.combinations(chosen, 2)),
    )


def _take(node: Node, slates: list[_Slate], request: Request, job: _Job, written: list[tuple[Share, ...]]) -> None:
    """Give one container its shares. fitInDevices, HAMi 2.10 pkg/scheduler/score.go."""
    for slate in slates:
        slate.score = _score_card(slate, request, job.weights)
    _sort_cards(slates, job)
    nvidia = [slate for slate in slates if "nvidia" in slate.card.type.lower()]
    if request.count > len(nvidia) and not _asks_mig(nvidia, job):
        raise _UnfitError(NODE_INSUFFICIENT_DEVICE)
    shares = _fit_container(node, nvidia, request, job, written)
    by_uuid = {slate.card.uuid: slate for slate in slates}
    for share in shares:
        slate = by_uuid[share.uuid]
        slate.used += 1
        slate.memory_mib += share.memory_mib
        slate.cores += share.cores
    written.append(shares)


def _asks_mig(slates: Sequence[_Slate], job: _Job) -> bool:
    mode = job.request.annotations.get(POD_MODE, MODE_MIG)
    return MODE_MIG in mode and any(slate.card.mode == MODE_MIG for slate in slates)


def _slates(node: Node) -> list[_Slate]:
    usages = ((card, node.usage.get(card.uuid, Usage())) for card in node.cards)
    return [_Slate(card, usage.slots, usage.memory_mib, usage.cores) for card, usage in usages]


def _fit_node(node: Node, job: _Job) -> tuple[float, Allocation]:
    """Score a node and choose its cards. scoreNode, HAMi 2.10 pkg/scheduler/score.go.

    Each init container is judged on the node as it is, the others one after the other.
    """
    slates = _slates(node)
    score = _score_node(slates)
    # A container without cards leaves an empty entry only where the entries' key, NVIDIA, is a card's type.
    padded = any(slate.card.type == DEVICE_NVIDIA for slate in slates)
    init: list[tuple[Share, ...]] = []
    for request in job.request.init:
        if request.count:
            _take(node, _slates(node), request, job, init)
        elif padded:
            init.append(())
    written: list[tuple[Share, ...]] = []
    for request in job.request.containers:
        if request.count:
            _take(node, slates, request, job, written)
        elif padded:
            written.append(())
    return score, (*init, *written)


# --- the scheduler's choice --------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """Where a pod goes: the node, and the shares of each container, init containers first.

    ties are all nodes that score as well (HAMi takes any of them, this choice is the first by
    name), scores those of all nodes that fit, failed the reasons of those that do not.
    written is the allocation as 2.10 writes it into the annotation: containers without cards have no
    entry, because allocateAppContainers (pkg/scheduler/score.go) keeps theirs under the card's type,
    which is not the key that is written; 2.9 kept them.
    """

    node: str
    allocation: Allocation
    written: Allocation
    ties: tuple[str, ...]
    scores: Mapping[str, float]
    failed: Mapping[str, str]


@dataclass(frozen=True)
class Refusal:
    """That a pod goes nowhere, with the reason of each node, such as 1/2 CardInsufficientCore."""

    failed: Mapping[str, str]


def place(
    request: PodRequest, nodes: Sequence[Node], rules: Rules = Rules(), quota: Quota | None = None
) -> Placement | Refusal:
    """Choose a node and cards for a pod that asks for cards. Filter, HAMi 2.10 pkg/scheduler/scheduler.go.

    Raises PlacementError where the pod's scoring weights cannot be read.
    """
    job = _job(request, rules, quota)
    fits: dict[str, tuple[float, Allocation]] = {}
    failed: dict[str, str] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        if not node.cards:
            failed[node.name] = NODE_UNREGISTERED
            continue
        try:
            fits[node.name] = _fit_node(node, job)
        except _UnfitError as unfit:
            failed[node.name] = str(unfit)
    if not fits:
        return Refusal(failed)
    scores = {name: score for name, (score, _written) in fits.items()}
    spread = request.annotations.get(POD_NODE_POLICY, rules.node_policy) == "spread"
    best = min(scores.values()) if spread else max(scores.values())
    ties = tuple(name for name, score in scores.items() if score == best)
    written = fits[ties[0]][1]
    return Placement(ties[0], _aligned(written, request), written, ties, scores, failed)


def _aligned(written: Allocation, request: PodRequest) -> Allocation:
    entries = iter([entry for entry in written if entry])
    return tuple(next(entries) if asked.count else () for asked in request.all)


def _job(request: PodRequest, rules: Rules, quota: Quota | None) -> _Job:
    annotations = request.annotations
    return _Job(
        request=request,
        gpu_policy=annotations.get(POD_GPU_POLICY, rules.gpu_policy),
        numa_bind=_is_true(annotations.get(POD_NUMA_BIND, "")),
        weights=parse_weights(annotations[POD_SCORING_WEIGHTS]) if POD_SCORING_WEIGHTS in annotations else (1, 1, 1),
        quota=quota,
    )


def parse_weights(text: str) -> tuple[int, int, int]:
    """Read hami.io/device-scoring-weights, such as slot=1,core=1,memory=3.

    ParseDeviceScoringWeights, HAMi 2.10 pkg/util/device_scoring_weights.go.
    """

    def problem(what: str) -> PlacementError:
        return PlacementError(f'invalid {POD_SCORING_WEIGHTS} annotation "{text}": {what}')

    parts = text.split(",")
    if len(parts) != 3:
        raise problem("expected slot, core, and memory weights")
    weights: dict[str, int] = {}
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise problem("expected key=value entries")
        if key in weights:
            raise problem(f'duplicate "{key}" weight')
        if not re.fullmatch(r"[+-]?[0-9]+", value):
            raise problem(f'"{key}" weight must be an integer')
        if int(value) < 0:
            raise problem(f'"{key}" weight must not be negative')
        if key not in ("slot", "core", "memory"):
            raise problem(f'unknown weight "{key}"')
        weights[key] = int(value)
    if not any(weights.values()):
        raise problem("at least one weight must be positive")
    return weights["slot"], weights["core"], weights["memory"]


# --- what people are told ----------------------------------------------------------------


def reason_names(reason: str) -> tuple[str, ...]:
    """The names in a node's reason. ParseReason, HAMi 2.10 pkg/device/common/common.go."""
    return tuple(re.findall(r"(?:^|, )[0-9]+/[0-9]+ (\w+)", reason))


def refusal_messages(failed: Mapping[str, str], candidates: int) -> tuple[str, ...]:
    """The texts of the FilteringFailed events: one for each reason, then the sum of all nodes.

    recordFilteringFailures, Filter, HAMi 2.10 pkg/scheduler.
    """
    by_reason: dict[str, list[str]] = {}
    for node, reason in sorted(failed.items()):
        for name in reason_names(reason):
            by_reason.setdefault(name, []).append(node)
    messages = [f"{len(names)} nodes {name}({','.join(names)})" for name, names in by_reason.items()]
    return (*messages, f"no available node, {candidates} nodes do not meet")


def success_message(placement: Placement, candidates: int) -> str:
    """The text of the FilteringSucceed event. genSuccessMsg, HAMi 2.10 pkg/scheduler/scheduler.go."""
    ranked = sorted(placement.scores.items(), key=lambda item: (item[0] == placement.node, item[0]))
    scores = ",".join(f"{name}:{score:.2f}" for name, score in ranked)
    fit = len(placement.scores)
    return f"find fit node({placement.node}), {candidates - fit} nodes not fit, {fit} nodes fit({scores})"
