#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: hami_node_devices
short_description: Declares, cordons and removes the cards of many nodes
version_added: "0.1.0"
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - Writes which NVIDIA cards a node has, as HAMi's device plugin does it, for nodes that no plugin serves,
    for example those of C(kwok).
  - All nodes are read with one list and checked before the first is changed. Only those that differ are patched,
    several at a time. A node that changed meanwhile is read again, so nobody's change is lost.
  - Other vendors' entries, registers and annotations stay as they are.
  - A node whose register a device plugin writes is refused. That is HAMi's or NVIDIA's plugin or this collection's
    simulator where a pod of its DaemonSet runs, or any that answers HAMi's handshake.
notes:
  - The smallest ClusterRole with which it works is docs/reference/rights/hami_node_devices.yml.
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - tenantry.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) gives the nodes these cards and no other NVIDIA cards.
      - V(absent) removes their NVIDIA cards and their cordon.
      - V(cordoned) keeps new pods off the cards of O(cordoned), or off all if it is not given, in addition to those
        that are cordoned already. It writes nothing that a plugin writes, so it works on nodes with real cards, too.
      - HAMi heeds a cordon since 2.10, but only of a node that it registers anew. So a change of the cordon removes
        the scheduler's handshake, upon which it does so within 15 seconds.
    type: str
    choices: [present, absent, cordoned]
    default: present
  nodes:
    description: The nodes, each with what is its own.
    type: list
    elements: dict
    suboptions:
      name:
        description: Name of the node.
        type: str
        required: true
      cards:
        description: Its cards; those of O(cards) if not given.
        type: list
        elements: dict
        suboptions: &card
          profile:
            description:
              - The kind of card, one of V(a100-40g), V(a100-80g), V(h100), V(h200), V(b200), V(l4), V(l40s), V(t4)
                and V(rtx-4090). The other options replace what the profile says.
              - Without it, the card's type and memory_mib are required.
            type: str
          count:
            description: Number of such cards, from 1 to 1024.
            type: int
            default: 1
          uuid:
            description: UUID of the card. If not given, it follows from node, profile (or type) and index.
            type: str
          index:
            description: Index of the card on its node. If not given, its place in the list.
            type: int
          type:
            description: Type as HAMi registers it; it contains V(NVIDIA).
            type: str
          memory_mib:
            description: Memory, in MiB.
            type: int
          cores:
            description: Compute, in percent; V(100) is one whole card, and what a profile says.
            type: int
          slots:
            description: Number of containers that may share the card; V(10) is what a profile says.
            type: int
          numa:
            description: NUMA node; V(-1) is none.
            type: int
            default: 0
          mode:
            description: How the card is shared.
            type: str
            default: hami-core
          healthy:
            description: Whether the card is healthy.
            type: bool
            default: true
      cordoned:
        description: Its cordoned cards; those of O(cordoned) if not given.
        type: list
        elements: str
  names:
    description: Names of nodes that are all alike.
    type: list
    elements: str
  label_selector:
    description: Labels of nodes that are all alike, for example V(type=kwok).
    type: str
  cards:
    description:
      - The cards of each node that does not give its own.
      - Required when O(state=present), unless only O(cordoned), O(labels) or O(allocatable) are to be seen to.
    type: list
    elements: dict
    suboptions: *card
  cordoned:
    description:
      - UUIDs or indexes of cards that get no new pods.
      - With O(state=present), these and no others; an empty list takes every cordon away. Nothing is changed
        if not given.
    type: list
    elements: str
  register_format:
    description:
      - V(json) is what HAMi 2.8 and later reads, V(colons) what 2.6 and 2.7 write.
      - V(found) keeps the format that a node has. A node without cards gets the one that most nodes have, V(json)
        if there are none.
    type: str
    choices: [found, json, colons]
    default: found
  labels:
    description: Labels that the nodes get with O(state=present), and lose with O(state=absent).
    type: dict
    default: {}
  allocatable:
    description:
      - Whether to write the number of healthy slots into capacity and allocatable V(nvidia.com/gpu) of the nodes'
        status, too, or to remove it with O(state=absent). HAMi takes a node for alive only if that is above zero.
      - For nodes on which no device plugin offers slots to kubelet. Ignored with O(state=cordoned).
    type: bool
    default: false
  force:
    description:
      - Whether to write nodes that a plugin serves and registers that cannot be read, too.
      - A plugin that runs will not notice; HAMi's writes its register again only when its cards change or it restarts.
    type: bool
    default: false
seealso:
  - module: tenantry.gpu.hami_device_info
  - module: tenantry.gpu.hami_allocation
"""

EXAMPLES = r"""
- name: Every node of kwok has eight H100
  tenantry.gpu.hami_node_devices:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    label_selector: type=kwok
    cards:
      - {profile: h100, count: 8}
    labels: {gpu: "on"}
    allocatable: true

- name: Two nodes with cards of their own
  tenantry.gpu.hami_node_devices:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    nodes:
      - name: kwok-0
        cards:
          - {profile: a100-80g, count: 4, numa: 0}
          - {profile: a100-80g, count: 4, numa: 1}
      - name: kwok-1
        cards:
          - {type: NVIDIA-NVIDIA A10, memory_mib: 23028, slots: 4, uuid: GPU-6d0c1c9b-6a53-5c6e-9d7f-0d7b1f0f6b0e}

- name: No new pods on the first card of kwok-0
  tenantry.gpu.hami_node_devices:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    state: cordoned
    names: [kwok-0]
    cordoned: ["0"]

- name: All its cards take pods again
  tenantry.gpu.hami_node_devices:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    names: [kwok-0]
    cordoned: []

- name: It has no cards any more
  tenantry.gpu.hami_node_devices:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    state: absent
    names: [kwok-0]
    allocatable: true
"""

RETURN = r"""
nodes:
  description: The nodes as they are now, or would be in check mode, by name.
  returned: success, and when some nodes could not be written
  type: list
  elements: dict
  contains:
    name:
      description: Name of the node.
      type: str
      sample: kwok-0
    changed:
      description: Whether it was changed.
      type: bool
      sample: true
    register_format:
      description: Format of its register.
      type: str
      sample: json
    slots:
      description: Number of slots of its healthy cards.
      type: int
      sample: 10
    cards:
      description: Its NVIDIA cards.
      type: list
      elements: dict
      sample:
        - uuid: GPU-6d0c1c9b-6a53-5c6e-9d7f-0d7b1f0f6b0e
          index: 0
          type: NVIDIA-NVIDIA A100-SXM4-80GB
          memory_mib: 81920
          cores: 100
          slots: 10
          numa: 0
          mode: hami-core
          healthy: true
          cordoned: false
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import Cluster, ClusterError, connect, new_module
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_CORDON,
    NODE_HANDSHAKE,
    NODE_REGISTER,
    RESOURCE_COUNT,
    Card,
    HamiFormatError,
    cards_from_profiles,
    format_cordon,
    is_nvidia,
    parse_cordon,
    parse_register,
    replace_cards,
    uses_colons,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._plugins import Plugins

Object = dict[str, Any]

NODES = "/api/v1/nodes"
# As many patches at a time as the client keeps connections, and no more than an API server gives one user.
PARALLEL = 8
PROBLEMS_TOLD = 5

CARD_OPTIONS: Object = {
    "profile": {"type": "str"},
    "count": {"type": "int", "default": 1},
    "uuid": {"type": "str"},
    "index": {"type": "int"},
    "type": {"type": "str"},
    "memory_mib": {"type": "int"},
    "cores": {"type": "int"},
    "slots": {"type": "int"},
    "numa": {"type": "int", "default": 0},
    "mode": {"type": "str", "default": "hami-core"},
    "healthy": {"type": "bool", "default": True},
}
CARDS: Object = {"type": "list", "elements": "dict", "options": CARD_OPTIONS}
OPTIONS: Object = {
    "state": {"type": "str", "choices": ["present", "absent", "cordoned"], "default": "present"},
    "nodes": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "cards": CARDS,
            "cordoned": {"type": "list", "elements": "str"},
        },
    },
    "names": {"type": "list", "elements": "str"},
    "label_selector": {"type": "str"},
    "cards": CARDS,
    "cordoned": {"type": "list", "elements": "str"},
    "register_format": {"type": "str", "choices": ["found", "json", "colons"], "default": "found"},
    "labels": {"type": "dict", "default": {}},
    "allocatable": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": False},
}


class DeclarationError(Exception):
    """What was declared cannot be, or must not be; nothing has been changed."""


@dataclass(frozen=True)
class State:
    """What this module sees to on a node; empty texts are annotations that are not there."""

    register: str
    cordon: str
    labels: tuple[tuple[str, str | None], ...]
    capacity: str
    allocatable: str

    @property
    def slots(self) -> tuple[str, str]:
        return self.capacity, self.allocatable


@dataclass(frozen=True)
class Wish:
    """What a node shall have; None leaves it as it is."""

    cards: tuple[Card, ...] | None
    cordoned: tuple[str, ...] | None


@dataclass(frozen=True)
class Settings:
    """What all nodes have in common."""

    state: str
    register_format: str
    labels: Mapping[str, str]
    allocatable: bool
    force: bool


# --- what a node has, and what it shall have ---


def state_of(node: Object, settings: Settings) -> State:
    """What a node has of that which the settings name."""
    metadata, status = node["metadata"], node.get("status") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    capacity, allocatable = (
        str((status.get(key) or {}).get(RESOURCE_COUNT, "")) if settings.allocatable else ""
        for key in ("capacity", "allocatable")
    )
    return State(
        register=annotations.get(NODE_REGISTER, ""),
        cordon=annotations.get(NODE_CORDON, ""),
        labels=tuple((key, labels.get(key)) for key in sorted(settings.labels)),
        capacity=capacity,
        allocatable=allocatable,
    )


def wanted(found: State, wish: Wish, settings: Settings) -> State:
    """What a node shall have. Raises HamiFormatError, DeclarationError."""
    if settings.state == "absent":
        register = _register(found.register, (), settings)
        no_labels = tuple((key, None) for key, _value in found.labels)
        return State(register=register, cordon="", labels=no_labels, capacity="", allocatable="")
    register = found.register if wish.cards is None else _register(found.register, wish.cards, settings)
    cards = nvidia_cards(register)
    if settings.state == "cordoned":
        chosen = _chosen(cards, wish.cordoned) if wish.cordoned is not None else {card.uuid for card in cards}
        return replace(found, cordon=_cordon(found.cordon, chosen | parse_cordon(found.cordon)))
    slots = str(sum(card.slots for card in cards if card.healthy)) if settings.allocatable else ""
    return State(
        register=register,
        cordon=found.cordon if wish.cordoned is None else _cordon(found.cordon, _chosen(cards, wish.cordoned)),
        labels=tuple(sorted(settings.labels.items())),
        capacity=slots,
        allocatable=slots,
    )


def nvidia_cards(register: str) -> list[Card]:
    """The NVIDIA cards of a register; none if it is empty. Raises HamiFormatError."""
    return [card for card in parse_register(register) if is_nvidia(card)] if register else []


def _register(found: str, cards: Sequence[Card], settings: Settings) -> str:
    """The register with these cards; as it was found if it says the same."""
    colons = settings.register_format == "colons" if settings.register_format != "found" else uses_colons(found)
    try:
        if found and uses_colons(found) == colons and nvidia_cards(found) == list(cards):
            return found
        return replace_cards(found, cards, colons)
    except HamiFormatError:
        if not settings.force:
            raise
        return replace_cards("", cards, colons)


def _cordon(found: str, uuids: Iterable[str]) -> str:
    """The cordon of these cards; as it was found if it says the same."""
    wanted_uuids = frozenset(uuids)
    return found if parse_cordon(found) == wanted_uuids else format_cordon(wanted_uuids)


def _chosen(cards: Sequence[Card], names: Iterable[str]) -> set[str]:
    """UUIDs of the cards that are named by UUID or index. Raises DeclarationError."""
    chosen = set()
    for name in names:
        meant = [card.uuid for card in cards if name in (card.uuid, str(card.index))]
        if len(meant) != 1:
            known = ", ".join(f"{card.index} ({card.uuid})" for card in cards) or "none"
            how_many = "several cards" if meant else "no card"
            raise DeclarationError(f"it has {how_many} {name!r} to cordon, of {known}")
        chosen.update(meant)
    return chosen


# --- from the options to a wish for each node ---


class Declaration:
    """What the options ask for, for each node."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params
        self._own = {entry["name"]: entry for entry in params["nodes"] or ()}
        self.label_selector: str = params["label_selector"] or ""
        self.problems: list[str] = []
        names = [*(entry["name"] for entry in params["nodes"] or ()), *(params["names"] or ())]
        self.names = list(dict.fromkeys(names))
        self.problems += [f"{name}: the node is named twice" for name, times in Counter(names).items() if times > 1]
        self.settings = Settings(
            state=params["state"],
            register_format=params["register_format"],
            labels=self._labels(params["labels"] or {}),
            allocatable=params["allocatable"] and params["state"] != "cordoned",
            force=params["force"],
        )

    def wish(self, name: str) -> Wish | None:
        """What this node shall have; None, and a problem more, if that cannot be."""
        own = self._own.get(name, {})
        cards = own.get("cards") if own.get("cards") is not None else self._params["cards"]
        cordoned = own.get("cordoned") if own.get("cordoned") is not None else self._params["cordoned"]
        settings = self.settings
        if settings.state != "present":
            cards = None
        elif cards is None and cordoned is None and not settings.labels and not settings.allocatable:
            self.problems.append(f"{name}: cards or cordoned must be given")
            return None
        elif cards is not None and not cards:
            self.problems.append(f"{name}: its list of cards is empty; use state: absent for a node without cards")
            return None
        try:
            declared = [{key: value for key, value in card.items() if value is not None} for card in cards or ()]
            made = tuple(cards_from_profiles(name, declared)) if cards is not None else None
        except HamiFormatError as error:
            self.problems.append(str(error).rstrip("."))
            return None
        return Wish(made, tuple(cordoned) if cordoned is not None else None)

    def _labels(self, labels: Mapping[str, Any]) -> dict[str, str]:
        for key, value in labels.items():
            if not isinstance(value, str):
                self.problems.append(f'labels: {key} is {value!r}; put its value in quotes, as in {key}: "on"')
        return {str(key): str(value) for key, value in labels.items()}


# --- all nodes ---


@dataclass(frozen=True)
class Plan:
    """What becomes of one node."""

    node: Object
    wish: Wish
    before: State
    after: State

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def changed(self) -> bool:
        return self.before != self.after


def most_common_format(nodes: Iterable[Object]) -> str:
    """The format of the registers that nodes have."""
    registers = ((node["metadata"].get("annotations") or {}).get(NODE_REGISTER, "") for node in nodes)
    counts = Counter("colons" if uses_colons(register) else "json" for register in registers if register)
    return "colons" if counts["colons"] > counts["json"] else "json"


class Declarer:
    """Makes the nodes of one cluster have what is declared."""

    def __init__(self, cluster: Cluster, declaration: Declaration) -> None:
        self._cluster, self._declaration, self._settings = cluster, declaration, declaration.settings
        self._problems = declaration.problems
        self._usual_format = "json"

    def plan(self) -> list[Plan]:
        """Read all nodes and check them. Raises DeclarationError, ClusterError."""
        selector = self._declaration.label_selector
        query = {"labelSelector": selector} if selector else {}
        listed = self._list(**query)
        if selector and not listed:
            raise DeclarationError(f"No node has the labels {selector}.")
        names = self._declaration.names or sorted(listed)
        self._problems += [f"{name}: there is no such node" for name in names if name not in listed]
        self._usual_format = most_common_format(listed.values())
        plans = [plan for name in names if name in listed and (plan := self._plan_of(listed[name]))]
        if any(plan.changed for plan in plans):
            self._refuse_twins(plans, self._list() if selector and self._settings.state == "present" else listed)
            self._refuse_served(plans)
        self._raise_problems()
        return sorted(plans, key=lambda plan: plan.name)

    def apply(self, plans: Iterable[Plan]) -> dict[str, str]:
        """Write the nodes that change; gives what went wrong, by node."""
        with ThreadPoolExecutor(PARALLEL) as pool:
            tries = pool.map(self._try, [plan for plan in plans if plan.changed])
        return {name: problem for name, problem in tries if problem}

    def _list(self, **query: str) -> dict[str, Object]:
        nodes = self._cluster.list(NODES, metadata_only=not self._settings.allocatable, **query)
        return {node["metadata"]["name"]: node for node in nodes}

    def _settings_for(self, found: State) -> Settings:
        """The settings with the format that a node's register shall have."""
        if self._settings.register_format != "found" or found.register:
            return self._settings
        return replace(self._settings, register_format=self._usual_format)

    def _plan_of(self, node: Object) -> Plan | None:
        name = node["metadata"]["name"]
        wish = self._declaration.wish(name)
        if wish is None:
            return None
        before = state_of(node, self._settings)
        try:
            return Plan(node, wish, before, wanted(before, wish, self._settings_for(before)))
        except HamiFormatError as error:
            advice = (
                "; force: true replaces it" if self._settings.state != "cordoned" and not self._settings.force else ""
            )
            self._problems.append(f"{name}: {error}{advice}")
        except DeclarationError as error:
            self._problems.append(f"{name}: {error}")
        return None

    def _refuse_twins(self, plans: Iterable[Plan], nodes: Mapping[str, Object]) -> None:
        """A card's UUID must stand on one node of the cluster only."""
        declared = {plan.name: plan for plan in plans if plan.wish.cards is not None}
        owners: dict[str, str] = {}
        for name, node in nodes.items():
            if name in declared:
                continue
            try:
                owners.update((card.uuid, name) for card in nvidia_cards(state_of(node, self._settings).register))
            except HamiFormatError:
                continue  # hami_device_info tells of it; this run leaves it alone
        for name, plan in declared.items():
            for card in plan.wish.cards or ():
                owner = owners.setdefault(card.uuid, name)
                if owner != name:
                    self._problems.append(f"{name}: card {card.uuid} is on {owner} already; give each its own uuid")

    def _refuse_served(self, plans: Iterable[Plan]) -> None:
        if self._settings.force or self._settings.state == "cordoned":
            return
        plugins: Plugins | None = None
        for plan in plans:
            if plan.before.register == plan.after.register and plan.before.slots == plan.after.slots:
                continue
            plugins = plugins or Plugins(self._cluster)
            name = plugins.registering(plan.node)
            if name:
                advice = "use force: true to write them anyway"
                self._problems.append(f"{plan.name}: {name} serves this node and writes its cards; {advice}")

    def _raise_problems(self) -> None:
        if self._problems:
            more = len(self._problems) - PROBLEMS_TOLD
            told = [*self._problems[:PROBLEMS_TOLD], *([f"and {more} more of the kind"] if more > 0 else [])]
            raise DeclarationError(f"Nothing was changed. {'; '.join(told)}.")

    def _try(self, plan: Plan) -> tuple[str, str]:
        """Write one node; gives its name and what went wrong."""
        try:
            self._write(plan)
        except ClusterError as error:
            return plan.name, "it vanished meanwhile" if error.status == 404 else str(error)
        except (HamiFormatError, DeclarationError) as error:
            return plan.name, f"it changed meanwhile: {error}"
        return plan.name, ""

    def _write(self, plan: Plan) -> None:
        def change(node: Object) -> Object | None:
            before = state_of(node, self._settings)
            return patch_of(before, wanted(before, plan.wish, self._settings_for(before)))

        # Through the status, annotations and labels can be written, too: kubelet does it.
        subresource = "/status" if self._settings.allocatable else ""
        self._cluster.edit(f"{NODES}/{plan.name}", change, plan.node, subresource)


def patch_of(before: State, after: State) -> Object | None:
    """The merge patch that makes a node so; None if it is."""
    if before == after:
        return None
    both = ((NODE_REGISTER, before.register, after.register), (NODE_CORDON, before.cordon, after.cordon))
    annotations = {key: new or None for key, old, new in both if new != old}
    if NODE_CORDON in annotations:
        # HAMi 2.10 knows a node's annotations from when it last registered the node, which is when its cards, slots or
        # handshake changed (CheckHealth in pkg/device/nvidia/device.go, register in pkg/scheduler/scheduler.go).
        annotations[NODE_HANDSHAKE] = None
    body: Object = {
        "metadata": {
            "annotations": annotations,
            "labels": {key: new for (key, old), (_key, new) in zip(before.labels, after.labels) if new != old},
        }
    }
    if before.slots != after.slots:
        body["status"] = {
            "capacity": {RESOURCE_COUNT: after.capacity or None},
            "allocatable": {RESOURCE_COUNT: after.allocatable or None},
        }
    return body


# --- what is told ---


def describe(plan: Plan, problem: str = "") -> Object:
    """A node as it is now."""
    state = plan.before if problem else plan.after
    cordoned = parse_cordon(state.cordon)
    try:
        cards = nvidia_cards(state.register)
    except HamiFormatError:
        cards = []  # one that was to be replaced
    return {
        "name": plan.name,
        "changed": plan.changed and not problem,
        "register_format": "colons" if state.register and uses_colons(state.register) else "json",
        "slots": sum(card.slots for card in cards if card.healthy),
        "cards": [{**vars(card), "cordoned": card.uuid in cordoned} for card in cards],
    }


def as_text(name: str, state: State) -> str:
    """A node for a diff: a line for each card, label and amount."""
    lines = [f"{name}:"]
    try:
        cordoned = parse_cordon(state.cordon)
        cards = parse_register(state.register) if state.register else []
    except HamiFormatError:
        return f"{name}:\n  register: {state.register}\n"
    for card in cards:
        amounts = f"{card.memory_mib} MiB, {card.cores} cores, {card.slots} slots, numa {card.numa}, {card.mode}"
        health = "healthy" if card.healthy else "unhealthy"
        cordon = ", cordoned" if card.uuid in cordoned else ""
        lines.append(f"  card {card.index}: {card.uuid} {card.type}, {amounts}, {health}{cordon}")
    if cards:
        lines.append(f"  register: {'colons' if uses_colons(state.register) else 'json'}")
    strangers = cordoned - {card.uuid for card in cards}
    if strangers:
        lines.append(f"  cordoned elsewhere: {format_cordon(strangers)}")
    lines += [f"  label {key}: {value}" for key, value in state.labels if value is not None]
    if state.capacity or state.allocatable:
        lines.append(f"  allocatable {RESOURCE_COUNT}: {state.allocatable or 0} of {state.capacity or 0}")
    return "\n".join(lines) + "\n"


def diff_of(plans: Iterable[Plan]) -> Object:
    changed = [plan for plan in plans if plan.changed]
    return {
        "before": "".join(as_text(plan.name, plan.before) for plan in changed),
        "after": "".join(as_text(plan.name, plan.after) for plan in changed),
    }


def main() -> None:
    one = ["nodes", "names", "label_selector"]
    module = new_module(OPTIONS, mutually_exclusive=[one], required_one_of=[one])
    try:
        declarer = Declarer(connect(module), Declaration(module.params))
        plans = declarer.plan()
    except (DeclarationError, ClusterError) as error:
        module.fail_json(msg=str(error))
    failed = {} if module.check_mode else declarer.apply(plans)
    described = [describe(plan, failed.get(plan.name, "")) for plan in plans]
    result: Object = {"changed": any(node["changed"] for node in described), "nodes": described}
    if module._diff:
        result["diff"] = diff_of(plan for plan in plans if plan.name not in failed)
    if failed:
        told = [f"{name}: {problem}" for name, problem in sorted(failed.items())]
        more = f"; and {len(told) - PROBLEMS_TOLD} more" if len(told) > PROBLEMS_TOLD else ""
        count = len(plans) - len(failed)
        done = f"the other {count} nodes are as declared" if count else "no node could be written"
        module.fail_json(msg=f"{'; '.join(told[:PROBLEMS_TOLD])}{more}; {done}.", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
