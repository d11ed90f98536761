# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the nodes and pods of a cluster say of its cards: shares, sums, and where they contradict each other.

No input or output, no clock: hami_device_info reads the cluster. Accounted as HAMi's scheduler does, from
annotations alone. Memory in MiB, compute in percent of one card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_CORDON,
    NODE_HANDSHAKE,
    NODE_LOCK,
    NODE_REGISTER,
    PHASE_ALLOCATING,
    POD_ALLOCATED,
    POD_BIND_PHASE,
    POD_BIND_TIME,
    POD_NODE,
    POD_TIME,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    RESOURCE_MEMORY_PERCENT,
    SCHEDULER_NAME,
    Allocation,
    Card,
    HamiFormatError,
    Handshake,
    Lock,
    older_than_2_6,
    parse_allocation,
    parse_cordon,
    parse_handshake,
    parse_lock,
    parse_register,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Usage, usage_of

Object = dict[str, Any]

_RESOURCES = (RESOURCE_COUNT, RESOURCE_MEMORY, RESOURCE_MEMORY_PERCENT, RESOURCE_CORES)

# Kinds of contradiction.
UNREADABLE = "unreadable"
OLD_HAMI = "old_hami"
OVERALLOCATED = "overallocated"
LOCK_WITHOUT_HOLDER = "lock_without_holder"
LOCK_HELD_LONG = "lock_held_long"
REGISTER_WITHOUT_ALLOCATABLE = "register_without_allocatable"
ALLOCATABLE_WITHOUT_REGISTER = "allocatable_without_register"
NEVER_BOUND = "never_bound"
NEVER_ALLOCATED = "never_allocated"
FORGED_ALLOCATION = "forged_allocation"
UNHEALTHY_CARD_SHARED = "unhealthy_card_shared"
DUPLICATE_CARD = "duplicate_card"
CARD_WITHOUT_CAPACITY = "card_without_capacity"

# States of a card, by which cards are chosen.
HEALTHY, UNHEALTHY, CORDONED, IDLE, SHARED, FULL = "healthy", "unhealthy", "cordoned", "idle", "shared", "full"
STATES = (HEALTHY, UNHEALTHY, CORDONED, IDLE, SHARED, FULL)


@dataclass(frozen=True)
class Contradiction:
    """Two things that cannot both be right: where (a node, a card of it, a pod; empty if none), and in a sentence."""

    kind: str
    message: str
    node: str = ""
    card: str = ""
    namespace: str = ""
    pod: str = ""


@dataclass(frozen=True)
class Held:
    """A share of a card, and who has it. container is its name; empty if the allocation does not tell."""

    namespace: str
    pod: str
    container: str
    init: bool
    memory_mib: int
    cores: int


@dataclass
class CardState:
    """A card of a node, who has shares of it, and what they take together, counted as HAMi counts it."""

    card: Card
    cordoned: bool = False
    shares: list[Held] = field(default_factory=list)
    allocated: Usage = field(default_factory=Usage)

    @property
    def capacity(self) -> Usage:
        return Usage(self.card.slots, self.card.memory_mib, self.card.cores)

    @property
    def free(self) -> Usage:
        return _minus(self.capacity, self.allocated)

    @property
    def states(self) -> set[str]:
        free = self.free
        # A card that declares no cores does not run out of them.
        full = free.slots <= 0 or free.memory_mib <= 0 or (self.card.cores > 0 and free.cores <= 0)
        found = {HEALTHY if self.card.healthy else UNHEALTHY, SHARED if self.shares else IDLE}
        return found | ({CORDONED} if self.cordoned else set()) | ({FULL} if full else set())


@dataclass
class NodeState:
    """What a node's annotations and status say. errors are the annotations that cannot be read."""

    name: str
    cards: list[CardState] = field(default_factory=list)
    allocatable_slots: int = 0
    handshake: Handshake | None = None
    lock: Lock | None = None
    errors: list[str] = field(default_factory=list)
    old: str = ""

    @property
    def concerns_cards(self) -> bool:
        return bool(self.cards or self.allocatable_slots or self.errors or self.lock or self.old)

    @property
    def capacity(self) -> Usage:
        return _total(card.capacity for card in self.cards)

    @property
    def allocated(self) -> Usage:
        return _total(card.allocated for card in self.cards)


@dataclass(frozen=True)
class PodState:
    """What a living pod says of the cards it has: node is where it runs, assigned where HAMi put it."""

    namespace: str
    name: str
    scheduler: str
    node: str = ""
    assigned: str = ""
    bind_phase: str = ""
    bind_time_s: int | None = None
    assigned_time_s: int | None = None
    asks: bool = False
    has_allocation: bool = False
    allocation: Allocation = ()
    containers: tuple[tuple[str, bool], ...] = ()
    init_count: int = 0
    init_finished: bool = False
    error: str = ""

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    def usage(self, adds_up: bool) -> dict[str, Usage]:
        """What the pod takes of each card, by UUID; adds_up: init containers count as all others, as until 2.9."""
        return usage_of(self.allocation, 0 if adds_up else self.init_count, self.init_finished)


def _minus(one: Usage, other: Usage) -> Usage:
    return Usage(one.slots - other.slots, one.memory_mib - other.memory_mib, one.cores - other.cores)


def _plus(one: Usage, other: Usage) -> Usage:
    return Usage(one.slots + other.slots, one.memory_mib + other.memory_mib, one.cores + other.cores)


def _total(usages: Iterable[Usage]) -> Usage:
    return reduce(_plus, usages, Usage())


def amounts(usage: Usage) -> Object:
    """A usage as modules return it."""
    return dict(vars(usage))


# --- reading -----------------------------------------------------------------------------


def _annotations(thing: Mapping[str, Any]) -> dict[str, str]:
    return thing["metadata"].get("annotations") or {}


def _number(text: object) -> int | None:
    """A count of slots, or seconds since 1970; None for anything else."""
    return int(str(text)) if str(text).isascii() and str(text).isdigit() and len(str(text)) <= 10 else None


def node_state(node: Mapping[str, Any]) -> NodeState:
    """Read a node as the API serves it. What cannot be read is named under ``errors``, the rest is read."""
    found = _annotations(node)
    allocatable = ((node.get("status") or {}).get("allocatable") or {}).get(RESOURCE_COUNT)
    state = NodeState(node["metadata"]["name"], allocatable_slots=_number(allocatable) or 0, old=older_than_2_6(found))
    try:
        cordoned = parse_cordon(found.get(NODE_CORDON, ""))
        for card in parse_register(found[NODE_REGISTER]) if found.get(NODE_REGISTER) else ():
            state.cards.append(CardState(card, card.uuid in cordoned))
    except HamiFormatError as error:
        state.errors.append(str(error))
    try:
        state.lock = parse_lock(found[NODE_LOCK]) if found.get(NODE_LOCK) else None
    except HamiFormatError as error:
        state.errors.append(str(error))
    try:
        state.handshake = parse_handshake(found[NODE_HANDSHAKE]) if found.get(NODE_HANDSHAKE) else None
    except HamiFormatError as error:
        state.errors.append(str(error))
    return state


def pod_state(pod: Mapping[str, Any]) -> PodState | None:
    """Read a pod as the API serves it; None for one that has no part in cards, or has none any more.

    HAMi frees a card when its pod has ended; a pod that is being deleted still counts
    (onAddPod, onUpdatePod, HAMi 2.10 pkg/scheduler/scheduler.go).
    """
    found, metadata = _annotations(pod), pod["metadata"]
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    init, main = spec.get("initContainers") or [], spec.get("containers") or []
    asks = any(_asks(container) for container in (*init, *main))
    text = found.get(POD_ALLOCATED, "")
    if not (asks or text or POD_NODE in found):
        return None
    allocation: Allocation = ()
    error = ""
    try:
        allocation = parse_allocation(text)
    except HamiFormatError as problem:
        error = str(problem)
    return PodState(
        namespace=metadata["namespace"],
        name=metadata["name"],
        scheduler=spec.get("schedulerName") or "",
        node=spec.get("nodeName") or "",
        assigned=found.get(POD_NODE, ""),
        bind_phase=found.get(POD_BIND_PHASE, ""),
        bind_time_s=_number(found.get(POD_BIND_TIME)),
        assigned_time_s=_number(found.get(POD_TIME)),
        asks=asks,
        has_allocation=bool(text),
        allocation=allocation,
        containers=_names(allocation, init, main),
        init_count=len(init),
        init_finished=_init_finished(status),
        error=error,
    )


# The label that HAMi's chart gives its scheduler, 2.6 to 2.10.
_SCHEDULER = ("app.kubernetes.io/component", "hami-scheduler")


def scheduler_version(pod: Mapping[str, Any]) -> tuple[int, int] | None:
    """The version of HAMi if a pod is its scheduler: (0, 0) where its image does not tell; None for another pod."""
    key, value = _SCHEDULER
    if (pod["metadata"].get("labels") or {}).get(key) != value:
        return None
    for container in (pod.get("spec") or {}).get("containers") or ():
        # Beside it runs a kube-scheduler, with a version of its own.
        match = re.search(r"hami[^:@]*:v?([0-9]{1,4})\.([0-9]{1,4})", str(container.get("image")))
        if match:
            return int(match[1]), int(match[2])
    return 0, 0


def _asks(container: Mapping[str, Any]) -> bool:
    limits = (container.get("resources") or {}).get("limits") or {}
    return any(str(limits.get(resource, "0")) != "0" for resource in _RESOURCES)


def _names(
    allocation: Allocation, init: list[Mapping[str, Any]], main: list[Mapping[str, Any]]
) -> tuple[tuple[str, bool], ...]:
    """Name of the container, and whether it is an init container, for each entry of an allocation.

    2.10 leaves out entries of containers without cards (see _placement.Placement), other versions keep them.
    """
    every = [(container, True) for container in init] + [(container, False) for container in main]
    asking = [(container, first) for container, first in every if _asks(container)]
    fitting = next((each for each in (every, asking) if len(each) == len(allocation)), None)
    if fitting is None:
        return (("", False),) * len(allocation)
    return tuple((str(container.get("name", "")), first) for container, first in fitting)


def _init_finished(status: Mapping[str, Any]) -> bool:
    """AllInitContainersSucceeded, HAMi 2.10 pkg/util/util.go."""
    ended = [(each.get("state") or {}).get("terminated") for each in status.get("initContainerStatuses") or ()]
    return bool(ended) and all(each and not each.get("exitCode") for each in ended)


def enter_shares(nodes: Iterable[NodeState], pods: Iterable[PodState], adds_up: bool = False) -> None:
    """Enter every pod's shares, and what they take, into the cards of the node that HAMi assigned it.

    adds_up: init containers count as all others, as until 2.9.
    """
    cards = {(node.name, state.card.uuid): state for node in nodes for state in node.cards}
    for pod in pods:
        for shares, (container, init) in zip(pod.allocation, pod.containers):
            for share in shares:
                state = cards.get((pod.assigned, share.uuid))
                if state:
                    state.shares.append(Held(pod.namespace, pod.name, container, init, share.memory_mib, share.cores))
        for uuid, usage in pod.usage(adds_up).items():
            state = cards.get((pod.assigned, uuid))
            if state:
                state.allocated = _plus(state.allocated, usage)


# --- contradictions ----------------------------------------------------------------------


@dataclass(frozen=True)
class Judge:
    """Finds contradictions. living are the pods that exist and have not ended, as far as a lock names them."""

    nodes: Mapping[str, NodeState]
    living: frozenset[tuple[str, str]]
    now: datetime
    stuck_after_s: int
    scheduler_name: str = SCHEDULER_NAME

    def all(self, pods: Iterable[PodState]) -> list[Contradiction]:
        """Those of the nodes, the cards and the pods, in this order."""
        found = [each for node in self.nodes.values() for each in (*self._of_node(node), *self._of_lock(node))]
        found += [each for node in self.nodes.values() for state in node.cards for each in self._of_card(node, state)]
        found += self._duplicates()
        return found + [each for pod in pods for each in self._of_pod(pod)]

    def _of_node(self, node: NodeState) -> Iterator[Contradiction]:
        for error in node.errors:
            yield Contradiction(UNREADABLE, f"{node.name}: {error}.", node.name)
        if node.old:
            message = f"{node.name}: {node.old} is that of a HAMi before 2.6; update HAMi to read its cards surely."
            yield Contradiction(OLD_HAMI, message, node.name)
        healthy = sum(state.card.slots for state in node.cards if state.card.healthy)
        if healthy and not node.allocatable_slots:
            message = (
                f"{node.name} declares {healthy} healthy slots and offers no {RESOURCE_COUNT}: "
                "look at the device plugin and the kubelet there."
            )
            yield Contradiction(REGISTER_WITHOUT_ALLOCATABLE, message, node.name)
        if node.allocatable_slots and not node.cards and not node.errors and not node.old:
            message = (
                f"{node.name} offers {node.allocatable_slots} {RESOURCE_COUNT} and declares no card to HAMi: "
                "its device plugin is not HAMi's, or has not registered."
            )
            yield Contradiction(ALLOCATABLE_WITHOUT_REGISTER, message, node.name)

    def _of_lock(self, node: NodeState) -> Iterator[Contradiction]:
        if node.lock is None:
            return
        holder = (node.lock.namespace, node.lock.pod)
        age_s = int((self.now - node.lock.taken_at).total_seconds())
        name = f"{holder[0]}/{holder[1]}" if node.lock.pod else ""
        if not name or holder not in self.living:
            who = f"for {name}, which is gone or has ended" if name else "for no pod that it names"
            message = f"{node.name} has been locked for {age_s} s {who}; tenantry.gpu.hami_allocation releases it."
            yield Contradiction(LOCK_WITHOUT_HOLDER, message, node.name, "", *holder)
        elif age_s > self.stuck_after_s:
            message = f"{node.name} has been locked for {age_s} s by {name}, so that no other GPU pod starts there."
            yield Contradiction(LOCK_HELD_LONG, message, node.name, "", *holder)

    @staticmethod
    def _of_card(node: NodeState, state: CardState) -> Iterator[Contradiction]:
        uuid, taken, capacity = state.card.uuid, amounts(state.allocated), amounts(state.capacity)
        over = [f"{taken[key]} of {capacity[key]} {key}" for key in taken if taken[key] > capacity[key]]
        if over:
            message = f"Card {uuid} of {node.name} is given away above its capacity: {', '.join(over)}."
            yield Contradiction(OVERALLOCATED, message, node.name, uuid)
        if state.shares and not state.card.healthy:
            pods = sorted({f"{share.namespace}/{share.pod}" for share in state.shares})
            message = f"Card {uuid} of {node.name} is unhealthy and {', '.join(pods)} has shares of it."
            yield Contradiction(UNHEALTHY_CARD_SHARED, message, node.name, uuid)
        if not state.card.slots or not state.card.memory_mib:
            what = "slots" if not state.card.slots else "memory"
            message = f"Card {uuid} of {node.name} declares no {what}, so HAMi gives no share of it."
            yield Contradiction(CARD_WITHOUT_CAPACITY, message, node.name, uuid)

    def _duplicates(self) -> Iterator[Contradiction]:
        homes: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for state in node.cards:
                homes.setdefault(state.card.uuid, []).append(node.name)
        for uuid, names in homes.items():
            for name in names[1:]:
                yield Contradiction(DUPLICATE_CARD, f"{name} declares card {uuid}, and so does {names[0]}.", name, uuid)

    def _of_pod(self, pod: PodState) -> Iterator[Contradiction]:
        def of(kind: str, message: str, card: str = "") -> Contradiction:
            where = pod.node or pod.assigned
            return Contradiction(kind, f"{pod.title} {message}.", where, card, pod.namespace, pod.name)

        if pod.error:
            yield of(UNREADABLE, f"has an allocation that cannot be read: {pod.error}")
        yield from (of(FORGED_ALLOCATION, message, card) for message, card in self._forgeries(pod))
        if pod.node and pod.asks and not pod.has_allocation and self._declares_cards(pod.node):
            message = (
                f"runs on {pod.node} and asks for cards, and {pod.scheduler or 'nobody'} allocated it none: "
                "it escaped HAMi's webhook, or asks for what HAMi takes for nothing"
            )
            yield of(NEVER_ALLOCATED, message)
        elif pod.node and pod.bind_phase == PHASE_ALLOCATING and self._is_long_ago(pod.bind_time_s):
            message = (
                f"is bound to {pod.node}, whose device plugin has not finished its allocation within "
                f"{self.stuck_after_s} s; tenantry.gpu.hami_allocation finishes it"
            )
            yield of(NEVER_ALLOCATED, message)
        elif not pod.node and pod.has_allocation and self._is_long_ago(pod.assigned_time_s):
            message = f"was given shares on {pod.assigned or 'no node'} and is not bound to it; see its events"
            yield of(NEVER_BOUND, message)

    def _forgeries(self, pod: PodState) -> Iterator[tuple[str, str]]:
        if not pod.has_allocation:
            return
        if pod.scheduler != self.scheduler_name:
            yield f"has an allocation and is scheduled by {pod.scheduler or 'nobody'}, not {self.scheduler_name}", ""
        if pod.node and pod.node != pod.assigned:
            yield f"runs on {pod.node} and has an allocation on {pod.assigned or 'no node'}", ""
        elif pod.assigned and pod.assigned not in self.nodes:
            yield f"has an allocation on {pod.assigned}, which does not exist", ""
        home = self.nodes.get(pod.assigned)
        if home and not home.errors and not home.old:
            declared = {state.card.uuid for state in home.cards}
            for uuid in dict.fromkeys(share.uuid for shares in pod.allocation for share in shares):
                if uuid not in declared:
                    yield f"has a share of card {uuid}, which {home.name} does not declare", uuid

    def _declares_cards(self, name: str) -> bool:
        node = self.nodes.get(name)
        return bool(node and node.cards)

    def _is_long_ago(self, at_s: int | None) -> bool:
        return at_s is None or self.now.timestamp() - at_s > self.stuck_after_s


# --- what the module returns -------------------------------------------------------------


def describe_lock(lock: Lock, now: datetime) -> Object:
    """A lock as the module returns it."""
    return {
        "taken_at": lock.taken_at.isoformat(),
        "age_s": int((now - lock.taken_at).total_seconds()),
        "namespace": lock.namespace,
        "pod": lock.pod,
    }


def describe_card(state: CardState, namespaces: frozenset[str]) -> Object:
    """A card as the module returns it; of its shares those of ``namespaces`` (all if empty)."""
    return {
        **vars(state.card),
        "cordoned": state.cordoned,
        "allocated": amounts(state.allocated),
        "free": amounts(state.free),
        "shares": [vars(share) for share in state.shares if not namespaces or share.namespace in namespaces],
    }


def describe_node(node: NodeState, cards: Iterable[CardState], namespaces: frozenset[str], now: datetime) -> Object:
    """A node as the module returns it, with the ``cards`` of it that were chosen."""
    handshake = node.handshake
    return {
        "name": node.name,
        "allocatable_slots": node.allocatable_slots,
        "capacity": amounts(node.capacity),
        "allocated": amounts(node.allocated),
        "free": amounts(_minus(node.capacity, node.allocated)),
        "handshake": {"state": handshake.state, "at": handshake.at.isoformat(" ")} if handshake else None,
        "error": "; ".join(node.errors),
        "lock": describe_lock(node.lock, now) if node.lock else None,
        "cards": [describe_card(state, namespaces) for state in cards],
    }


def describe_totals(nodes: Iterable[Object]) -> Object:
    """Sums over the nodes and cards that are returned, healthy or not."""
    totals: Object = {"nodes": 0, "cards": 0, "allocatable_slots": 0, "memory_mib": 0, "cores": 0, "slots": 0}
    allocated = amounts(Usage())
    for node in nodes:
        totals["nodes"] += 1
        totals["allocatable_slots"] += node["allocatable_slots"]
        for card in node["cards"]:
            totals["cards"] += 1
            for key in allocated:
                totals[key] += card[key]
                allocated[key] += card["allocated"][key]
    return {**totals, "allocated": allocated, "free": {key: totals[key] - allocated[key] for key in allocated}}
