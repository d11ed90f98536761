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
    Allocation,
    HamiFormatError,
    Share,
    parse_allocation,
)

Object = dict[str, Any]

LABEL_RUN = "tenantry.gpu/verify-run"
LABEL_CASE = "tenantry.gpu/verify-case"
LIMITS_END = "tenantry.gpu: end of limits"
# The container tells the limits that its own process sees; it ends at once when asked to.
DEFAULT_COMMAND = (
    "sh",
    "-c",
    f"env | grep -E '^(CUDA_|NVIDIA_VISIBLE_)'; echo '{LIMITS_END}'; trap 'exit 0' TERM; sleep 86400 & wait",
)
DEFAULT_INIT_COMMAND = ("sh", "-c", f"env | grep -E '^(CUDA_|NVIDIA_VISIBLE_)'; echo '{LIMITS_END}'")

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


class CaseError(ValueError):
    """A case that cannot be understood; the message names it and says what to do."""


@dataclass(frozen=True)
class Container:
    """What one container asks of a card: ``cards`` distinct ones, MiB (or percent) and cores in percent of each."""

    cards: int | None = None
    memory_mib: int | None = None
    memory_percent: int | None = None
    cores: int | None = None
    init: bool = False

    def limits(self) -> dict[str, str]:
        asked = {
            RESOURCE_COUNT: self.cards,
            RESOURCE_MEMORY: self.memory_mib,
            RESOURCE_MEMORY_PERCENT: self.memory_percent,
            RESOURCE_CORES: self.cores,
        }
        return {resource: str(amount) for resource, amount in asked.items() if amount is not None}


@dataclass(frozen=True)
class Expectation:
    """What is to become of every pod of a case: placed, refused by the scheduler, or denied at admission."""

    outcome: str
    reason: str = ""
    denial: str = ""
    node: str = ""
    uuid: str = ""
    spread: str = "any"

    def sentence(self, replicas: int) -> str:
        pods = "1 pod" if replicas == 1 else f"{replicas} pods"
        if self.outcome == "denied":
            return f"{pods} denied at admission" + (f" with {self.denial!r}" if self.denial else "")
        if self.outcome == "refused":
            return f"{pods} refused" + (f" with {self.reason}" if self.reason else "")
        where = {"any": "", "one_card": " on one card", "distinct_cards": " on distinct cards"}[self.spread]
        return f"{pods} placed{where}" + (f" of node {self.node}" if self.node else "")


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

    def pod_names(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(self.replicas)]


def case_from_options(options: Mapping[str, Any]) -> Case:
    """A case from one element of the module's option ``cases``. Raises CaseError."""
    name = options["name"]
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", name):
        raise CaseError(f"case {name!r}: a name is up to 42 lower case letters, digits and dashes.")
    asked: dict[str, Any] = {key: options.get(key) for key in ("cards", "memory_mib", "memory_percent", "cores")}
    given = [Container(**_known(each)) for each in options.get("containers") or []]
    if given and any(value is not None for value in asked.values()):
        raise CaseError(f"case {name}: give either containers or cards, memory_mib, memory_percent and cores.")
    containers = tuple(given or [Container(**asked)])
    if not any(container.limits() for container in containers):
        raise CaseError(f"case {name}: asks for no card; give cards, memory_mib, memory_percent or cores.")
    if all(container.init for container in containers):
        raise CaseError(f"case {name}: a pod needs a container that is no init container.")
    expect = {key: value for key, value in options["expect"].items() if value is not None}
    return Case(
        name=name,
        expect=Expectation(**expect),
        containers=containers,
        replicas=options["replicas"],
        while_running=tuple(options.get("while_running") or ()),
        after=tuple(options.get("after") or ()),
        annotations={**_policy_annotations(options), **(options.get("annotations") or {})},
        labels=options.get("labels") or {},
        priority_class=options.get("priority_class") or "",
        node_selector=options.get("node_selector") or {},
    )


def _known(container: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in container.items() if value is not None}


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


def check_order(cases: Sequence[Case]) -> None:
    """Every case's forerunners exist and no case waits for itself. Raises CaseError."""
    known: dict[str, Case] = {}
    for case in cases:
        if case.name in known:
            raise CaseError(f"case {case.name} stands twice; give each its own name.")
        for other in (*case.while_running, *case.after):
            if other not in known:
                raise CaseError(f"case {case.name} waits for {other!r}, which does not stand before it.")
        for other in case.while_running:
            if known[other].expect.outcome != "placed":
                raise CaseError(f"case {case.name} is to run while {other!r} runs, which is expected not to run.")
        known[case.name] = case


@dataclass(frozen=True)
class Setting:
    """What the pods of a run share: the run's id, their namespace, image and command (empty: the default one)."""

    run: str
    namespace: str
    image: str
    command: tuple[str, ...] = ()


def pod_of(case: Case, name: str, setting: Setting) -> Object:
    """The pod called ``name`` of a case, as it is sent to the API."""
    containers: dict[bool, list[Object]] = {True: [], False: []}
    for position, container in enumerate(case.containers):
        default = DEFAULT_INIT_COMMAND if container.init else DEFAULT_COMMAND
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
    """What is known of one pod: its latest state, its events, the limits that its containers told."""

    name: str
    pod: Object | None = None
    decided: bool = False
    gone: bool = False
    denied: str = ""
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
        """HAMi's reasons, each once, in the order in which they came."""
        texts = [self.message_of(event) for event in self.events if event.get("reason") == "FilteringFailed"]
        texts.append(self.unschedulable)
        return list(dict.fromkeys(reason for text in texts for reason in _REASON.findall(text)))

    @staticmethod
    def message_of(event: Object) -> str:
        return str(event.get("message") or "")

    def missing_limits(self) -> list[str]:
        """What a container should have found in its environment and did not."""
        missing: list[str] = []
        for shares, limits in zip(self.allocation, self.limits):
            expected = {f"CUDA_DEVICE_MEMORY_LIMIT_{index}": f"{s.memory_mib}m" for index, s in enumerate(shares)}
            if shares:
                expected["CUDA_DEVICE_SM_LIMIT"] = str(shares[0].cores)
            missing += [f"{key}={value}" for key, value in expected.items() if limits.get(key) != value]
        return missing

    def broke_at(self) -> str:
        """The station after which the pod's way to its card ends; empty when it arrived."""
        events = " ".join(f"{event.get('reason')} {self.message_of(event)}" for event in self.events)
        stations = (
            (WEBHOOK, bool(self.denied) or self.scheduler in ("", "default-scheduler")),
            (REGISTRATION, not self.node and "node unregistered" in self.reasons),
            (FILTER, not self.node and not self._annotations.get(POD_NODE) and bool(self.unschedulable)),
            (SCHEDULER, not self.node and not self._annotations.get(POD_NODE)),
            (LOCK, not self.node and "locked within" in events),
            (BIND, not self.node),
            (ALLOCATE, self.bind_phase != PHASE_SUCCESS),
            (START, self.phase not in ("Running", "Succeeded")),
            (LIMITS, bool(self.missing_limits())),
        )
        return next((station for station, broken in stations if broken), "")

    def last_word(self) -> str:
        """The latest thing that anyone said about the pod."""
        if self.denied:
            return self.denied
        warnings = [self.message_of(event) for event in self.events if event.get("type") == "Warning"]
        status = (self.pod or {}).get("status") or {}
        waiting = [
            str(entry["state"]["waiting"].get("message") or entry["state"]["waiting"].get("reason"))
            for entry in status.get("containerStatuses") or []
            if "waiting" in (entry.get("state") or {})
        ]
        words = [*([self.unschedulable] if self.unschedulable else []), *warnings[-1:], *waiting]
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
            "events": [f"{event.get('reason')}: {self.message_of(event)}" for event in self.events],
            "broke_at": self.broke_at(),
        }


def settled(case: Case, seen: Seen) -> bool:
    """Whether nothing more is to be awaited of a pod: it is as expected, or can no longer become so."""
    if seen.denied or seen.failed or case.expect.outcome == "denied":
        return True
    if seen.running:
        return True
    refused = bool(seen.unschedulable and seen.events)
    return case.expect.outcome == "refused" and refused and case.expect.reason in ("", *seen.reasons)


@dataclass(frozen=True)
class Judgement:
    """Whether a case came out as expected, where its chain broke if not, and what was seen, in one line."""

    passed: bool
    observed: str
    broke_at: str = ""


def judge(case: Case, pods: Sequence[Seen]) -> Judgement:
    """Judge a case by what was seen of its pods; the first pod that differs speaks for it."""
    for seen in pods:
        judgement = _judge_pod(case.expect, seen)
        if not judgement.passed:
            return judgement
    if case.expect.outcome != "placed":
        return _judge_pod(case.expect, pods[0])
    return _judge_spread(case.expect, pods)


def _judge_pod(expect: Expectation, seen: Seen) -> Judgement:
    broke_at = seen.broke_at()
    if expect.outcome == "denied":
        if not seen.denied:
            return Judgement(False, f"{seen.name} was admitted", EXPECTATION)
        return Judgement(expect.denial in seen.denied, f"denied: {seen.denied}", WEBHOOK)
    if expect.outcome == "refused":
        if broke_at in (FILTER, REGISTRATION) and expect.reason in ("", *seen.reasons):
            return Judgement(True, f"refused: {', '.join(seen.reasons) or seen.last_word()}")
        if not broke_at:
            return Judgement(False, f"{seen.name} was placed on {_places([seen])}", EXPECTATION)
    elif not broke_at:
        if seen.lock_released is False:
            return Judgement(False, f"{seen.name} runs and node {seen.node} is still locked for it", LOCK)
        if expect.node not in ("", seen.node) or (expect.uuid and expect.uuid not in {s.uuid for s in seen.shares}):
            return Judgement(False, f"{seen.name} was placed on {_places([seen])}", EXPECTATION)
        return Judgement(True, f"placed on {_places([seen])}")
    if broke_at == LIMITS:
        return Judgement(False, f"{seen.name} runs without {', '.join(seen.missing_limits())}", LIMITS)
    return Judgement(False, f"{seen.name} ended at {broke_at}: {seen.last_word()}", broke_at)


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
