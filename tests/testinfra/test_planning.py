"""What is planned is what happens, and a cordon is heeded by both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lab import WORKERS, Lab

TENANT = "tenant-b"  # two cards, so that there is a choice
NODE = WORKERS[TENANT]
CASE = {"name": "one", "memory_mib": 3000, "cores": 20}


def planned(lab: Lab, **expect: str) -> dict[str, Any]:
    plan = lab.run_module(TENANT, "gpu_capacity_plan", cases=[{**CASE, **({"expect": expect} if expect else {})}])
    case: dict[str, Any] = plan["cases"][0]
    return case


@pytest.fixture
def without_cards(lab: Lab) -> Iterator[None]:
    """All cards of the tenant are cordoned, for one test."""
    done = lab.run_module(TENANT, "hami_node_devices", state="cordoned", names=[NODE])
    assert done["changed"]
    yield
    lab.run_module(TENANT, "hami_node_devices", names=[NODE], cordoned=[])


def test_a_pod_lands_on_the_card_of_the_plan(lab: Lab) -> None:
    share = planned(lab)["pods"][0]["containers"][0][0]
    simulator = lab.api(TENANT).request("get", "/api/v1/namespaces/gpu-simulator/pods").items[0]
    tried = lab.run_module(
        TENANT,
        "gpu_scheduling_verify",
        image=simulator.spec.containers[0].image,
        cases=[{**CASE, "expect": {"outcome": "placed", "node": NODE, "uuid": share["uuid"]}}],
    )
    assert tried["passed"]
    assert (share["memory_mib"], share["cores"]) == (CASE["memory_mib"], CASE["cores"])


def test_cordoned_cards_are_planned_without(lab: Lab, without_cards: None) -> None:
    case = planned(lab, outcome="refused", reason="CardCordoned")
    assert case["as_expected"]
    assert case["failed"] == {NODE: "2/2 CardCordoned"}
    cards = lab.run_module(TENANT, "hami_device_info", states=["cordoned"])["nodes"][0]["cards"]
    assert len(cards) == 2
