# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""HAMi's placement rules as pure functions: what its webhook makes of a pod, and where its scheduler puts it.

The rules are those of HAMi 2.10 for NVIDIA cards, and those of 2.9 where Rules.version says so; each docstring
names the file that a rule comes from, and what 2.9 does otherwise. Kept with purpose are also its surprises
(docs/reference/placement.md lists them), because the schedulers that these functions imitate and predict have
them. MIG placements are not modelled: a card in MIG mode takes nothing.
No input or output, no clock. Memory in MiB, compute in percent of one card.
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Decimal
from enum import Enum
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._gosort import go_sort
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

# Why a card takes no share: HAMi 2.10 pkg/device/common/common.go; 2.9 has no cordon and other words for MIG.
CARD_TYPE_MISMATCH = "CardTypeMismatch"
CARD_UUID_MISMATCH = "CardUuidMismatch"
CARD_SLOTS_EXHAUSTED = "CardTimeSlicingExhausted"
CARD_COMPUTE_EXHAUSTED = "CardComputeUnitsExhausted"
CARD_INSUFFICIENT_MEMORY = "CardInsufficientMemory"
CARD_INSUFFICIENT_CORE = "CardInsufficientCore"
CARD_NOT_HEALTHY = "CardNotHealth"
CARD_CORDONED = "CardCordoned"
CARD_MIG_INFEASIBLE = "CardMigTopologyInfeasible"
CARD_NO_CUSTOM_RULE = "CardNotFoundCustomFilterRule"
NUMA_NOT_FIT = "NumaNotFit"
EXCLUSIVE_CONFLICT = "ExclusiveDeviceAllocateConflict"
CARDS_INSUFFICIENT = "AllocatedCardsInsufficientRequest"
QUOTA_NOT_FIT = "ResourceQuotaNotFit"
NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice"
NODE_UNREGISTERED = "node unregistered"
NODE_UNFIT = "NodeUnfitPod"

_INT32_MAX = 2**31 - 1
_INT64_MAX = Decimal(2**63 - 1)


class PlacementError(ValueError):
    """A pod that the rules cannot judge, such as one with malformed scoring weights."""


class Version(Enum):
    """Whose rules count; Version("2.9") reads one."""

    V2_9 = "2.9"
    V2_10 = "2.10"


@dataclass(frozen=True)
class Rules:
    """HAMi's version, and what its scheduler was configured with; the defaults are those of HAMi's chart."""

    version: Version = Version.V2_10
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

    def by(self, version: Version) -> Quota:
        """The quota as a version reads it: for 2.9 a limit of 0 is no limit (FitQuota, pkg/device/quota.go)."""
        if version is Version.V2_10:
            return self
        return replace(self, memory_mib=self.memory_mib or None, cores=self.cores or None)


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
    """Read a Kubernetes quantity such as 8k, 3Gi, 500m or 1e3; PlacementError names any other text.

    Kubernetes makes 2^63 - 1 of what is more (ParseQuantity, k8s.io/apimachinery pkg/api/resource/quantity.go).
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise PlacementError(f"{text!r} is no Kubernetes quantity")
    number, exponent, suffix = match.groups()
    try:
        amount = Decimal(number + exponent) if exponent else Decimal(number) * _SUFFIXES[suffix or ""]
    except ArithmeticError as error:
        raise PlacementError(f"{text!r} is no Kubernetes quantity") from error
    return max(min(amount, _INT64_MAX), -_INT64_MAX)


def _asked(container: Mapping[str, Any], resource: str) -> Decimal | None:
    resources = container.get("resources") or {}
    for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
        if resource in amounts:
            return parse_quantity(amounts[resource])
    return None


def _asked_integer(container: Mapping[str, Any], resource: str) -> int | None:
    """An amount that is a whole number within 64 bits, as Kubernetes' AsInt64 has it."""
    amount = _asked(container, resource)
    return None if amount is None or amount != int(amount) or abs(amount) == _INT64_MAX else int(amount)


def _int32(number: int) -> int:
    """Go's int32(): HAMi cuts amounts off without a look at what is lost."""
    return (number + _INT32_MAX + 1) % 2**32 - _INT32_MAX - 1


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

        In 2.10 a memory that is no number of MiB within 32 bits, such as 3Gi, makes the container ask
        for nothing: it then passes the filter and gets no card. In 2.9 the number is cut off to 32 bits,
        and where that is not above zero (3Gi and 4Gi, but not 5Gi) the share is one without any memory.
        GenerateResourceRequests, HAMi 2.9 and 2.10 pkg/device/nvidia/device.go.
        """
        count = _int32(_asked_integer(container, RESOURCE_COUNT) or 0)
        if count <= 0:
            return cls()
        memory_mib = _asked_integer(container, RESOURCE_MEMORY) or 0
        if rules.version is Version.V2_10 and _asked(container, RESOURCE_MEMORY) is not None:
            whole = _asked_integer(container, RESOURCE_MEMORY) is not None
            if not whole or not 0 <= memory_mib <= _INT32_MAX:
                return cls()
        memory_percent = _asked_percent(container, rules.version)
        if memory_percent is None and memory_mib == 0:
            memory_mib = rules.default_memory_mib
            memory_percent = 100 if memory_mib == 0 else None
        cores = _asked_integer(container, RESOURCE_CORES)
        cores = rules.default_cores if cores is None else _int32(cores)
        return cls(count, _int32(memory_mib), memory_percent, cores)

    def memory_of(self, card: Card) -> int:
        """The memory that this request takes of a card, in MiB. Fit, HAMi 2.10 pkg/device/nvidia/device.go."""
        if self.memory_mib or self.memory_percent is None:
            return max(self.memory_mib, 0)
        return int(_int32(card.memory_mib * self.memory_percent) / 100)


def _asked_percent(container: Mapping[str, Any], version: Version) -> int | None:
    """The part of a card's memory that is asked for; 101 is HAMi's word for none."""
    percent = _asked_integer(container, RESOURCE_MEMORY_PERCENT)
    if percent is None:
        return None
    if version is Version.V2_9:
        percent = _int32(percent)
        return None if percent == 101 else percent
    return min(percent, 100) if percent > 0 else None


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
    """What HAMi's webhook makes of a new pod. Handle, HAMi 2.9 and 2.10 pkg/scheduler/webhook.go.

    2.9 passes over init and privileged containers, where 2.10 completes the former and denies a
    pod with the latter; and it takes any percentage.
    """
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
    if rules.version is Version.V2_9:
        containers = [container for container in spec["containers"] if not _privileged(container)]
    else:
        containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    asks = False
    for container in containers:
        if rules.version is Version.V2_10:
            _check_percentage(container)
        asks = _mutate_container(container, spec, rules) or asks
    privileged = [container for container in containers if _privileged(container)]
    if privileged and asks:
        raise _DeniedError(f"container {privileged[0].get('name')} is privileged")
    if asks and rules.scheduler_name:
        spec["schedulerName"] = rules.scheduler_name
        if spec.get("nodeName"):
            raise _DeniedError("pod has node assigned")
    if quota is not None and not _quota_admits(pod, rules, quota):
        raise _DeniedError("exceeding resource quota")


def _names_other_scheduler(name: str, rules: Rules) -> bool:
    if not name or (name == "default-scheduler" and rules.overwrite_default_scheduler):
        return False
    return not rules.scheduler_name or name != rules.scheduler_name


def _privileged(container: Mapping[str, Any]) -> bool:
    return bool((container.get("securityContext") or {}).get("privileged"))


def _check_percentage(container: Mapping[str, Any]) -> None:
    """Deny what is no part of a card. validateMemoryPercentage, HAMi 2.10 pkg/device/nvidia/device.go."""
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


def _quota_admits(pod: Mapping[str, Any], rules: Rules, quota: Quota) -> bool:
    """Whether a quota admits a pod: the sum of its containers, or the largest init container.

    2.9 counts containers of exactly one card, no init containers, and no defaults or percentages;
    with the namespace above its quota it refuses every pod, 2.10 those that ask for cards.
    fitResourceQuota, HAMi 2.9 and 2.10 pkg/scheduler/webhook.go.
    """
    if rules.version is Version.V2_9:
        single = [c for c in pod["spec"]["containers"] if _asked_integer(c, RESOURCE_COUNT) == 1]
        memory_mib, cores = (
            sum(_asked_integer(container, resource) or 0 for container in single)
            for resource in (RESOURCE_MEMORY, RESOURCE_CORES)
        )
        return quota.by(rules.version).fits(memory_mib, cores)
    request = PodRequest.of(pod, rules)
    memory_mib = max(
        [sum(r.memory_mib * r.count for r in request.containers), *(r.memory_mib * r.count for r in request.init)]
    )
    cores = max([sum(r.cores * r.count for r in request.containers), *(r.cores * r.count for r in request.init)])
    return (memory_mib == 0 and cores == 0) or quota.fits(memory_mib, cores)


# --- what a pod takes --------------------------------------------------------------------


def usage_of(
    written: Allocation, init_count: int, init_finished: bool = False, version: Version = Version.V2_10
) -> dict[str, Usage]:
    """What a pod takes of each card, by UUID, from its hami.io/vgpu-devices-allocated.

    The containers' sum or the largest init container, whichever is more; once all init
    containers have succeeded, the sum alone. The first init_count entries count as init
    containers, also where 2.10 left out entries before them (see Fit). 2.9 adds up everything.
    CollapseInitContainerUsage, AppContainersOnlyDeviceUsage, HAMi 2.10 pkg/device/initContainer.go;
    getNodesUsage, HAMi 2.9 pkg/scheduler/scheduler.go.
    """
    if version is Version.V2_9:
        return add_usage({share.uuid: _usage(share)} for container in written for share in container)
    peak: dict[str, Usage] = {}
    total: dict[str, Usage] = {}
    for index, container in enumerate(written):
        for share in container:
            if index >= init_count:
                total[share.uuid] = _plus(total.get(share.uuid, Usage()), _usage(share))
            elif not init_finished:
                peak[share.uuid] = _largest(peak.get(share.uuid, Usage()), _usage(share))
    return {uuid: _largest(peak.get(uuid, Usage()), total.get(uuid, Usage())) for uuid in sorted({*peak, *total})}


def _usage(share: Share) -> Usage:
    return Usage(1, share.memory_mib, share.cores)


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


@dataclass(frozen=True)
class Fit:
    """That a node takes a pod: its score before the pod, and the shares of each container, init containers first.

    written is the allocation as HAMi writes it into the annotation: in 2.10 containers without cards have
    no entry, because allocateAppContainers (pkg/scheduler/score.go) keeps theirs under the card's type,
    which is not the key that is written; 2.9 keeps them.
    """

    score: float
    allocation: Allocation
    written: Allocation


@dataclass(frozen=True)
class _Choice:
    """Which cards a pod wants and which not; what is None does not matter."""

    wanted: tuple[str, ...] | None
    unwanted: tuple[str, ...] | None

    @classmethod
    def of(cls, annotations: Mapping[str, str], use: str, no_use: str, version: Version) -> _Choice:
        """Read two annotations, each a list with commas.

        In 2.10 spaces and empty entries do not count; in 2.9 they do: an empty entry is part of every type.
        CheckType, CheckUUID, HAMi 2.10 pkg/device/devices.go; checkGPUtype, HAMi 2.9 pkg/device/nvidia/device.go.
        """

        def listed(key: str) -> tuple[str, ...] | None:
            text = annotations.get(key)
            if text is None or version is Version.V2_9:
                return None if text is None else tuple(text.split(","))
            return tuple(part.strip() for part in text.split(",") if part.strip()) if text.strip() else None

        return cls(listed(use), listed(no_use))


@dataclass(frozen=True)
class _Job:
    """One pod to be judged: what it asks for, by which rules."""

    request: PodRequest
    version: Version
    gpu_policy: str
    topology: bool
    mutex: bool
    numa_bind: bool
    weights: tuple[float, float, float]
    types: _Choice
    uuids: _Choice
    mode: str | None
    quota: Quota | None

    @classmethod
    def of(cls, request: PodRequest, rules: Rules, quota: Quota | None) -> _Job:
        annotations, version = request.annotations, rules.version
        policy = annotations.get(POD_GPU_POLICY, rules.gpu_policy)
        named = [part.strip() for part in policy.split(",")] if version is Version.V2_10 else [policy]
        weights = annotations.get(POD_SCORING_WEIGHTS) if version is Version.V2_10 else None
        slot, core, memory = (1, 1, 1) if weights is None else parse_weights(weights)
        return cls(
            request=request,
            version=version,
            gpu_policy=policy,
            topology="topology-aware" in named,
            mutex="mutex" in named and version is Version.V2_10,
            numa_bind=annotations.get(POD_NUMA_BIND, "") in ("1", "t", "T", "true", "TRUE", "True"),
            weights=(_single(slot), _single(core), _single(memory)),
            types=_Choice.of(annotations, POD_USE_TYPE, POD_NOUSE_TYPE, version),
            uuids=_Choice.of(annotations, POD_USE_UUID, POD_NOUSE_UUID, version),
            mode=annotations.get(POD_MODE),
            quota=None if quota is None else quota.by(version),
        )


class _UnfitError(Exception):
    """A node does not fit; the message is HAMi's reason."""


@dataclass
class _Slate:
    """A card and what is taken of it while one pod is being judged."""

    card: Card
    used: int
    memory_mib: int
    cores: int
    score: float = 0.0


def _slates(node: Node) -> list[_Slate]:
    usages = ((card, node.usage.get(card.uuid, Usage())) for card in node.cards)
    return [_Slate(card, usage.slots, usage.memory_mib, usage.cores) for card, usage in usages]


_FLOAT32 = struct.Struct("f")


def _single(number: float) -> float:
    """Round to 32 bits as HAMi's float32 does, so that scores tie where HAMi's tie."""
    rounded: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
    return rounded


@functools.lru_cache(maxsize=1 << 16)
def _ratio(part: int, whole: int) -> float:
    # Numbers of up to 24 bits are what they are in 32-bit floats.
    if part >= 1 << 24 or whole >= 1 << 24:
        return _single(_single(part) / _single(whole))
    return _single(part / whole)


def _score_card(slate: _Slate, request: Request, weights: tuple[float, float, float]) -> float:
    """How full a card is. ComputeScore, HAMi 2.9 and 2.10 pkg/scheduler/policy/gpu_policy.go.

    The request counts only where a card's type is exactly NVIDIA, which no plugin registers.
    """
    card = slate.card
    used, memory_mib, cores = slate.used, slate.memory_mib, slate.cores
    if card.type == DEVICE_NVIDIA:
        percent = request.memory_percent
        used += 1
        cores += request.cores
        memory_mib += card.memory_mib * percent // 100 if percent else request.memory_mib
    return _weighed(used, card.slots, cores, card.cores, memory_mib, card.memory_mib, weights)


@functools.lru_cache(maxsize=1 << 16)  # a card changes less often than its node is looked at
def _weighed(
    used: int,
    slots: int,
    cores: int,
    all_cores: int,
    memory_mib: int,
    all_mib: int,
    weights: tuple[float, float, float],
) -> float:
    if not (slots and all_cores and all_mib):
        return 0.0
    slot, core, memory = weights
    total = _single(slot * _ratio(used, slots))
    total = _single(total + _single(core * _ratio(cores, all_cores)))
    total = _single(total + _single(memory * _ratio(memory_mib, all_mib)))
    return _single(10.0 * total)


def _score_node(slates: Sequence[_Slate]) -> float:
    whole = [0, 0, 0]
    used = [0, 0, 0]
    for slate in slates:
        card = slate.card
        whole[0] += card.slots
        whole[1] += card.memory_mib
        whole[2] += card.cores
        used[0] += slate.used
        used[1] += slate.memory_mib
        used[2] += slate.cores
    return node_score(Usage(*used), Usage(*whole))


def node_score(used: Usage, whole: Usage) -> float:
    """How full a node is, from what is taken of all its cards and what they have, whatever the pod.

    Of the nodes that fit, binpack takes the highest, spread the lowest.
    ComputeDefaultScore, HAMi 2.10 pkg/scheduler/policy/node_policy.go.
    """
    if not (whole.slots and whole.cores and whole.memory_mib):
        return 0.0
    total = _ratio(used.slots, whole.slots)
    total = _single(total + _ratio(used.cores, whole.cores))
    total = _single(total + _ratio(used.memory_mib, whole.memory_mib))
    return _single(10.0 * total)


def _sort_cards(slates: list[_Slate], job: _Job) -> None:
    """Order cards so that the best is last. Less, HAMi 2.10 pkg/scheduler/policy/gpu_policy.go.

    2.9 knows binpack and (for any other word) spread, and groups by NUMA node always.
    """
    policy, numa_first = job.gpu_policy, job.numa_bind
    if job.version is Version.V2_9:
        policy, numa_first = "binpack" if policy == "binpack" else "spread", True
    if "," in policy or policy == "numa":
        _sort_by_chain(slates, job)
    elif policy == "mutex":
        go_sort(slates, lambda s: (-s.used, s.card.numa))
    elif policy == "binpack" and numa_first:
        go_sort(slates, lambda s: (-s.card.numa, s.score))
    elif policy == "binpack":
        go_sort(slates, lambda s: (s.score, s.card.numa))
    elif numa_first:
        go_sort(slates, lambda s: (s.card.numa, -s.score))
    else:
        go_sort(slates, lambda s: (-s.score, s.card.numa))


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
    go_sort(slates, lambda s: (*(_CHAIN_KEYS[name](s) for name in chain), s.card.index))


def _type_allowed(card: Card, job: _Job) -> bool:
    """CheckType, HAMi 2.10 pkg/device/devices.go; checkType, HAMi 2.9 and 2.10 pkg/device/nvidia/device.go."""
    if job.mode is not None and card.mode not in job.mode:
        return False
    name = card.type.upper()
    if job.types.wanted is not None and not any(part.upper() in name for part in job.types.wanted):
        return False
    return not any(part.upper() in name for part in job.types.unwanted or ())


def _uuid_allowed(card: Card, job: _Job) -> bool:
    """CheckUUID, HAMi 2.9 and 2.10 pkg/device/devices.go; with UUIDs to use, 2.9 overlooks those not to use."""
    wanted, unwanted = job.uuids.wanted, job.uuids.unwanted or ()
    if wanted is None:
        return card.uuid not in unwanted
    return card.uuid in wanted and (card.uuid not in unwanted or job.version is Version.V2_9)


def _closed(card: Card, node: Node, job: _Job) -> str:
    """Why a card is out of the question for a pod whatever is free on it, or nothing.

    Fit, HAMi 2.10 pkg/device/nvidia/device.go; 2.9 does not know cordons.
    """
    if not card.healthy:
        return CARD_NOT_HEALTHY
    if card.uuid in node.cordoned and job.version is Version.V2_10:
        return CARD_CORDONED
    return "" if _type_allowed(card, job) else CARD_TYPE_MISMATCH


def _occupied(
    slate: _Slate, share: Share, job: _Job, written: Sequence[tuple[Share, ...]], shares: Sequence[Share]
) -> str:
    """Why a share does not go on a card as it is taken now, or nothing; the first reason counts.

    written is what the pod's containers before have got, shares what this one has got so far.

    Fit, HAMi 2.9 and 2.10 pkg/device/nvidia/device.go.
    """
    card = slate.card
    if not _uuid_allowed(card, job):
        return CARD_UUID_MISMATCH
    if card.slots <= slate.used:
        return CARD_SLOTS_EXHAUSTED
    if job.mutex and slate.used > 0:
        return EXCLUSIVE_CONFLICT
    if job.quota is not None and not _quota_fits(job.quota, job, (*written, (*shares, share))):
        return QUOTA_NOT_FIT
    if card.memory_mib - slate.memory_mib < share.memory_mib:
        return CARD_INSUFFICIENT_MEMORY
    if card.cores - slate.cores < share.cores:
        return CARD_INSUFFICIENT_CORE
    if card.cores == 100 == share.cores and slate.used > 0:
        return EXCLUSIVE_CONFLICT
    if card.cores != 0 and slate.cores == card.cores and share.cores == 0:
        return CARD_COMPUTE_EXHAUSTED
    if card.mode == MODE_MIG:
        return CARD_MIG_INFEASIBLE if job.version is Version.V2_10 else CARD_NO_CUSTOM_RULE
    return ""


def _quota_fits(quota: Quota, job: _Job, taken: Allocation) -> bool:
    """Whether what a pod would take so far is within the quota.

    fitQuota, HAMi 2.9 and 2.10 pkg/device/nvidia/device.go.
    """
    usage = usage_of(taken, len(job.request.init), version=job.version).values()
    return quota.fits(sum(u.memory_mib for u in usage), sum(u.cores for u in usage))


def _choose_cards(
    node: Node, slates: Sequence[_Slate], request: Request, job: _Job, written: Sequence[tuple[Share, ...]]
) -> tuple[Share, ...]:
    """Choose the cards of one container, from the last in order.

    In 2.9 the cards that were given up count as one in the reasons, however many they are.
    Fit, HAMi 2.9 and 2.10 pkg/device/nvidia/device.go.
    """
    cores = min(request.cores, 100)
    reasons: dict[str, int] = {}
    shares: list[Share] = []
    numa = -1
    for slate in reversed(slates):
        reason = _closed(slate.card, node, job)
        if not reason:
            if job.numa_bind and slate.card.numa != numa:
                if shares and not job.topology:
                    reasons[NUMA_NOT_FIT] = reasons.get(NUMA_NOT_FIT, 0) + _given_up(shares, job)
                numa, shares = slate.card.numa, []
            share = Share(slate.card.uuid, DEVICE_NVIDIA, request.memory_of(slate.card), cores)
            reason = _occupied(slate, share, job, written, shares)
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        shares.append(share)
        if len(shares) == request.count and not job.topology:
            return tuple(shares)
    if job.topology and len(shares) >= request.count:
        return _best_linked(shares, request.count, node.pair_scores, job.version)
    if shares:
        reasons[CARDS_INSUFFICIENT] = _given_up(shares, job)
    raise _UnfitError(", ".join(sorted(f"{count}/{len(slates)} {reason}" for reason, count in reasons.items())))


def _given_up(shares: Sequence[Share], job: _Job) -> int:
    return 1 if job.version is Version.V2_9 else len(shares)


def _best_linked(
    shares: Sequence[Share], count: int, scores: Mapping[str, Mapping[str, int]], version: Version
) -> tuple[Share, ...]:
    """Of many cards the best linked ones, of one the worst linked.

    Where no two of them are linked 2.9 takes none at all: the pod goes on without cards.
    computeBestCombination, computeWorstSingleCard, HAMi 2.9 and 2.10 pkg/device/nvidia/device.go.
    """

    def link(one: Share, other: Share) -> int:
        return scores.get(one.uuid, {}).get(other.uuid, 0)

    def links(chosen: Sequence[Share]) -> int:
        return sum(link(one, other) for one, other in itertools.combinations(chosen, 2))

    if len(shares) == count:
        return tuple(shares)
    if count == 1:
        return (min(shares, key=lambda one: sum(link(one, other) for other in shares if other.uuid != one.uuid)),)
    best = max(itertools.combinations(shares, count), key=links)
    return best if version is Version.V2_10 or links(best) > 0 else ()


def _take(
    node: Node, slates: list[_Slate], request: Request, job: _Job, written: Sequence[tuple[Share, ...]]
) -> tuple[Share, ...]:
    """Give one container its shares. fitInDevices, HAMi 2.9 and 2.10 pkg/scheduler/score.go."""
    for slate in slates:
        slate.score = _score_card(slate, request, job.weights)
    _sort_cards(slates, job)
    if job.version is Version.V2_9:
        nvidia = [slate for slate in slates if DEVICE_NVIDIA in slate.card.type]
        enough = request.count <= len(slates)
    else:
        nvidia = [slate for slate in slates if "nvidia" in slate.card.type.lower()]
        enough = request.count <= len(nvidia) or _asks_mig(nvidia, job)
    if not enough:
        raise _UnfitError(NODE_INSUFFICIENT_DEVICE)
    shares = _choose_cards(node, nvidia, request, job, written)
    by_uuid = {slate.card.uuid: slate for slate in slates}
    for share in shares:
        slate = by_uuid[share.uuid]
        slate.used += 1
        slate.memory_mib += share.memory_mib
        slate.cores += share.cores
    return shares


def _asks_mig(slates: Sequence[_Slate], job: _Job) -> bool:
    mode = MODE_MIG if job.mode is None else job.mode
    return MODE_MIG in mode and any(slate.card.mode == MODE_MIG for slate in slates)


def fit_node(request: PodRequest, node: Node, rules: Rules = Rules(), quota: Quota | None = None) -> Fit | str:
    """Judge one node for a pod: what it would get there, or the reason (such as 1/2 CardInsufficientCore).

    Raises PlacementError where the pod's scoring weights cannot be read.
    """
    return _judge(node, _Job.of(request, rules, quota))


def judge_for(request: PodRequest, rules: Rules = Rules(), quota: Quota | None = None) -> Callable[[Node], Fit | str]:
    """fit_node() for many nodes and one pod, which is read once."""
    job = _Job.of(request, rules, quota)
    return lambda node: _judge(node, job)


def _judge(node: Node, job: _Job) -> Fit | str:
    if not node.cards:
        return NODE_UNREGISTERED
    try:
        return _fit(node, job)
    except _UnfitError as unfit:
        return str(unfit)


def _fit(node: Node, job: _Job) -> Fit:
    """Score a node and choose its cards, or raise _UnfitError.

    2.10 judges each init container on the node as it is, and the others one after the other (scoreNode);
    2.9 makes no difference between the two (calcScore). HAMi pkg/scheduler/score.go.
    """
    request = job.request
    slates = _slates(node)
    score = _score_node(slates)
    # A container without cards leaves an empty entry in 2.10 only where the entries' key, NVIDIA, is a card's type.
    keeps_empty = job.version is Version.V2_9 or any(slate.card.type == DEVICE_NVIDIA for slate in slates)

    def fit_all(containers: Iterable[Request], alone: bool) -> list[tuple[Share, ...]]:
        allocation: list[tuple[Share, ...]] = []
        for asked in containers:
            written = allocation if keeps_empty else [shares for shares in allocation if shares]
            where = _slates(node) if alone else slates
            allocation.append(_take(node, where, asked, job, written) if asked.count else ())
        return allocation

    if job.version is Version.V2_9:
        allocation = tuple(fit_all(request.all, alone=False))
    else:
        allocation = (*fit_all(request.init, alone=True), *fit_all(request.containers, alone=False))
    written = allocation if keeps_empty else tuple(shares for shares in allocation if shares)
    return Fit(score, allocation, written)


# --- the scheduler's choice --------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """Where a pod goes: the node, and the shares of each container, init containers first (see Fit).

    ties are all nodes that score as well (HAMi takes any of them, this choice is the first by
    name), scores those of all nodes that fit, failed the reasons of those that do not.
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
    """Choose a node and cards for a pod that asks for cards. Filter, HAMi 2.9 and 2.10 pkg/scheduler/scheduler.go.

    Raises PlacementError where the pod's scoring weights cannot be read.
    """
    job = _Job.of(request, rules, quota)
    fits: dict[str, Fit] = {}
    failed: dict[str, str] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        fit = _judge(node, job)
        if isinstance(fit, Fit):
            fits[node.name] = fit
        else:
            failed[node.name] = fit
    if not fits:
        return Refusal(failed)
    scores = {name: fit.score for name, fit in fits.items()}
    best = min(scores.values()) if spreads_nodes(request, rules) else max(scores.values())
    ties = tuple(name for name, score in scores.items() if score == best)
    chosen = fits[ties[0]]
    return Placement(ties[0], chosen.allocation, chosen.written, ties, scores, failed)


def spreads_nodes(request: PodRequest, rules: Rules = Rules()) -> bool:
    """Whether the emptiest node is the best for a pod, not the fullest.

    NodeScoreList, HAMi 2.10 pkg/scheduler/policy/node_policy.go: any other word than spread is binpack.
    """
    return request.annotations.get(POD_NODE_POLICY, rules.node_policy) == "spread"


def answered_reasons(failed: Mapping[str, str], version: Version) -> dict[str, str]:
    """The reasons as the extender answers them: 2.9 says NodeUnfitPod for any but a missing register.

    calcScore, HAMi 2.9 and 2.10 pkg/scheduler/score.go. In the pod's events both tell the reasons.
    """
    if version is Version.V2_10:
        return dict(failed)
    return {name: reason if reason == NODE_UNREGISTERED else NODE_UNFIT for name, reason in failed.items()}


def parse_weights(text: str) -> tuple[int, int, int]:
    """Read hami.io/device-scoring-weights, such as slot=1,core=1,memory=3, which 2.9 does not know.

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
