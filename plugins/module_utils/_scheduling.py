# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Cases of GPU scheduling: the pods that a case asks for, what was seen of them, the judgement.

No input or output, no clock: gpu_scheduling_verify creates, watches and deletes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    PHASE_FAILED,
    PHASE_SUCCESS,
    POD_ALLOCATED,
    POD_BIND_PHASE,
    POD_BIND_TIME,
    POD_GPU_POLICY,
    POD_NODE,
    POD_NODE_POLICY,
    POD_NOUSE_TYPE,
    POD_NOUSE_UUID,
    POD_TIME,
    POD_TO_ALLOCATE,
    POD_USE_TYPE,
    POD_USE_UUID,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    RESOURCE_MEMORY_PERCENT,
    RESOURCE_PRIORITY,
    SCHEDULER_NAME,
    Allocation,
    HamiFormatError,
    Share,
    parse_allocation,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    CARD_CORDONED,
    CARD_NOT_HEALTHY,
    CARD_TYPE_MISMATCH,
    CARD_UUID_MISMATCH,
    CARDS_INSUFFICIENT,
    NODE_UNREGISTERED,
    QUOTA_NOT_FIT,
)

Object = dict[str, Any]

LABEL_RUN = "tenantry.gpu/verify-run"
LABEL_CASE = "tenantry.gpu/verify-case"
LIMITS_END = "tenantry.gpu: end of limits"
# The container tells the limits that its own process sees, and ends; or holds its share until it is asked to end.
_TELL = f"env | grep -E '^(CUDA_|NVIDIA_VISIBLE_)'; echo '{LIMITS_END}'"
TELL_COMMAND = ("sh", "-c", _TELL)
HOLD_COMMAND = ("sh", "-c", f"{_TELL}; trap 'exit 0' TERM; sleep 86400 & wait")

# Where a pod's way to its card can end, in order.
WEBHOOK, SCHEDULER, REGISTRATION, FILTER, LOCK, BIND, ALLOCATE, START, LIMITS, EXPECTATION = (
    "webhook",
    "scheduler",
    "registration",
    "filter",
    "lock",
    "bind",
    "allocate",
    "start",
    "limits",
    "expectation",
)

# CardInsufficientCore and its like, as they stand in events and conditions.
_REASON = re.compile(
    r"\b(Card[A-Z][A-Za-z]+|AllocatedCardsInsufficientRequest|ExclusiveDeviceAllocateConflict|ModeNotFit"
    r"|NodeInsufficientDevice|NodeUnfitPod|NumaNotFit|ResourceQuotaNotFit|node unregistered)\b"
)


# Why kubelet does not start a container, as far as waiting does not help.
_CANNOT_START = frozenset(
    ("CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName")
)
# 2 nodes CardInsufficientCore(n1,n2)
_REASON_OF_NODES = re.compile(r"[0-9]+ nodes ([A-Za-z]+)\(([^)]*)\)")


# The options of a case, as Ansible checks them.
CONTAINER_OPTIONS: dict[str, Any] = {
    "cards": {"type": "int"},
    "memory_mib": {"type": "int"},
    "memory_percent": {"type": "int"},
    "cores": {"type": "int"},
    "priority": {"type": "int"},
}
EXPECT_OPTIONS: dict[str, Any] = {
    "outcome": {"type": "str", "choices": ["placed", "refused", "denied", "over_quota"], "required": True},
    "reason": {"type": "str"},
    "other_reasons": {"type": "bool", "default": False},
    "denial": {"type": "str"},
    "node": {"type": "str"},
    "uuid": {"type": "str"},
    "spread": {"type": "str", "choices": ["any", "one_card", "distinct_cards"], "default": "any"},
}
CASE_OPTIONS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "replicas": {"type": "int", "default": 1},
    **CONTAINER_OPTIONS,
    "containers": {
        "type": "list",
        "elements": "dict",
        "options": {**CONTAINER_OPTIONS, "init": {"type": "bool", "default": False}},
    },
    "node_policy": {"type": "str", "choices": ["binpack", "spread"]},
    "card_policy": {"type": "str"},
    "use_types": {"type": "list", "elements": "str"},
    "avoid_types": {"type": "list", "elements": "str"},
    "use_uuids": {"type": "list", "elements": "str"},
    "avoid_uuids": {"type": "list", "elements": "str"},
    "annotations": {"type": "dict"},
    "labels": {"type": "dict"},
    "node_selector": {"type": "dict"},
    "priority_class": {"type": "str"},
    "while_running": {"type": "list", "elements": "str"},
    "after": {"type": "list", "elements": "str"},
    "expect": {"type": "dict", "options": EXPECT_OPTIONS},
}


class CaseError(ValueError):
    """A case that cannot be understood; the message names it and says what to do."""


@dataclass(frozen=True)
class Container:
    """What one container asks of a card: ``cards`` distinct ones, MiB (or percent) and cores in percent of each.

    priority is that of its work on a card that it shares: 0 is high, 1 is low.
    """

    cards: int | None = None
    memory_mib: int | None = None
    memory_percent: int | None = None
    cores: int | None = None
    priority: int | None = None
    init: bool = False

    @property
    def asks(self) -> bool:
        return any(amount is not None for amount in (self.cards, self.memory_mib, self.memory_percent, self.cores))

    def limits(self) -> dict[str, str]:
        asked = {
            RESOURCE_COUNT: self.cards,
            RESOURCE_MEMORY: self.memory_mib,
            RESOURCE_MEMORY_PERCENT: self.memory_percent,
            RESOURCE_CORES: self.cores,
            RESOURCE_PRIORITY: self.priority,
        }
        return {resource: str(amount) for resource, amount in asked.items() if amount is not None}


_SPREADS = {"any": "", "one_card": " on one card", "distinct_cards": " on distinct cards"}


@dataclass(frozen=True)
class Expectation:
    """What is to become of every pod of a case.

    placed, refused by the scheduler, denied at admission, or over_quota, which is one or the other for the quota.
    """

    outcome: str
    reason: str = ""
    other_reasons: bool = False
    denial: str = ""
    node: str = ""
    uuid: str = ""
    spread: str = "any"

    def sentence(self, replicas: int) -> str:
        pods = "1 pod" if replicas == 1 else f"{replicas} pods"
        where = (f" on card {_short(self.uuid)}" if self.uuid else "") + (f" on node {self.node}" if self.node else "")
        if self.outcome == "denied":
            return f"{pods} denied at admission" + (f" with {self.denial!r}" if self.denial else "")
        if self.outcome == "over_quota":
            return f"{pods} refused for the namespace's quota"
        if self.outcome == "refused":
            return f"{pods} refused" + (f" with {self.reason}" if self.reason else "") + where
        # A card that is named is one card.
        spread = "" if self.uuid else _SPREADS[self.spread]
        return f"{pods} placed{spread}{where}"


# The outcome of a case that is planned and not judged.
NOTHING_EXPECTED = Expectation("")


@dataclass(frozen=True)
class Case:
    """Pods that are alike, and what is expected of them."""

    name: str
    expect: Expectation
    containers: tuple[Container, ...]
    replicas: int = 1
    while_running: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    priority_class: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def ordered(self) -> tuple[Container, ...]:
        """The containers as an allocation lists them, init containers first."""
        return tuple(sorted(self.containers, key=lambda container: not container.init))

    @property
    def own_reasons(self) -> frozenset[str]:
        """Reasons that say nothing of a card but follow from what the case rules out itself."""
        by_filter = {
            POD_USE_TYPE: CARD_TYPE_MISMATCH,
            POD_NOUSE_TYPE: CARD_TYPE_MISMATCH,
            POD_USE_UUID: CARD_UUID_MISMATCH,
            POD_NOUSE_UUID: CARD_UUID_MISMATCH,
        }
        # Fewer cards than asked for are left over, a node has no cards at all, and 2.9's word for any reason.
        always = (CARDS_INSUFFICIENT, NODE_UNREGISTERED, "NodeUnfitPod")
        filtered = [reason for key, reason in by_filter.items() if key in self.annotations]
        # Where one card alone is meant, the others are out of the question for these reasons before their UUID is.
        closed = (CARD_NOT_HEALTHY, CARD_CORDONED, CARD_TYPE_MISMATCH) if self.expect.uuid else ()
        return frozenset((*always, *filtered, *closed))

    def pod_names(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(self.replicas)]


def case_from_options(options: Mapping[str, Any]) -> Case:
    """A case from one element of the module's option ``cases``. Raises CaseError."""
    name = options["name"]
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", name):
        raise CaseError(f"case {name!r}: a name is up to 42 lower case letters, digits and dashes.")
    asked: dict[str, Any] = {
        key: options.get(key) for key in ("cards", "memory_mib", "memory_percent", "cores", "priority")
    }
    given = [Container(**_known(each)) for each in options.get("containers") or []]
    if given and _known(asked):
        raise CaseError(f"case {name}: give either containers or {', '.join(asked)}.")
    containers = tuple(given or [Container(**asked)])
    if not any(container.asks for container in containers):
        raise CaseError(f"case {name}: asks for no card; give cards, memory_mib, memory_percent or cores.")
    if all(container.init for container in containers):
        raise CaseError(f"case {name}: a pod needs a container that is no init container.")
    if options["replicas"] < 1:
        raise CaseError(f"case {name}: replicas is {options['replicas']}; give 1 or more.")
    expect = _expectation(name, _known(options["expect"])) if options.get("expect") else NOTHING_EXPECTED
    annotations = {**_policy_annotations(options), **(options.get("annotations") or {})}
    # A pod that may use one card alone is refused there and for its UUID elsewhere.
    on_card = expect.outcome == "refused" and expect.uuid
    if on_card and annotations.setdefault(POD_USE_UUID, expect.uuid) != expect.uuid:
        raise CaseError(f"case {name}: to be refused on card {expect.uuid} it must use that card alone.")
    return Case(
        name=name,
        expect=expect,
        containers=containers,
        replicas=options["replicas"],
        while_running=tuple(options.get("while_running") or ()),
        after=tuple(options.get("after") or ()),
        annotations=annotations,
        labels=options.get("labels") or {},
        priority_class=options.get("priority_class") or "",
        node_selector=options.get("node_selector") or {},
    )


# What can be expected of which outcome.
_EXPECTED = {
    "placed": {"node", "uuid", "spread"},
    "refused": {"reason", "other_reasons", "node", "uuid"},
    "denied": {"denial"},
    "over_quota": set[str](),
}


def _expectation(name: str, given: Mapping[str, Any]) -> Expectation:
    expect = Expectation(**given)
    empty = Expectation(expect.outcome)
    for key in given:
        if getattr(expect, key) != getattr(empty, key) and key not in _EXPECTED[expect.outcome]:
            raise CaseError(f"case {name}: expect.{key} says nothing of a pod that is {expect.outcome}; leave it out.")
    if expect.node and expect.outcome == "refused" and not expect.reason:
        raise CaseError(f"case {name}: give the reason for which it is to be refused on node {expect.node}.")
    return expect


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _policy_annotations(options: Mapping[str, Any]) -> dict[str, str]:
    values = {
        POD_NODE_POLICY: options.get("node_policy"),
        POD_GPU_POLICY: options.get("card_policy"),
        POD_USE_TYPE: ",".join(options.get("use_types") or ()),
        POD_NOUSE_TYPE: ",".join(options.get("avoid_types") or ()),
        POD_USE_UUID: ",".join(options.get("use_uuids") or ()),
        POD_NOUSE_UUID: ",".join(options.get("avoid_uuids") or ()),
    }
    return {key: value for key, value in values.items() if value}


@dataclass(frozen=True)
class Limit:
    """What a ResourceQuota gives the run's namespace of all cards together: MiB, and cores in percent of one card."""

    memory_mib: int | None = None
    cores: int | None = None

    def hard(self) -> dict[str, str]:
        asked = {RESOURCE_MEMORY: self.memory_mib, RESOURCE_CORES: self.cores}
        return {f"limits.{resource}": str(amount) for resource, amount in asked.items() if amount is not None}


def check_names(cases: Sequence[Case]) -> None:
    """Every case has its own name, and its forerunners stand before it. Raises CaseError."""
    known: set[str] = set()
    for case in cases:
        if case.name in known:
            raise CaseError(f"case {case.name} stands twice; give each its own name.")
        for other in (*case.while_running, *case.after):
            if other not in known:
                raise CaseError(f"case {case.name} waits for {other!r}, which does not stand before it.")
        known.add(case.name)


def check_order(cases: Sequence[Case], limit: Limit = Limit()) -> None:
    """The cases can be tried: what each waits for is there, and a quota to exceed. Raises CaseError."""
    check_names(cases)
    known = {case.name: case for case in cases}
    for case in cases:
        if case.expect is NOTHING_EXPECTED:
            raise CaseError(f"case {case.name}: say in expect what is to become of its pods.")
        if case.expect.outcome == "over_quota" and not limit.hard():
            raise CaseError(f"case {case.name} is to exceed a quota; give quota.memory_mib or quota.cores.")
        for other in case.while_running:
            if known[other].expect.outcome != "placed":
                raise CaseError(f"case {case.name} is to run while {other!r} runs, which is expected not to run.")


@dataclass(frozen=True)
class Setting:
    """What the pods of a run share: the run's id, their namespace, image and command (empty: the default one)."""

    run: str
    namespace: str
    image: str
    command: tuple[str, ...] = ()


def pod_of(case: Case, name: str, setting: Setting, holds: bool = True) -> Object:
    """The pod called ``name`` of a case, as it is sent to the API; holds: it keeps its shares until it is deleted."""
    containers: dict[bool, list[Object]] = {True: [], False: []}
    for position, container in enumerate(case.containers):
        default = HOLD_COMMAND if holds and not container.init else TELL_COMMAND
        containers[container.init].append(
            {
                "name": f"c{position}",
                "image": setting.image,
                "imagePullPolicy": "IfNotPresent",
                "command": list(setting.command or default),
                "resources": {"limits": container.limits()},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        )
    spec: Object = {
        "containers": containers[False],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "serviceAccountName": SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if containers[True]:
        spec["initContainers"] = containers[True]
    if case.priority_class:
        spec["priorityClassName"] = case.priority_class
    if case.node_selector:
        spec["nodeSelector"] = dict(case.node_selector)
    metadata = {
        "name": name,
        "namespace": setting.namespace,
        "labels": {**case.labels, LABEL_RUN: setting.run, LABEL_CASE: case.name},
        "annotations": dict(case.annotations),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


# Of our own, since the namespace's default one comes a moment after the namespace.
SERVICE_ACCOUNT = "gpu-scheduling-verify"


@dataclass
class Seen:
    """What is known of one pod: its latest state, its events, the limits that its containers told.

    hami is the name of HAMi's scheduler, containers are those of its case in an allocation's order,
    lost says what vanished under the run's hands.
    """

    name: str
    hami: str = SCHEDULER_NAME
    containers: tuple[Container, ...] = ()
    pod: Object | None = None
    decided: bool = False
    gone: bool = False
    denied: str = ""
    lost: str = ""
    events: list[Object] = field(default_factory=list)
    limits: list[dict[str, str]] = field(default_factory=list)
    lock_released: bool | None = None

    @property
    def _annotations(self) -> dict[str, str]:
        return ((self.pod or {}).get("metadata") or {}).get("annotations") or {}

    @property
    def scheduler(self) -> str:
        return str(((self.pod or {}).get("spec") or {}).get("schedulerName", ""))

    @property
    def node(self) -> str:
        return str(((self.pod or {}).get("spec") or {}).get("nodeName", ""))

    @property
    def phase(self) -> str:
        return str(((self.pod or {}).get("status") or {}).get("phase", ""))

    @property
    def bind_phase(self) -> str:
        return self._annotations.get(POD_BIND_PHASE, "")

    @property
    def allocation(self) -> Allocation:
        try:
            return parse_allocation(self._annotations.get(POD_ALLOCATED, ""))
        except HamiFormatError:
            return ()

    @property
    def shares(self) -> list[Share]:
        return [share for container in self.allocation for share in container]

    @property
    def allocated(self) -> bool:
        """Whether its shares are its own: HAMi's plugin has handed them out, and nothing has ended since."""
        return self.bind_phase == PHASE_SUCCESS and self.phase in ("Pending", "Running") and not self.lost

    @property
    def cannot_start(self) -> str:
        """Why a container does not start and will not by waiting; empty if nothing says so."""
        status = (self.pod or {}).get("status") or {}
        for entry in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            waiting = (entry.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in _CANNOT_START:
                return f"{waiting['reason']}: {waiting.get('message') or entry.get('name')}"
        return ""

    @property
    def running(self) -> bool:
        return self.phase in ("Running", "Succeeded") and self.bind_phase == PHASE_SUCCESS

    @property
    def failed(self) -> bool:
        return self.phase == "Failed" or self.bind_phase == PHASE_FAILED

    @property
    def unschedulable(self) -> str:
        """The scheduler's word on why the pod has no node; empty when it has said none."""
        for condition in ((self.pod or {}).get("status") or {}).get("conditions") or []:
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition.get("message") or condition.get("reason") or "unschedulable")
        return ""

    @property
    def reasons(self) -> list[str]:
        """HAMi's reasons at its last attempt, each once, in the order in which they came."""
        texts = [*self._refusals, self.unschedulable]
        return list(dict.fromkeys(reason for text in texts for reason in _REASON.findall(text)))

    @property
    def reasons_by_node(self) -> dict[str, list[str]]:
        """HAMi's reasons at its last attempt for each node, as far as its events name nodes."""
        found: dict[str, list[str]] = {}
        for text in self._refusals:
            for reason, nodes in _REASON_OF_NODES.findall(text):
                for node in nodes.split(","):
                    found.setdefault(node, []).append(reason)
        return found

    @property
    def _refusals(self) -> list[str]:
        """Texts of the FilteringFailed events of the last attempt; those of one attempt come within a second."""
        failed = [event for event in self.events if event.get("reason") == "FilteringFailed"]
        latest = max((_time_of(event) for event in failed), default=0.0)
        return [self.message_of(event) for event in failed if latest - _time_of(event) <= 1]

    @staticmethod
    def message_of(event: Object) -> str:
        return str(event.get("message") or "")

    def missing_limits(self) -> list[str]:
        """What a container should have found in its environment and did not."""
        # 2.10 writes no entry for a container without cards, other versions an empty one.
        entries = iter([entry for entry in self.allocation if entry])
        missing: list[str] = []
        for container, limits in zip(self.containers, self.limits):
            shares = next(entries, ()) if container.asks else ()
            expected = {f"CUDA_DEVICE_MEMORY_LIMIT_{index}": f"{s.memory_mib}m" for index, s in enumerate(shares)}
            if shares:
                expected["CUDA_DEVICE_SM_LIMIT"] = str(shares[0].cores)
            if container.priority is not None:
                expected["CUDA_TASK_PRIORITY"] = str(container.priority)
            missing += [f"{key}={value}" for key, value in expected.items() if limits.get(key) != value]
        return missing

    def broke_at(self) -> str:
        """The station after which the pod's way to its card ends; empty when it arrived."""
        events = " ".join(f"{event.get('reason')} {self.message_of(event)}" for event in self.events)
        stations = (
            (WEBHOOK, bool(self.denied) or self.scheduler in ("", "default-scheduler")),
            (SCHEDULER, self.scheduler != self.hami),
            (REGISTRATION, not self.node and "node unregistered" in self.reasons),
            (FILTER, not self.node and not self._annotations.get(POD_NODE) and bool(self.unschedulable)),
            (SCHEDULER, not self.node and not self._annotations.get(POD_NODE)),
            (LOCK, not self.node and "locked within" in events),
            (BIND, not self.node),
            (ALLOCATE, self.bind_phase != PHASE_SUCCESS),
            (START, self.phase not in ("Running", "Succeeded") or bool(self.lost)),
            (LIMITS, bool(self.missing_limits())),
        )
        return next((station for station, broken in stations if broken), "")

    def last_word(self) -> str:
        """The latest thing that anyone said about the pod."""
        if self.denied or self.lost:
            return self.denied or self.lost
        if self.pod and self.scheduler != self.hami:
            unseen = ", since HAMi's webhook was not called or did not take it for a GPU pod"
            return f"it goes to {self.scheduler}{unseen if self.scheduler == 'default-scheduler' else ''}"
        warnings = [self.message_of(event) for event in self.events if event.get("type") == "Warning"]
        status = (self.pod or {}).get("status") or {}
        words = [word for word in (self.unschedulable, *warnings[-1:], self.cannot_start) if word]
        state = f"phase {self.phase or 'unknown'}, HAMi's bind phase {self.bind_phase or 'not set'}"
        return str(status.get("message") or (words[-1] if words else state))

    def result(self) -> Object:
        """The causal chain as the module returns it."""
        keys = (POD_NODE, POD_TIME, POD_ALLOCATED, POD_TO_ALLOCATE, POD_BIND_PHASE, POD_BIND_TIME)
        return {
            "name": self.name,
            "scheduler": self.scheduler,
            "node": self.node,
            "phase": self.phase,
            "bind_phase": self.bind_phase,
            "annotations": {key: self._annotations[key] for key in keys if key in self._annotations},
            "shares": [
                {"uuid": share.uuid, "type": share.type, "memory_mib": share.memory_mib, "cores": share.cores}
                for share in self.shares
            ],
            "limits": self.limits,
            "lock_released": self.lock_released,
            "denied": self.denied,
            "reasons": self.reasons,
            "reasons_by_node": self.reasons_by_node,
            "events": [f"{event.get('reason')}: {self.message_of(event)}" for event in self.events],
            "broke_at": self.broke_at(),
        }


def _time_of(event: Mapping[str, Any]) -> float:
    """When something was last said, in seconds since 1970; 0 where that is not told."""
    text = str(event.get("lastTimestamp") or event.get("eventTime") or "")[:19]
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0


def settled(case: Case, seen: Seen) -> bool:
    """Whether nothing more is to be awaited of a pod: it is as expected, or can no longer become so."""
    if seen.denied or seen.failed or seen.lost or seen.running or case.expect.outcome == "denied":
        return True
    return refused_as_expected(case, seen)


def refused_as_expected(case: Case, seen: Seen) -> bool:
    """Whether the scheduler has refused a pod for the reason that was expected, and for no other."""
    expect = case.expect
    if expect.outcome == "over_quota":
        return QUOTA_NOT_FIT in seen.reasons
    if expect.outcome != "refused" or not (seen.unschedulable and seen.events):
        return False
    if not expect.reason:
        return True
    reasons = set(seen.reasons_by_node.get(expect.node, ()) if expect.node else seen.reasons)
    others = reasons - case.own_reasons - {expect.reason}
    return expect.reason in reasons and (expect.other_reasons or not others)


# HAMi's webhook, and Kubernetes' own quota.
_QUOTA_DENIALS = ("exceeding resource quota", "exceeded quota")


@dataclass(frozen=True)
class Judgement:
    """Whether a case came out as expected, where its chain broke if not, and what was seen, in one line."""

    passed: bool
    observed: str
    broke_at: str = ""


def judge(case: Case, pods: Sequence[Seen]) -> Judgement:
    """Judge a case by what was seen of its pods; the first pod that differs speaks for it."""
    judgements = [_judge_pod(case, seen) for seen in pods]
    for judgement in judgements:
        if not judgement.passed:
            return judgement
    return _judge_spread(case.expect, pods) if case.expect.outcome == "placed" else judgements[0]


def _judge_pod(case: Case, seen: Seen) -> Judgement:
    expect, broke_at = case.expect, seen.broke_at()
    if expect.outcome == "denied":
        if not seen.denied:
            return Judgement(False, f"{seen.name} was admitted", EXPECTATION)
        return Judgement(expect.denial in seen.denied, f"denied: {seen.denied}", WEBHOOK)
    if expect.outcome == "over_quota" and any(text in seen.denied for text in _QUOTA_DENIALS):
        return Judgement(True, f"denied: {seen.denied}")
    if expect.outcome != "placed":
        if broke_at in (FILTER, REGISTRATION) and refused_as_expected(case, seen):
            return Judgement(True, f"refused: {_reasons(case, seen)}")
        if not broke_at:
            return Judgement(False, f"{seen.name} was placed on {_places([seen])}", EXPECTATION)
        if broke_at == FILTER:
            return Judgement(False, f"{seen.name} was refused for {_reasons(case, seen)}", FILTER)
    elif not broke_at:
        if seen.lock_released is False:
            return Judgement(False, f"{seen.name} runs and node {seen.node} is still locked for it", LOCK)
        if expect.node not in ("", seen.node) or (expect.uuid and expect.uuid not in {s.uuid for s in seen.shares}):
            return Judgement(False, f"{seen.name} was placed on {_places([seen])}", EXPECTATION)
        return Judgement(True, f"placed on {_places([seen])}")
    if broke_at == LIMITS:
        return Judgement(False, f"{seen.name} runs without {', '.join(seen.missing_limits())}", LIMITS)
    return Judgement(False, f"{seen.name} ended at {broke_at}: {seen.last_word()}", broke_at)


def _reasons(case: Case, seen: Seen) -> str:
    """The reasons that say something, or else all, or else the last word."""
    telling = [reason for reason in seen.reasons if reason not in case.own_reasons]
    return ", ".join(telling or seen.reasons) or seen.last_word()


def _judge_spread(expect: Expectation, pods: Sequence[Seen]) -> Judgement:
    cards = [share.uuid for seen in pods for share in seen.shares]
    distinct = len(set(cards))
    fits = {"any": True, "one_card": distinct == 1, "distinct_cards": distinct == len(cards)}[expect.spread]
    locked = ", lock released" if all(seen.lock_released for seen in pods) else ""
    limits = ", limits set" if all(seen.limits for seen in pods) else ""
    observed = f"{len(pods)} on {_places(pods)}{limits}{locked}"
    return Judgement(fits, observed, "" if fits else EXPECTATION)


def _places(pods: Sequence[Seen]) -> str:
    places = dict.fromkeys(f"{_short(share.uuid)} of {seen.node}" for seen in pods for share in seen.shares)
    return ", ".join(places) or "no card"


def _short(uuid: str) -> str:
    """The first block of a UUID, enough to tell a node's cards apart for a reader."""
    return "-".join(uuid.split("-")[:2])


def limits_from_log(log: str) -> dict[str, str] | None:
    """The limits that a container told in its log; None while it has not told them all."""
    lines = log.splitlines()
    if LIMITS_END not in lines:
        return None
    return dict(line.split("=", 1) for line in lines[: lines.index(LIMITS_END)] if "=" in line)
