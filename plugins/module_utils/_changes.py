# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The smallest changes that let a case in which a plan refuses: each is found by placing it, none is guessed.

No input or output, no clock. A change is told only when all pods of the case were placed with it, after
the cases before it. The order of changes is: another policy or filter; less asked for, the smallest part first;
something on a node that is to be lifted; a higher quota; more cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._capacity import Fleet, Host, Landing
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    POD_GPU_POLICY,
    POD_MODE,
    POD_NODE_POLICY,
    POD_NOUSE_TYPE,
    POD_NOUSE_UUID,
    POD_NUMA_BIND,
    POD_USE_TYPE,
    POD_USE_UUID,
    PROFILES,
    Card,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Node, Quota, Request, Rules, Usage
from ansible_collections.tenantry.gpu.plugins.module_utils._plan import Bypass, Caller, Change, Plan, Step
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import Case, Container

POLICY, FILTER, MEMORY, CORES, CARDS, REPLICAS, MARK, QUOTA, HARDWARE = (
    "policy",
    "filter",
    "memory",
    "cores",
    "cards",
    "replicas",
    "mark",
    "quota",
    "hardware",
)

# The search looks at so many different nodes at most, and adds so many cards at most.
HOSTS_TRIED = 32
CARDS_TRIED = 64
LIMIT_TRIED = 1 << 40
NEW_NODE = "one-more-node"

# Units for one and for several.
_MEMORY_KEYS = (("memory_mib", ("MiB", "MiB")), ("memory_percent", ("% of a card's memory",) * 2))
_CORES = ("core", "cores")

_FILTERS = {
    POD_USE_TYPE: "use_types",
    POD_NOUSE_TYPE: "avoid_types",
    POD_USE_UUID: "use_uuids",
    POD_NOUSE_UUID: "avoid_uuids",
    POD_MODE: POD_MODE,
    POD_NUMA_BIND: POD_NUMA_BIND,
}


def changes_for(plan: Plan, step: Step) -> list[Change]:
    """The changes with which all pods of a case are placed, the smallest first; none where all are anyway."""
    if step.failure is None or isinstance(step.failure, Bypass):
        return []
    return sorted(_Search(plan, step).changes(), key=lambda change: change.rank)


def _highest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The highest number between two that fits, where all below one that fits do, too; None if not even the lowest."""
    if high < low or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _lowest(start: int, end: int, fits: Callable[[int], bool]) -> int | None:
    """The lowest number from start to end that fits, where all above one that fits do, too; None if none does."""
    step, last = start, start - 1
    while not fits(step):
        if step >= end:
            return None
        last, step = step, min(end, max(1, 2 * step))
    while step - last > 1:
        middle = (step + last) // 2
        if fits(middle):
            step = middle
        else:
            last = middle
    return step


class _Search:
    def __init__(self, plan: Plan, step: Step) -> None:
        self._plan, self._step, self._case, self._before = plan, step, step.case, step.before
        request = Caller(step.case, plan.rules, plan.namespace).request
        self._explicit = [_explicit(container, asked) for container, asked in zip(step.case.ordered, request.all)]

    def changes(self) -> Iterator[Change]:
        yield from self._policies()
        yield from self._filters()
        yield from self._less()
        yield from self._marks()
        yield from self._quota()
        yield from self._hardware()

    def _fits(self, case: Case | None = None, fleet: Fleet | None = None) -> bool:
        fleet = (fleet or self._before).copy()
        outcomes = Caller(case or self._case, fleet.rules, self._plan.namespace).submit_all(fleet)
        return all(isinstance(outcome, Landing) for outcome in outcomes)

    # --- another policy, without a filter ---

    def _policies(self) -> Iterator[Change]:
        rules, annotations = self._plan.rules, self._case.annotations
        for key, name, default in (
            (POD_GPU_POLICY, "card policy", rules.gpu_policy),
            (POD_NODE_POLICY, "node policy", rules.node_policy),
        ):
            now = annotations.get(key, default)
            for policy in ("binpack", "spread"):
                if policy != now and self._fits(replace(self._case, annotations={**annotations, key: policy})):
                    yield Change(POLICY, f"{name} {policy} instead of {now}.", (0, 0))
        yield from self._policies_of_all()

    def _policies_of_all(self) -> Iterator[Change]:
        """The whole plan once more under another policy: the cases before must not lose by it."""
        rules = self._plan.rules
        others = (
            replace(rules, gpu_policy="binpack" if rules.gpu_policy != "binpack" else "spread"),
            replace(rules, node_policy="binpack" if rules.node_policy != "binpack" else "spread"),
        )
        number = self._plan.steps.index(self._step)
        steps = self._plan.steps[: number + 1]
        if number == 0:
            return
        for other in others:
            again = Plan(self._plan.hosts, other, self._plan.quota, self._plan.namespace)
            again.run(step.case for step in steps)
            earlier = zip(steps[:-1], again.steps[:-1])
            if again.steps[-1].failure is None and all(len(b.landings) >= len(a.landings) for a, b in earlier):
                yield Change(POLICY, f"{_policy_change(rules, other)} for all cases up to this one.", (0, 1))

    def _filters(self) -> Iterator[Change]:
        case = self._case
        for key, name in _FILTERS.items():
            rest = {other: text for other, text in case.annotations.items() if other != key}
            if key in case.annotations and self._fits(replace(case, annotations=rest)):
                yield Change(FILTER, f"no {name}.", (0, 2))
        if case.node_selector and self._fits(replace(case, node_selector={})):
            yield Change(FILTER, "no node_selector.", (0, 2))

    # --- less ---

    def _with(self, containers: Sequence[Container]) -> Case:
        return replace(self._case, containers=tuple(containers))

    def _less(self) -> Iterator[Change]:
        found = [
            *(change for key, unit in _MEMORY_KEYS for change in self._less_of(MEMORY, key, unit)),
            *self._less_of(CORES, "cores", _CORES),
            *self._less_of(CARDS, "cards", ("card", "cards")),
        ]
        yield from found
        if not {MEMORY, CORES} & {change.kind for change in found}:
            yield from self._less_memory_and_cores()
        placed, asked = len(self._step.landings), self._case.replicas
        if 0 < placed < asked and self._fits(replace(self._case, replicas=placed)):
            fewer = _fewer(asked, placed, ("pod", "pods"), ())
            yield Change(REPLICAS, fewer, (1, (asked - placed) / asked))

    def _less_of(self, kind: str, key: str, unit: tuple[str, str]) -> Iterator[Change]:
        most = _most(self._explicit, key)
        highest = _highest(1, most - 1, lambda cap: self._fits(self._with(_capped(self._explicit, key, cap))))
        if highest is not None:
            yield Change(kind, _fewer(most, highest, unit, self._explicit), (1, (most - highest) / most))

    def _less_memory_and_cores(self) -> Iterator[Change]:
        """Where neither alone helps: the most memory with next to no compute, then the most compute with that."""
        key, unit = _MEMORY_KEYS[0] if _most(self._explicit, "memory_mib") else _MEMORY_KEYS[1]
        memory, cores = _most(self._explicit, key), _most(self._explicit, "cores")
        least = _capped(self._explicit, "cores", 1)
        most_memory = _highest(1, memory - 1, lambda cap: self._fits(self._with(_capped(least, key, cap))))
        if most_memory is None:
            return
        smaller = _capped(self._explicit, key, most_memory)
        most_cores = _highest(1, cores - 1, lambda cap: self._fits(self._with(_capped(smaller, "cores", cap))))
        if most_cores is not None:
            part = (memory - most_memory) / memory + (cores - most_cores) / cores
            less = _fewer(memory, most_memory, unit, smaller)[:-1], _fewer(cores, most_cores, _CORES, smaller)
            yield Change(MEMORY, " and ".join(less), (1, part))

    # --- what is to be lifted from a node ---

    def _marks(self) -> Iterator[Change]:
        for what, variants in (
            ("closed", _opened),
            ("cordoned", _uncordoned),
            ("unhealthy", _healed),
        ):
            found = next(
                (
                    text
                    for host in self._before.kinds()[:HOSTS_TRIED]
                    for other, text in variants(host)
                    if self._fits(fleet=self._before.with_hosts([other]))
                ),
                None,
            )
            if found:
                yield Change(MARK, f"{found}.", (2, ("closed", "cordoned", "unhealthy").index(what)))

    # --- a higher quota ---

    def _quota(self) -> Iterator[Change]:
        quota = self._before.quota
        if quota is None or not self._fits_quota(None, None):
            return
        memory_mib = self._least_limit(quota.memory_mib, lambda limit: self._fits_quota(limit, None))
        cores = self._least_limit(quota.cores, lambda limit: self._fits_quota(None, limit))
        if self._fits_quota(memory_mib, cores):
            raised = replace(quota, memory_mib=memory_mib, cores=cores)
            yield Change(QUOTA, f"{_quota_change(quota, raised, self._plan.namespace)}.", (3, 0))

    @staticmethod
    def _least_limit(now: int | None, fits: Callable[[int], bool]) -> int | None:
        """The lowest limit from that of now on with which the case fits; None is no limit."""
        return None if now is None else _lowest(now, LIMIT_TRIED, fits)

    def _fits_quota(self, memory_mib: int | None, cores: int | None) -> bool:
        used = self._before.quota.used if self._before.quota else Usage()
        return self._fits(fleet=self._before.with_quota(Quota(memory_mib, cores, used)))

    # --- more cards ---

    def _hardware(self) -> Iterator[Change]:
        cards = {_kind_of(card): card for host in self._before.hosts for card in host.node.cards if card.healthy}
        found = [change for card in cards.values() for change in self._more_of(card)]
        if not found:
            profiles = sorted(PROFILES.values(), key=lambda profile: profile.memory_mib)
            others = (
                Card("", slots=each.slots, memory_mib=each.memory_mib, cores=each.cores, type=each.type)
                for each in profiles
            )
            found = next(filter(None, (list(self._more_of(card)) for card in others)), [])
        yield from found

    def _more_of(self, card: Card) -> Iterator[Change]:
        """The fewest cards of a kind that let the case in, in one node: one that is there, or else a new one."""
        new = Host(Node(NEW_NODE), dict(self._case.node_selector))
        fewest = _lowest(1, CARDS_TRIED, lambda number: self._fits_with(new, card, number))
        here = [host for host in self._before.kinds()[:HOSTS_TRIED] if host.node.cards and not host.closed]
        # Rather where there are such cards already.
        here.sort(key=lambda host: _kind_of(card) not in {_kind_of(other) for other in host.node.cards})
        found = next((host for host in here if self._fits_with(host, card, fewest or CARDS_TRIED)), None)
        if found:
            number = _lowest(1, CARDS_TRIED, partial(self._fits_with, found, card))
            yield Change(HARDWARE, f"{_cards(number or 0, card)} in node {found.name}.", (4, number or 0))
        elif fewest:
            yield Change(HARDWARE, f"{_cards(fewest, card)} in a new node.", (4, fewest))

    def _fits_with(self, host: Host, card: Card, number: int) -> bool:
        """Whether the case fits once a host has so many more cards like one."""
        here = len(host.node.cards)
        more = (replace(card, uuid=f"GPU-more-{nth}", index=here + nth, healthy=True) for nth in range(number))
        wider = replace(host, node=replace(host.node, cards=(*host.node.cards, *more)))
        return self._fits(fleet=self._before.with_hosts([wider]))


def _explicit(container: Container, asked: Request) -> Container:
    """A container with everything said that the webhook and the defaults made of it, so that one thing can change."""
    if not asked.count:
        return container
    by_percent = asked.memory_mib <= 0 and asked.memory_percent is not None
    return replace(
        container,
        cards=asked.count,
        memory_mib=None if by_percent else asked.memory_mib,
        memory_percent=(container.memory_percent or asked.memory_percent) if by_percent else None,
        cores=min(asked.cores, 100),
    )


def _amount(container: Container, key: str) -> int:
    return int(getattr(container, key) or 0)


def _most(containers: Iterable[Container], key: str) -> int:
    return max((_amount(container, key) for container in containers), default=0)


def _capped(containers: Iterable[Container], key: str, cap: int) -> list[Container]:
    smaller: dict[str, Any] = {key: cap}
    return [replace(each, **smaller) if _amount(each, key) > cap else each for each in containers]


def _fewer(was: int, now: int, unit: tuple[str, str], containers: Sequence[Container]) -> str:
    instead = f"at most {now} in each container, now {was}" if len(containers) > 1 else f"{now} instead of {was}"
    return f"{was - now} {unit[was - now > 1]} fewer ({instead})."


def _policy_change(old: Rules, new: Rules) -> str:
    if old.gpu_policy != new.gpu_policy:
        return f"card policy {new.gpu_policy} instead of {old.gpu_policy}"
    return f"node policy {new.node_policy} instead of {old.node_policy}"


def _opened(host: Host) -> Iterator[tuple[Host, str]]:
    if host.closed and host.node.cards:
        yield replace(host, closed=""), f"node {host.name} open for pods (now: {host.closed})"


def _uncordoned(host: Host) -> Iterator[tuple[Host, str]]:
    for card in host.node.cards:
        if card.uuid in host.node.cordoned:
            node = replace(host.node, cordoned=host.node.cordoned - {card.uuid})
            yield replace(host, node=node), f"card {card.uuid} of node {host.name} no longer cordoned"


def _healed(host: Host) -> Iterator[tuple[Host, str]]:
    for sick in host.node.cards:
        if not sick.healthy:
            cards = tuple(replace(card, healthy=True) if card is sick else card for card in host.node.cards)
            yield (
                replace(host, node=replace(host.node, cards=cards)),
                f"card {sick.uuid} of node {host.name} healthy again",
            )


def _quota_change(old: Quota, new: Quota, namespace: str) -> str:
    parts = [
        f"{now - was} {unit} more ({now} instead of {was})"
        for was, now, unit in ((old.memory_mib, new.memory_mib, "MiB"), (old.cores, new.cores, "cores"))
        if was is not None and now is not None and was != now
    ]
    return f"a quota of namespace {namespace} with {' and '.join(parts)}"


def _kind_of(card: Card) -> tuple[str, int, int, int, str]:
    return card.type, card.memory_mib, card.cores, card.slots, card.mode


def _cards(number: int, card: Card) -> str:
    profile = next(
        (name for name, each in PROFILES.items() if (each.type, each.memory_mib) == (card.type, card.memory_mib)),
        card.type,
    )
    more = "one more card" if number == 1 else f"{number} more cards"
    return f"{more} of kind {profile} ({card.memory_mib} MiB)"
