# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Many nodes that take many pods one after the other, each where place() would put it, thousands a second.

A node is judged by its cards and by what is taken of them. Nodes that are alike in both are of one kind, and
a kind is judged once for each way of asking, however many nodes and pods there are. Placing a pod makes one
node another kind; nothing else is looked at again. No input or output, no clock.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Union

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    POD_NOUSE_UUID,
    POD_USE_UUID,
    Allocation,
    Card,
    Share,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    Fit,
    Judge,
    Node,
    PodRequest,
    Quota,
    Refusal,
    Rules,
    Usage,
    aligned,
    node_score,
    usage_of,
)

# In the place of HAMi's reason, where kube-scheduler leaves a node out before HAMi is asked.
SELECTOR_MISMATCH = "node selector does not match"

TIES_TOLD = 5

_NOTHING = Usage()
Labels = Mapping[str, str]
_Marks = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Host:
    """A node as kube-scheduler sees it, too: its labels, and why it takes no pod at all (empty: it does)."""

    node: Node
    labels: Labels = field(default_factory=dict)
    closed: str = ""

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class Landing:
    """Where a pod went: its node, the card's place on the node and what it takes, for each container.

    tie_count nodes were equally good; ties are the first few of them by name, of which the pod took the first.
    """

    host: Host
    entries: tuple[tuple[tuple[int, Share], ...], ...]
    taken: tuple[tuple[int, Usage], ...]
    ties: tuple[str, ...]
    tie_count: int

    @property
    def node(self) -> str:
        return self.host.name

    @property
    def allocation(self) -> Allocation:
        """The shares of each container, init containers first."""
        return tuple(tuple(share for _card, share in self.of_cards(entry)) for entry in self.entries)

    @property
    def cards(self) -> tuple[tuple[tuple[Card, Share], ...], ...]:
        """The shares of each container with their cards."""
        return tuple(tuple(self.of_cards(entry)) for entry in self.entries)

    def of_cards(self, entry: Iterable[tuple[int, Share]]) -> Iterable[tuple[Card, Share]]:
        cards = self.host.node.cards
        return ((cards[position], replace(share, uuid=cards[position].uuid)) for position, share in entry)


@dataclass(frozen=True)
class _Yes:
    """That nodes of a kind take a pod: the shares of each container, what they add up to, and the kind afterwards."""

    entries: tuple[tuple[tuple[int, Share], ...], ...]
    taken: tuple[tuple[int, Usage], ...]
    after: int


_Verdict = Union[_Yes, str]


@dataclass(frozen=True)
class _Kind:
    """Nodes that are alike: one of them stands for all."""

    build: int
    usage: tuple[Usage, ...]
    host: Host
    score: float


class _Shape:
    """One way of asking, and what is known of each kind about it."""

    def __init__(self, judge: Judge, request: PodRequest, selector: _Marks) -> None:
        self.judge, self.request, self.selector = judge, request, selector
        self.verdicts: dict[int, _Verdict] = {}


class _Catalogue:
    """What is known of kinds and shapes. Nothing in it ever changes, so copies of a fleet share it."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.kinds: list[_Kind] = []
        self.largest_mib = 0
        self._builds: dict[object, int] = {}
        self._numbers: dict[tuple[int, tuple[Usage, ...]], int] = {}
        self._shapes: dict[object, _Shape] = {}

    def kind_of(self, host: Host, uuids: frozenset[str], labels: frozenset[str]) -> int:
        """The number of a host's kind; UUIDs and labels that some pod names tell nodes apart."""
        node = host.node
        cards = tuple(replace(card, uuid=card.uuid if card.uuid in uuids else "") for card in node.cards)
        cordoned = tuple(card.uuid in node.cordoned for card in node.cards)
        marks = tuple(sorted((key, value) for key, value in host.labels.items() if key in labels))
        build: object = (cards, cordoned, marks, host.closed, node.name if node.pair_scores else "")
        self.largest_mib = max([self.largest_mib, *(card.memory_mib for card in node.cards)])
        usage = tuple(node.usage.get(card.uuid, _NOTHING) for card in node.cards)
        return self._number(self._builds.setdefault(build, len(self._builds)), usage, host)

    def moved(self, kind: int, taken: Iterable[tuple[int, Usage]], sign: int = 1) -> int:
        """The kind that a node of this kind becomes when so much is taken of its cards, or (sign -1) given back."""
        old = self.kinds[kind]
        usage = list(old.usage)
        for position, more in taken:
            now = usage[position]
            usage[position] = Usage(
                now.slots + sign * more.slots, now.memory_mib + sign * more.memory_mib, now.cores + sign * more.cores
            )
        return self._number(old.build, tuple(usage), old.host)

    def _number(self, build: int, usage: tuple[Usage, ...], host: Host) -> int:
        key = (build, usage)
        number = self._numbers.get(key)
        if number is None:
            node = replace(host.node, usage={card.uuid: taken for card, taken in zip(host.node.cards, usage)})
            number = self._numbers[key] = len(self.kinds)
            self.kinds.append(_Kind(build, usage, replace(host, node=node), node_score(node)))
        return number

    def shape_of(self, request: PodRequest, selector: _Marks, quota: Quota | None) -> _Shape:
        marks = tuple(sorted(request.annotations.items()))
        key = (request.init, request.containers, marks, selector, quota)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape(Judge(request, self.rules, quota), request, selector)
        return shape

    def verdict(self, shape: _Shape, kind: int) -> _Verdict:
        verdict = shape.verdicts.get(kind)
        if verdict is None:
            verdict = shape.verdicts[kind] = self._judged(shape, kind)
        return verdict

    def _judged(self, shape: _Shape, kind: int) -> _Verdict:
        host, request = self.kinds[kind].host, shape.request
        if host.closed:
            return host.closed
        if any(host.labels.get(key) != value for key, value in shape.selector):
            return SELECTOR_MISMATCH
        found = shape.judge.verdict(host.node)
        if not isinstance(found, Fit):
            return found
        place = {card.uuid: position for position, card in enumerate(host.node.cards)}
        entries = tuple(
            tuple((place[share.uuid], share) for share in entry) for entry in aligned(found.written, request)
        )
        usage = usage_of(found.written, len(request.init))
        taken = tuple((place[uuid], more) for uuid, more in usage.items())
        return _Yes(entries, taken, self.moved(kind, taken))


class _Queue:
    """The kinds that may take pods of one shape, the best first. Those that do not are dropped when they come up."""

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        self.heap: list[tuple[float, int]] = []
        self.held: set[int] = set()
        self.seen = 0
        self.refusal: tuple[int, Refusal] | None = None

    def add(self, kind: int, score: float) -> None:
        if kind not in self.held:
            self.held.add(kind)
            heapq.heappush(self.heap, (score if self.shape.judge.prefers_empty else -score, kind))

    def take(self) -> tuple[float, int]:
        score, kind = heapq.heappop(self.heap)
        self.held.discard(kind)
        return score, kind


class Fleet:
    """Hosts and a namespace's quota, as pods take from them.

    Every answer of place() is that of _placement.place() on the same nodes; of equal nodes the first by name.
    """

    def __init__(self, hosts: Iterable[Host], rules: Rules = Rules(), quota: Quota | None = None) -> None:
        self.rules = rules
        self.quota = quota
        self._hosts = {host.name: host for host in hosts}
        self._uuids: frozenset[str] = frozenset()
        self._labels: frozenset[str] = frozenset()
        self._regroup(_Catalogue(rules))

    def _regroup(self, catalogue: _Catalogue) -> None:
        self._catalogue = catalogue
        self._kinds = {
            name: catalogue.kind_of(host, self._uuids, self._labels) for name, host in sorted(self._hosts.items())
        }
        self._members: dict[int, list[str]] = {}
        for name, kind in self._kinds.items():
            self._members.setdefault(kind, []).append(name)
        # The kinds in the order in which they came to have members, from which each queue catches up.
        self._log = list(self._members)
        self._queues: dict[_Shape, _Queue] = {}
        self._moves = 0

    @property
    def hosts(self) -> list[Host]:
        """All hosts by name, with what is taken of them now."""
        return [self.host(name) for name in self._kinds]

    def host(self, name: str) -> Host:
        """A host with what is taken of it now."""
        host, usage = self._hosts[name], self._catalogue.kinds[self._kinds[name]].usage
        taken = {card.uuid: used for card, used in zip(host.node.cards, usage)}
        return replace(host, node=replace(host.node, usage={**host.node.usage, **taken}))

    def kinds(self) -> list[Host]:
        """One host of each kind there is, the first by name, with what is taken of it now."""
        return [self.host(names[0]) for _kind, names in sorted(self._members.items()) if names]

    def copy(self) -> Fleet:
        """A fleet of the same state, which goes its own way from here on but shares what is known."""
        other = Fleet.__new__(Fleet)
        other.__dict__.update(self.__dict__)
        other._kinds = dict(self._kinds)
        other._members = {kind: list(names) for kind, names in self._members.items() if names}
        other._log = list(other._members)
        other._queues = {}
        return other

    def with_hosts(self, hosts: Iterable[Host]) -> Fleet:
        """A copy in which these hosts replace those of their names, or are added."""
        other = self.copy()
        other._hosts = {**{host.name: host for host in self.hosts}, **{host.name: host for host in hosts}}
        other._regroup(self._catalogue)
        return other

    def with_quota(self, quota: Quota | None) -> Fleet:
        """A copy with another quota."""
        other = self.copy()
        other.quota = quota
        return other

    def with_rules(self, rules: Rules) -> Fleet:
        """A copy in the same state under other rules."""
        return Fleet(self.hosts, rules, self.quota)

    def place(self, request: PodRequest, selector: Labels | None = None) -> Landing | Refusal:
        """Place a pod that asks for cards, on nodes that have these labels. Raises PlacementError as place() does."""
        marks = tuple(sorted((selector or {}).items()))
        self._tell_apart(request, marks)
        queue = self._queue(self._catalogue.shape_of(request, marks, self._binding_quota(request)))
        best = self._best(queue)
        if not best:
            return self._refusal(queue)
        kind = min(best, key=lambda each: self._members[each][0])
        verdict = self._catalogue.verdict(queue.shape, kind)
        if isinstance(verdict, str):
            raise AssertionError(verdict)
        name = self._members[kind][0]
        landing = Landing(self._hosts[name], verdict.entries, verdict.taken, *self._ties(best))
        self._move(name, kind, verdict.after)
        self._count(landing, 1)
        return landing

    def release(self, landing: Landing) -> None:
        """Take a pod away again."""
        kind = self._kinds[landing.node]
        self._move(landing.node, kind, self._catalogue.moved(kind, landing.taken, -1))
        self._count(landing, -1)

    def _tell_apart(self, request: PodRequest, marks: _Marks) -> None:
        """Nodes that differ in what a pod names must not be of one kind."""
        named = ",".join(request.annotations.get(key) or "" for key in (POD_USE_UUID, POD_NOUSE_UUID))
        uuids = {part.strip() for part in named.split(",") if part.strip()} if named != "," else set()
        labels = {key for key, _value in marks}
        if uuids <= self._uuids and labels <= self._labels:
            return
        self._hosts = {host.name: host for host in self.hosts}
        self._uuids, self._labels = self._uuids | uuids, self._labels | labels
        self._regroup(_Catalogue(self.rules))

    def _binding_quota(self, request: PodRequest) -> Quota | None:
        """The quota, where it could stand in this pod's way; else it would only make equal requests differ."""
        if self.quota is None:
            return None
        largest = Card("", memory_mib=self._catalogue.largest_mib)
        memory_mib = sum(asked.count * asked.memory_of(largest) for asked in request.all)
        cores = sum(asked.count * max(asked.cores, 0) for asked in request.all)
        return None if self.quota.fits(memory_mib, cores) else self.quota

    def _queue(self, shape: _Shape) -> _Queue:
        """The shape's queue, with the kinds that came up since it was asked last."""
        queue = self._queues.get(shape)
        if queue is None:
            queue = self._queues[shape] = _Queue(shape)
        for kind in self._log[queue.seen :]:
            queue.add(kind, self._catalogue.kinds[kind].score)
        queue.seen = len(self._log)
        return queue

    def _best(self, queue: _Queue) -> list[int]:
        """The kinds that take the pod and score best; they stay in the queue."""
        best: list[int] = []
        best_score = 0.0
        while queue.heap and (not best or queue.heap[0][0] == best_score):
            best_score, kind = queue.take()
            if self._members.get(kind) and isinstance(self._catalogue.verdict(queue.shape, kind), _Yes):
                best.append(kind)
        for kind in best:
            queue.add(kind, self._catalogue.kinds[kind].score)
        return best

    def _ties(self, best: Iterable[int]) -> tuple[tuple[str, ...], int]:
        groups = [self._members[kind] for kind in best]
        first = sorted(name for names in groups for name in names[:TIES_TOLD])[:TIES_TOLD]
        return tuple(first), sum(len(names) for names in groups)

    def _refusal(self, queue: _Queue) -> Refusal:
        if queue.refusal is None or queue.refusal[0] != self._moves:
            failed: dict[str, str] = {}
            for name, kind in self._kinds.items():
                verdict = self._catalogue.verdict(queue.shape, kind)
                failed[name] = verdict if isinstance(verdict, str) else ""
            queue.refusal = (self._moves, Refusal(failed))
        return queue.refusal[1]

    def _move(self, name: str, old: int, new: int) -> None:
        names = self._members[old]
        del names[bisect_left(names, name)]
        there = self._members.setdefault(new, [])
        if not there:
            self._log.append(new)
        insort(there, name)
        self._kinds[name] = new
        self._moves += 1

    def _count(self, landing: Landing, sign: int) -> None:
        if self.quota is None:
            return
        used = self.quota.used
        self.quota = replace(
            self.quota,
            used=Usage(
                used.slots,
                used.memory_mib + sign * sum(more.memory_mib for _position, more in landing.taken),
                used.cores + sign * sum(more.cores for _position, more in landing.taken),
            ),
        )
