#!/usr/bin/env python3
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How many pods a second gpu_capacity_plan's engine places: 5,000 pods on 1,000 nodes of eight cards each.

Without a cluster. The ratio is that to _placement.place(), which looks at every node for every pod.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import checkout  # noqa: F401

from ansible_collections.tenantry.gpu.plugins.module_utils._capacity import Fleet, Host
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import cards_from_profiles
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    Node,
    PodRequest,
    Refusal,
    Request,
    Rules,
    Usage,
    place,
)

NODES, PODS, NAIVE_PODS, WANTED = 1000, 5000, 10, 5000
SHAPES = tuple(
    PodRequest((), (Request(1 + (number % 4 == 0), 2000 * (1 + number % 8), None, 5 * (number % 5)),))
    for number in range(40)
)


@dataclass(frozen=True)
class Scenario:
    name: str
    taken: bool
    policy: str
    request: Callable[[int], PodRequest]


SCENARIOS = tuple(
    Scenario(f"{policy}, {'every card taken otherwise' if taken else 'empty nodes'}, {what}", taken, policy, request)
    for taken in (False, True)
    for policy in ("binpack", "spread")
    for what, request in (
        ("equal pods", lambda _number: SHAPES[3]),
        ("40 kinds of pods in turn", lambda number: SHAPES[number % len(SHAPES)]),
    )
)


@dataclass(frozen=True)
class Measured:
    """Placements a second, and how many times that is what place() alone does."""

    scenario: str
    placed: int
    a_second: float
    ratio: float


def hosts(taken: bool) -> list[Host]:
    draw = random.Random(1)  # noqa: S311 (the same cluster every time)
    made = []
    for number in range(NODES):
        name = f"w{number:04}"
        cards = tuple(cards_from_profiles(name, [{"profile": "a100-80g", "count": 8}]))
        usage = {
            card.uuid: Usage(draw.randrange(3), draw.randrange(20000), draw.randrange(40)) for card in cards if taken
        }
        made.append(Host(Node(name, cards, usage)))
    return made


def measure() -> list[Measured]:
    """Place the pods of every scenario; times are the process's own, so that its neighbours do not count."""
    return [_measured(scenario) for scenario in SCENARIOS]


def _measured(scenario: Scenario) -> Measured:
    rules, cluster = Rules(node_policy=scenario.policy), hosts(scenario.taken)
    fleet = Fleet(cluster, rules)
    begin = time.process_time()
    placed = sum(not isinstance(fleet.place(scenario.request(number)), Refusal) for number in range(PODS))
    a_second = PODS / (time.process_time() - begin)
    nodes = [host.node for host in cluster]
    begin = time.process_time()
    for number in range(NAIVE_PODS):
        place(scenario.request(number), nodes, rules)
    return Measured(scenario.name, placed, a_second, a_second * (time.process_time() - begin) / NAIVE_PODS)


def main() -> int:
    results = measure()
    for result in results:
        print(
            f"{result.scenario}: {result.placed} of {PODS} placed, {result.a_second:,.0f} placements a second, "
            f"{result.ratio:,.0f} times place() on all nodes"
        )
    return 0 if min(result.a_second for result in results) >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
