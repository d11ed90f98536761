# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A cluster's state as the placement rules want it: from the API's objects, from hami_device_info, from profiles.

What cannot be read is left out and told as a problem, in one sentence with the node or pod and the offending text.
No input or output, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._capacity import Host
from ansible_collections.tenantry.gpu.plugins.module_utils._devices import PodState, node_state
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_PAIR_SCORES,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    Card,
    HamiFormatError,
    cards_from_profiles,
    parse_pair_scores,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    Node,
    PlacementError,
    Quota,
    Usage,
    Version,
    add_usage,
    parse_quantity,
    usage_of,
)

Object = Mapping[str, Any]

# Why kube-scheduler puts no pod of a case on a node, before HAMi is asked.
UNSCHEDULABLE = "node is unschedulable"
UNTOLERATED = "node has untolerated taint {}"

QUOTA_MEMORY = f"limits.{RESOURCE_MEMORY}"
QUOTA_CORES = f"limits.{RESOURCE_CORES}"
QUANTITY_LIMIT = 2**63


class SnapshotError(ValueError):
    """A declared node that cannot be understood; the message names it and says what to do."""


def _annotations(thing: Object) -> Mapping[str, str]:
    return (thing.get("metadata") or {}).get("annotations") or {}


# --- from the API ------------------------------------------------------------------------


def hosts_of(
    nodes: Iterable[Object],
    pods: Sequence[PodState],
    version: Version = Version.V2_10,
    tolerated: Collection[str] = (),
) -> tuple[list[Host], list[str]]:
    """The hosts that these nodes and the pods on them are, and the problems with what could not be read.

    tolerated are keys of taints that do not matter; * is all.
    """
    taken, problems = usage_by_node(pods, version)
    hosts = []
    known: dict[str, set[str]] = {}
    for node in nodes:
        host, found = _host_of(node, taken, tolerated)
        hosts.append(host)
        problems += found
        known[host.name] = {card.uuid for card in host.node.cards}
    for name, usage in sorted(taken.items()):
        gone = sorted(set(usage) - known[name]) if name in known else ()
        problems += [f"node {name}: pods have shares of card {uuid}, which the node does not declare." for uuid in gone]
    return hosts, problems


def _host_of(
    node: Object, taken: Mapping[str, Mapping[str, Usage]], tolerated: Collection[str]
) -> tuple[Host, list[str]]:
    state = node_state(node)
    found = [*state.errors, *([f"{state.old} is that of a HAMi before 2.6"] if state.old else [])]
    scores: Mapping[str, Mapping[str, int]] = {}
    text = _annotations(node).get(NODE_PAIR_SCORES)
    try:
        scores = parse_pair_scores(text) if text else {}
    except HamiFormatError as error:
        found.append(str(error))
    cards = tuple(each.card for each in state.cards)
    usage = taken.get(state.name, {})
    for card in cards:
        used = usage.get(card.uuid, Usage())
        if used.slots > card.slots or used.memory_mib > card.memory_mib or used.cores > card.cores:
            found.append(f"more is allocated of card {card.uuid} than it has")
    if cards and not state.allocatable_slots:
        # HAMi takes such a node's cards for gone: CheckHealth, HAMi 2.10 pkg/device/nvidia/device.go.
        found.append(f"declares {len(cards)} cards, but no {RESOURCE_COUNT} is allocatable on it")
        cards = ()
    cordoned = frozenset(each.card.uuid for each in state.cards if each.cordoned)
    labels = (node.get("metadata") or {}).get("labels") or {}
    host = Host(Node(state.name, cards, usage, cordoned, scores), labels, _closed(node, tolerated))
    return host, [f"node {state.name}: {text}." for text in found]


def _closed(node: Object, tolerated: Collection[str]) -> str:
    """Why kube-scheduler puts no pod with these tolerations on a node, or nothing."""
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return UNSCHEDULABLE
    for taint in spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not {taint.get("key"), "*"} & set(tolerated):
            value = f"={taint['value']}" if taint.get("value") else ""
            return UNTOLERATED.format(f"{taint.get('key')}{value}:{taint['effect']}")
    return ""


def usage_by_node(
    pods: Sequence[PodState], version: Version = Version.V2_10
) -> tuple[dict[str, dict[str, Usage]], list[str]]:
    """What pods take of each card, by node and UUID, and the problems with those that cannot be read."""
    taken: dict[str, list[dict[str, Usage]]] = {}
    for pod in pods:
        if pod.assigned and pod.allocation:
            usage = usage_of(pod.allocation, pod.init_count, pod.init_finished, version)
            taken.setdefault(pod.assigned, []).append(usage)
    problems = [f"pod {pod.title}: {pod.error}." for pod in pods if pod.error]
    return {node: add_usage(usages) for node, usages in taken.items()}, problems


def quota_of(
    quotas: Iterable[Object], pods: Iterable[PodState], namespace: str, version: Version = Version.V2_10
) -> tuple[Quota | None, list[str]]:
    """The quota that HAMi holds a namespace to, from its ResourceQuotas and all pods; None without limits.

    Of several ResourceQuotas with the same limit HAMi knows only the one that it saw last; here the lowest counts.
    addQuotaLocked, HAMi 2.10 pkg/device/quota.go.
    """
    limits: dict[str, int] = {}
    problems = []
    for quota in quotas:
        name = quota["metadata"]["name"]
        for key in (QUOTA_MEMORY, QUOTA_CORES):
            text = ((quota.get("spec") or {}).get("hard") or {}).get(key)
            if text is None:
                continue
            try:
                amount = parse_quantity(text)
            except PlacementError as error:
                problems.append(f"ResourceQuota {namespace}/{name}: {key}: {error}.")
                continue
            if amount != int(amount) or abs(amount) >= QUANTITY_LIMIT:
                problems.append(f"ResourceQuota {namespace}/{name}: {key} {text} is no whole number: HAMi ignores it.")
                continue
            if key in limits:
                problems.append(
                    f"ResourceQuota {namespace}/{name}: {key} stands in another one, too; HAMi counts the one that it "
                    "saw last, this plan the lowest."
                )
            limits[key] = min(limits.get(key, int(amount)), int(amount))
    if not limits:
        return None, problems
    mine = [pod for pod in pods if pod.namespace == namespace]
    # What cannot be read is a problem of usage_by_node's already.
    taken, _told = usage_by_node(mine, version)
    used = [usage for cards in taken.values() for usage in cards.values()]
    total = Usage(0, sum(usage.memory_mib for usage in used), sum(usage.cores for usage in used))
    return Quota(limits.get(QUOTA_MEMORY), limits.get(QUOTA_CORES), total), problems


# --- from declarations -------------------------------------------------------------------


def declared_hosts(nodes: object) -> list[Host]:
    """Hosts from a list of nodes, each with a name and cards: profiles, or cards as hami_device_info gives them.

    Raises SnapshotError, which names the node.
    """
    if not isinstance(nodes, (list, tuple)):
        raise SnapshotError(f"{nodes!r} is no list of nodes; give one of {{name: ..., cards: [...]}}.")
    hosts = [_declared_host(node) for node in nodes]
    names = [host.name for host in hosts]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SnapshotError(f"node {twice[0]} stands twice; give each its own name.")
    return hosts


def _declared_host(node: object) -> Host:
    if not isinstance(node, Mapping) or not isinstance(node.get("name"), str) or not node["name"]:
        raise SnapshotError(f"{node!r} is no node; give each a name and cards.")
    name, cards, labels = node["name"], node.get("cards") or [], node.get("labels") or {}
    if not isinstance(cards, (list, tuple)) or not all(isinstance(card, Mapping) for card in cards):
        raise SnapshotError(f"node {name}: cards {cards!r} is no list of cards; give profiles such as {{profile: l4}}.")
    if not isinstance(labels, Mapping):
        raise SnapshotError(f"node {name}: labels {labels!r} is no dictionary.")
    seen = [card for card in cards if "uuid" in card]
    if seen and len(seen) < len(cards):
        raise SnapshotError(f"node {name}: mixes cards with and without uuid; give one or the other.")
    if seen:
        return Host(_seen_node(name, node, seen), labels)
    try:
        return Host(Node(name, tuple(cards_from_profiles(name, cards))), labels)
    except HamiFormatError as error:
        raise SnapshotError(f"node {error}") from error


def _seen_node(name: str, node: Mapping[str, Any], cards: Iterable[Mapping[str, Any]]) -> Node:
    """A node as hami_device_info describes it."""
    made, usage = [], {}
    for card in cards:
        uuid = card["uuid"]
        if not isinstance(uuid, str) or not uuid or uuid in usage:
            raise SnapshotError(f"node {name}: card uuid {uuid!r} is no text, or stands twice.")
        numbers = {key: _number(name, card, key, 0) for key in ("index", "slots", "memory_mib", "cores")}
        texts = {key: str(card[key]) for key in ("type", "mode") if card.get(key)}
        numa = _number(name, card, "numa", -1)
        made.append(Card(uuid, **numbers, **texts, numa=numa, healthy=bool(card.get("healthy", True))))  # type: ignore[arg-type]
        allocated = card.get("allocated") or {}
        if not isinstance(allocated, Mapping):
            raise SnapshotError(f"node {name}: allocated {allocated!r} of card {uuid} is no dictionary.")
        usage[uuid] = Usage(*(_number(name, allocated, key, 0) for key in ("slots", "memory_mib", "cores")))
    cordoned = frozenset(str(card["uuid"]) for card in cards if card.get("cordoned"))
    # hami_device_info says so of nodes whose cards HAMi takes for gone (see _host_of).
    gone = node.get("allocatable_slots") == 0
    return Node(name, () if gone else tuple(made), usage, cordoned)


def _number(node: str, card: Mapping[str, Any], key: str, minimum: int) -> int:
    value = card.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise SnapshotError(f"node {node}: {key} {value!r} of a card is no number of at least {minimum}.")
    return value
