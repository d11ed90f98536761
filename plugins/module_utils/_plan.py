# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A capacity plan: what would become of the pods of cases, one after the other, with nothing created.

No input or output, no clock. _capacity places, _changes looks for what would let a refused case in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Union

from ansible_collections.tenantry.gpu.plugins.module_utils._capacity import Fleet, Host, Landing
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    PlacementError,
    PodRequest,
    Quota,
    Refusal,
    Rules,
    mutate,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import Case, Setting, pod_of


@dataclass(frozen=True)
class Denial:
    """That the webhook refuses a pod, in HAMi's words."""

    message: str


@dataclass(frozen=True)
class Bypass:
    """That a pod runs without HAMi giving it a card, and why."""

    why: str


Outcome = Union[Landing, Refusal, Denial, Bypass]


class Caller:
    """How the pods of a case come to HAMi: through its webhook, then to its scheduler."""

    def __init__(self, case: Case, rules: Rules, namespace: str) -> None:
        self.case, self._rules = case, rules
        self._pod = pod_of(case, case.pod_names()[0], Setting("plan", namespace, "plan"))
        self._known: dict[Quota | None, PodRequest | Outcome] = {}

    @property
    def request(self) -> PodRequest:
        """What a pod asks for once the webhook has completed it, even if the webhook then denies it."""
        return PodRequest.of(mutate(self._pod, self._rules).pod, self._rules)

    def submit(self, fleet: Fleet) -> Outcome:
        """What becomes of one more pod of the case; where it is placed, the fleet has it from now on."""
        admitted = self._known.get(fleet.quota)
        if admitted is None:
            admitted = self._known[fleet.quota] = self._admitted(fleet)
        if not isinstance(admitted, PodRequest):
            return admitted
        try:
            landing = fleet.place(admitted, self.case.node_selector)
        except PlacementError as error:
            return Refusal({host.name: str(error) for host in fleet.hosts})
        if isinstance(landing, Landing) and not landing.taken:
            return Bypass("HAMi finds no linked cards for it and lets it go on without any.")
        return landing

    def submit_all(self, fleet: Fleet) -> list[Outcome]:
        """What becomes of all pods of the case. After one that is not placed nothing changes for the others."""
        outcomes: list[Outcome] = []
        for _number in range(self.case.replicas):
            outcomes.append(self.submit(fleet))
            if not isinstance(outcomes[-1], Landing):
                break
        return outcomes + outcomes[-1:] * (self.case.replicas - len(outcomes))

    def _admitted(self, fleet: Fleet) -> PodRequest | Outcome:
        try:
            verdict = mutate(self._pod, self._rules, fleet.quota)
            request = PodRequest.of(verdict.pod, self._rules)
        except PlacementError as error:
            return Denial(str(error))
        scheduler = verdict.pod["spec"].get("schedulerName") or "default-scheduler"
        if not verdict.allowed:
            return Denial(verdict.message)
        if scheduler != self._rules.scheduler_name:
            return Bypass(f"HAMi's webhook leaves it to {scheduler}.")
        if not request.asks_cards:
            return Bypass("HAMi takes what it asks for as no request, and lets it pass without a card.")
        return request


@dataclass(frozen=True)
class Change:
    """A change that lets all pods of a case in, in one sentence. Of two the smaller has the lower rank."""

    kind: str
    sentence: str
    rank: tuple[int, float]


@dataclass(frozen=True)
class Step:
    """One case of a plan: the fleet before it, what became of its pods, and what would let all of them in."""

    case: Case
    before: Fleet
    outcomes: Sequence[Outcome]

    @property
    def landings(self) -> list[Landing]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Landing)]

    @property
    def failure(self) -> Outcome | None:
        """What became of those pods that were not placed."""
        return next((outcome for outcome in self.outcomes if not isinstance(outcome, Landing)), None)


@dataclass
class Plan:
    """Cases on a fleet, in their order, each on what those before it left."""

    hosts: Sequence[Host]
    rules: Rules
    quota: Quota | None = None
    namespace: str = "default"
    steps: list[Step] = field(default_factory=list)
    _freed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.before = Fleet(self.hosts, self.rules, self.quota)

    def run(self, cases: Iterable[Case]) -> Fleet:
        """Place the pods of all cases on the fleet as it was; gives what it is afterwards."""
        fleet = self.before.copy()
        for case in cases:
            self._free(fleet, case)
            before = fleet.copy()
            self.steps.append(Step(case, before, self.caller(case).submit_all(fleet)))
        return fleet

    def caller(self, case: Case) -> Caller:
        return Caller(case, self.rules, self.namespace)

    def _free(self, fleet: Fleet, case: Case) -> None:
        """Take away the pods of the cases after which this one comes."""
        for step in self.steps:
            if step.case.name in case.after:
                for landing in step.landings if step.case.name not in self._freed else ():
                    fleet.release(landing)
                self._freed.add(step.case.name)

    def how_many_more(self, fleet: Fleet, case: Case, up_to: int) -> int | None:
        """How many more pods of a case the fleet takes, counted no further than up_to; None where it gives no card."""
        caller, fleet = self.caller(case), fleet.copy()
        for number in range(up_to):
            outcome = caller.submit(fleet)
            if isinstance(outcome, Bypass):
                return None
            if not isinstance(outcome, Landing):
                return number
        return up_to
