# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Many nodes that take many pods one after the other, each where place() would put it, thousands a second.

A node is judged by its cards and by what is taken of them. Nodes that are alike in both are of one kind, and
a kind is judged once for each way of asking, however many nodes and pods there are. Placing a pod makes one
node another kind; nothing else is looked at again. No input or output, no clock.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
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
    Node,
    PodRequest,
    Quota,
    Refusal,
    Rules,
    Usage,
    judge_for,
    node_score,
    spreads_nodes,
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

    def of_cards(self, entry: Iterable[tuple[int, Share]]) -> Iterator[tuple[Card, Share]]:
        for position, share in entry:
            card = self.host.node.cards[position]
            yield card, Share(card.uuid, share.type, share.memory_mib, share.cores)


@dataclass(frozen=True)
class _Step:
    """What a pod gets on a node of a kind: the shares of each container, their sum, and the kind afterwards."""

    entries: tuple[tuple[tuple[int, Share], ...], ...]
    taken: tuple[tuple[int, Usage], ...]
    after: int


_Verdict = Union[Fit, str]
# What is taken of each card of a node: slots, MiB, cores. Plain numbers, since they are looked up all the time.
_Taken = tuple[tuple[int, int, int], ...]


class _Kind:
    """Nodes that are alike: one of them stands for all."""

    def __init__(self, build: _Build, taken: _Taken) -> None:
        self.build, self.taken = build, taken
        slots = memory_mib = cores = 0
        # No card gives more than it has left, so these need not be judged for who asks for more.
        self.most_mib = self.most_cores = 0
        for card, (used, used_mib, used_cores) in zip(build.host.node.cards, taken):
            slots += used
            memory_mib += used_mib
            cores += used_cores
            self.most_mib = max(self.most_mib, card.memory_mib - used_mib)
            self.most_cores = max(self.most_cores, card.cores - used_cores)
        self.score = node_score(Usage(slots, memory_mib, cores), build.whole)

    @property
    def node(self) -> Node:
        node = self.build.host.node
        usage = {card.uuid: _usage(used) for card, used in zip(node.cards, self.taken)}
        return Node(node.name, node.cards, usage, node.cordoned, node.pair_scores)


class _Build:
    """What stays of a node whatever is placed on it; one host stands for all that are built alike."""

    def __init__(self, host: Host) -> None:
        self.host = host
        cards = host.node.cards
        self.whole = Usage(
            sum(card.slots for card in cards), sum(card.memory_mib for card in cards), sum(card.cores for card in cards)
        )
        self.kinds: dict[_Taken, int] = {}


def _looks_of(card: Card) -> tuple[object, ...]:
    """All of a card but its UUID."""
    return card.index, card.slots, card.memory_mib, card.cores, card.type, card.numa, card.mode, card.healthy


@lru_cache(maxsize=1 << 16)
def _usage(used: tuple[int, int, int]) -> Usage:
    return Usage(*used)


class _Shape:
    """One way of asking, and what is known of each kind about it."""

    def __init__(self, request: PodRequest, selector: _Marks, rules: Rules, quota: Quota | None) -> None:
        self.request, self.selector = request, selector
        self.judge = judge_for(request, rules, quota)
        self.prefers_empty = spreads_nodes(request, rules)
        self.verdicts: dict[int, _Verdict] = {}
        self.steps: dict[int, _Step] = {}
        nothing = Card("")
        self.least_mib = max(asked.memory_of(nothing) for asked in request.all if asked.count)
        self.least_cores = max(min(asked.cores, 100) for asked in request.all if asked.count)


class _Catalogue:
    """What is known of kinds and shapes. Nothing in it ever changes, so copies of a fleet share it."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.kinds: list[_Kind] = []
        self.largest_mib = 0
        self._builds: dict[object, _Build] = {}
        self._shapes: dict[object, _Shape] = {}

    def kind_of(self, host: Host, uuids: frozenset[str], labels: frozenset[str]) -> int:
        """The number of a host's kind; UUIDs and labels that some pod names tell nodes apart."""
        node = host.node
        cards = tuple((_looks_of(card), card.uuid if card.uuid in uuids else "") for card in node.cards)
        cordoned = tuple(card.uuid in node.cordoned for card in node.cards)
        marks = tuple(sorted((key, value) for key, value in host.labels.items() if key in labels))
        key = (cards, cordoned, marks, host.closed, node.name if node.pair_scores else "")
        build = self._builds.get(key)
        if build is None:
            build = self._builds[key] = _Build(host)
            self.largest_mib = max([self.largest_mib, *(card.memory_mib for card in node.cards)])
        usages = (node.usage.get(card.uuid, _NOTHING) for card in node.cards)
        return self._number(build, tuple((usage.slots, usage.memory_mib, usage.cores) for usage in usages))

    def moved(self, kind: int, change: Iterable[tuple[int, Usage]], sign: int = 1) -> int:
        """The kind that a node of this kind becomes when so much is taken of its cards, or (sign -1) given back."""
        taken = list(self.kinds[kind].taken)
        for position, more in change:
            slots, memory_mib, cores = taken[position]
            taken[position] = (
                slots + sign * more.slots,
                memory_mib + sign * more.memory_mib,
                cores + sign * more.cores,
            )
        return self._number(self.kinds[kind].build, tuple(taken))

    def _number(self, build: _Build, taken: _Taken) -> int:
        number = build.kinds.get(taken)
        if number is None:
            number = build.kinds[taken] = len(self.kinds)
            self.kinds.append(_Kind(build, taken))
        return number

    def shape_of(self, request: PodRequest, selector: _Marks, quota: Quota | None) -> _Shape:
        key = (request.init, request.containers, tuple(sorted(request.annotations.items())), selector, quota)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape(request, selector, self.rules, quota)
        return shape

    def step(self, shape: _Shape, kind: int) -> _Step:
        """What a pod of a shape gets on a node of a kind that takes it."""
        step = shape.steps.get(kind)
        if step is None:
            step = shape.steps[kind] = self._stepped(shape, kind)
        return step

    def _stepped(self, shape: _Shape, kind: int) -> _Step:
        fit = self.verdict(shape, kind)
        if isinstance(fit, str):
            raise AssertionError(fit)
        place = {card.uuid: position for position, card in enumerate(self.kinds[kind].build.host.node.cards)}
        usage = usage_of(fit.written, len(shape.request.init), version=self.rules.version)
        taken = tuple((place[uuid], more) for uuid, more in usage.items())
        entries = tuple(tuple((place[share.uuid], share) for share in entry) for entry in fit.allocation)
        return _Step(entries, taken, self.moved(kind, taken))

    def verdict(self, shape: _Shape, kind: int) -> _Verdict:
        verdict = shape.verdicts.get(kind)
        if verdict is None:
            verdict = shape.verdicts[kind] = self._judged(shape, kind)
        return verdict

    def _judged(self, shape: _Shape, kind: int) -> _Verdict:
        host = self.kinds[kind].build.host
        if host.closed:
            return host.closed
        if any(host.labels.get(key) != value for key, value in shape.selector):
            return SELECTOR_MISMATCH
        return shape.judge(self.kinds[kind].node)


class Fleet:
    """Hosts and a namespace's quota, as pods take from them.

    Every answer of place() is that of _placement.place() on the same nodes; of equal nodes the first by name.
    """

    def __init__(self, hosts: Iterable[Host], rules: Rules, quota: Quota | None = None) -> None:
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
        # The kinds that have members, from the emptiest to the fullest.
        self._order = sorted((catalogue.kinds[kind].score, kind) for kind in self._members)
        self._refused: dict[_Shape, Refusal] = {}

    @property
    def hosts(self) -> list[Host]:
        """All hosts by name, with what is taken of them now."""
        return [self.host(name) for name in self._kinds]

    def host(self, name: str) -> Host:
        """A host with what is taken of it now."""
        host, taken = self._hosts[name], self._catalogue.kinds[self._kinds[name]].taken
        usage = {card.uuid: _usage(used) for card, used in zip(host.node.cards, taken)}
        return replace(host, node=replace(host.node, usage={**host.node.usage, **usage}))

    def kinds(self) -> list[Host]:
        """One host of each kind there is, the first by name, with what is taken of it now."""
        return [self.host(names[0]) for _kind, names in sorted(self._members.items())]

    def copy(self) -> Fleet:
        """A fleet of the same state, which goes its own way from here on but shares what is known."""
        other = Fleet.__new__(Fleet)
        other.__dict__.update(self.__dict__)
        other._kinds = dict(self._kinds)
        other._members = {kind: list(names) for kind, names in self._members.items()}
        other._order = list(self._order)
        other._refused = dict(self._refused)
        return other

    def with_hosts(self, hosts: Iterable[Host]) -> Fleet:
        """A copy in which these hosts replace those of their names, or are added."""
        other = self.copy()
        other._hosts = dict(self._hosts)
        for host in hosts:
            if host.name in other._kinds:
                other._leave(host.name)
            other._hosts[host.name] = host
            other._join(host.name, self._catalogue.kind_of(host, self._uuids, self._labels))
        other._kinds = dict(sorted(other._kinds.items()))
        return other

    def with_quota(self, quota: Quota | None) -> Fleet:
        """A copy with another quota."""
        other = self.copy()
        other.quota = quota
        return other

    def place(self, request: PodRequest, selector: Labels | None = None) -> Landing | Refusal:
        """Place a pod that asks for cards, on nodes that have these labels. Raises PlacementError as place() does."""
        marks = tuple(sorted((selector or {}).items()))
        self._tell_apart(request, marks)
        shape = self._catalogue.shape_of(request, marks, self._binding_quota(request))
        best = [] if shape in self._refused else self._best(shape)
        if not best:
            return self._refusal(shape)
        kind = min(best, key=lambda each: self._members[each][0])
        step, name = self._catalogue.step(shape, kind), self._members[kind][0]
        landing = Landing(self._hosts[name], step.entries, step.taken, *self._ties(best))
        self._move(name, step.after)
        self._count(landing, 1)
        return landing

    def release(self, landing: Landing) -> None:
        """Take a pod away again."""
        kind = self._kinds[landing.node]
        self._move(landing.node, self._catalogue.moved(kind, landing.taken, -1))
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

    def _best(self, shape: _Shape) -> list[int]:
        """The kinds that take pods of a shape and score best."""
        order = self._order if shape.prefers_empty else reversed(self._order)
        verdicts, kinds = shape.verdicts, self._catalogue.kinds
        best: list[int] = []
        best_score = 0.0
        for score, kind in order:
            if best and score != best_score:
                break
            verdict = verdicts.get(kind)
            if verdict is None:
                found = kinds[kind]
                if found.most_mib < shape.least_mib or found.most_cores < shape.least_cores:
                    continue
                verdict = self._catalogue.verdict(shape, kind)
            if verdict.__class__ is Fit:
                best.append(kind)
                best_score = score
        return best

    def _ties(self, best: Iterable[int]) -> tuple[tuple[str, ...], int]:
        groups = [self._members[kind] for kind in best]
        first = sorted(name for names in groups for name in names[:TIES_TOLD])[:TIES_TOLD]
        return tuple(first), sum(len(names) for names in groups)

    def _refusal(self, shape: _Shape) -> Refusal:
        refusal = self._refused.get(shape)
        if refusal is None:
            verdicts = {name: self._catalogue.verdict(shape, kind) for name, kind in self._kinds.items()}
            failed = {name: verdict for name, verdict in verdicts.items() if isinstance(verdict, str)}
            refusal = self._refused[shape] = Refusal(failed)
        return refusal

    def _move(self, name: str, kind: int) -> None:
        """Make a node one of another kind."""
        self._leave(name)
        self._join(name, kind)

    def _leave(self, name: str) -> None:
        kind = self._kinds[name]
        names = self._members[kind]
        del names[bisect_left(names, name)]
        if not names:
            del self._members[kind]
            del self._order[bisect_left(self._order, (self._catalogue.kinds[kind].score, kind))]

    def _join(self, name: str, kind: int) -> None:
        names = self._members.get(kind)
        if names is None:
            names = self._members[kind] = []
            insort(self._order, (self._catalogue.kinds[kind].score, kind))
        insort(names, name)
        self._kinds[name] = kind
        # Pods that were refused may be taken now: not only where a pod has gone, some ask for links between cards.
        self._refused.clear()

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
