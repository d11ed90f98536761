# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of several operators one works, and another takes over when it is gone."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from standin_kamaji import election
from standin_kamaji.api import ApiError


class Leases:
    """An API server with one Lease, and its way to say that another was faster."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = False

    async def get(self, _: str) -> dict[str, Any] | None:
        return copy.deepcopy(self.lease)

    async def request(self, method: str, _: str, body: dict[str, Any]) -> None:
        if self.away:
            raise ApiError(0, "away")
        if (method == "POST") != (self.lease is None):
            raise ApiError(409, "exists")
        if self.lease and body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "conflict")
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)

    def holder(self) -> str:
        assert self.lease
        return str(self.lease["spec"]["holderIdentity"])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "RENEW_S", 0.01)
    monkeypatch.setattr(election, "DURATION_S", 0.2)


def member(leases: Leases, name: str) -> election.Election:
    return election.Election(leases, "kamaji-system", name)  # type: ignore[arg-type]


def test_one_leads_until_it_lets_go() -> None:
    async def run() -> None:
        leases = Leases()
        first, second = member(leases, "first"), member(leases, "second")
        await first.win()
        waiting = asyncio.create_task(second.win())
        keeping = asyncio.create_task(first.keep())
        await asyncio.sleep(0.4)  # longer than the Lease lasts without renewal
        assert leases.holder() == "first"
        assert not waiting.done()
        keeping.cancel()
        await first.release()
        await asyncio.wait_for(waiting, 0.1)
        assert leases.holder() == "second"

    asyncio.run(run())


def test_a_leader_that_is_lost_is_followed_and_one_that_comes_back_leads_on() -> None:
    async def run() -> None:
        leases = Leases()
        await member(leases, "first").win()
        await asyncio.wait_for(member(leases, "first").win(), 0.1)  # the same pod, started again
        await asyncio.wait_for(member(leases, "second").win(), 2)
        assert leases.holder() == "second"

    asyncio.run(run())


def test_a_leader_that_cannot_renew_gives_up() -> None:
    async def run() -> None:
        leases = Leases()
        leader = member(leases, "first")
        await leader.win()
        leases.away = True
        await asyncio.wait_for(leader.keep(), 2)

    asyncio.run(run())


def test_a_leader_whose_lease_is_another_gives_up() -> None:
    async def run() -> None:
        leases = Leases()
        leader = member(leases, "first")
        await leader.win()
        assert leases.lease
        leases.lease["spec"]["holderIdentity"] = "second"
        await asyncio.wait_for(leader.keep(), 2)

    asyncio.run(run())
