# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._checks import (
    capacity_evidence,
    card_count_evidence,
    cases_of,
    isolation_evidence,
    order_of,
    scheduling_evidence,
    tunnel_evidence,
    unrequested_evidence,
)

Object = dict[str, Any]


def card(uuid: str = "GPU-1", memory_mib: int = 81920, **more: Any) -> Object:
    base = {"uuid": uuid, "memory_mib": memory_mib, "cores": 100, "slots": 10, "healthy": True, "cordoned": False}
    return {**base, "shares": [], **more}


def node(*cards: Object) -> Object:
    return {"name": "n1", "cards": list(cards)}


def devices(*cards: Object, offered: int | None = None) -> Object:
    slots = sum(each["slots"] for each in cards)
    return {"nodes": [node(*cards)], "totals": {"allocatable_slots": slots if offered is None else offered}}


def by_name(cases: list[Object]) -> dict[str, Object]:
    return {case["name"]: case for case in cases}


def test_the_cases_of_one_a100() -> None:
    cases = cases_of([node(card())])
    assert [case["name"] for case in cases] == [
        "share-three",
        "core-exhausted",
        "memory-refused",
        "allocation-lifecycle",
    ]
    named = by_name(cases)
    share = named["share-three"]
    assert (share["replicas"], share["memory_mib"], share["cores"]) == (3, 20000, 30)
    assert share["expect"] == {"outcome": "placed", "uuid": "GPU-1", "spread": "one_card"}
    assert "use_uuids" not in share
    assert named["core-exhausted"]["while_running"] == ["share-three"]
    assert named["memory-refused"]["memory_mib"] == 102000
    assert (named["allocation-lifecycle"]["memory_mib"], named["allocation-lifecycle"]["cores"]) == (81920, 100)
    assert named["allocation-lifecycle"]["after"] == ["share-three"]


def test_the_cases_of_two_l4_are_held_to_one_of_them() -> None:
    named = by_name(cases_of([node(card("GPU-1", 24576), card("GPU-2", 24576))]))
    assert named["memory-refused"]["memory_mib"] == 30000
    assert named["share-three"]["memory_mib"] == 6000
    for name in ("share-three", "core-exhausted", "allocation-lifecycle"):
        assert named[name]["use_uuids"] == ["GPU-1"]


@pytest.mark.parametrize("memory_mib", [1, 900, 2000, 15360, 183359])
def test_three_shares_and_a_fourth_fit_any_card_by_memory(memory_mib: int) -> None:
    share = by_name(cases_of([node(card(memory_mib=max(memory_mib, 4)))]))["share-three"]
    assert 0 < share["memory_mib"] * 4 <= max(memory_mib, 4)


@pytest.mark.parametrize(
    ("cards", "names"),
    [
        ([], []),
        ([card(healthy=False)], []),
        ([card(cordoned=True)], []),
        ([card(shares=[{"pod": "x"}])], ["memory-refused"]),
        ([card(slots=3)], ["memory-refused"]),
    ],
)
def test_only_cards_that_can_be_tried_are_tried(cards: list[Object], names: list[str]) -> None:
    assert [case["name"] for case in cases_of([node(*cards)])] == names


def test_the_largest_idle_card_is_tried() -> None:
    busy = card("GPU-busy", 90000, shares=[{"pod": "x"}])
    named = by_name(cases_of([node(busy, card("GPU-small", 15360), card("GPU-large", 24576))]))
    assert named["share-three"]["use_uuids"] == ["GPU-large"]
    assert named["memory-refused"]["memory_mib"] == 112000


@pytest.mark.parametrize(
    ("declared", "found", "verdict", "observed"),
    [
        ([node(card())], devices(card()), "passed", "81,920 MiB, 100 cores, 10 slots"),
        ([node(card())], devices(card(memory_mib=40960)), "failed", "40,960 MiB, 100 cores, 10 slots"),
        ([node(card())], devices(card(), offered=0), "failed", "10 slots, 0 of them allocatable"),
        ([node(card())], {"msg": "no route to host"}, "failed", "nothing"),
        ([node(card())], {}, "failed", "nothing"),
        ([], devices(card()), "skipped", ""),
    ],
)
def test_capacity(declared: list[Object], found: Object, verdict: str, observed: str) -> None:
    evidence = capacity_evidence("tenant-a", declared, found)
    assert (evidence.id, evidence.subject, evidence.verdict) == ("capacity-a", "tenant-a", verdict)
    assert observed in evidence.observed
    assert verdict == "passed" or evidence.reason or observed


@pytest.mark.parametrize(
    ("found", "verdict", "observed"),
    [
        pytest.param(devices(card("GPU-1"), card("GPU-2")), "passed", "2 healthy of n1", id="all-there"),
        pytest.param(devices(card("GPU-1"), card("GPU-2", healthy=False)), "failed", "1 healthy of n1", id="ill"),
        pytest.param({"nodes": []}, "failed", "0 healthy of n1", id="node-without-cards"),
        pytest.param({"msg": "No connection"}, "failed", "nothing", id="no-answer"),
    ],
)
def test_real_cards_are_counted(found: Object, verdict: str, observed: str) -> None:
    evidence = card_count_evidence("tenant-a", {"n1": 2}, found)
    assert (evidence.id, evidence.verdict) == ("capacity-a", verdict)
    assert (evidence.expected, evidence.observed) == ("2 healthy of n1", observed)


def result(name: str, passed: bool) -> Object:
    told = {"expected": "e", "observed": "o", "verdict": f"{name}: expected e; o", "broke_at": "", "pods": []}
    return {"name": name, "passed": passed, "duration_s": 1.0, **told}


def test_scheduling_that_ran() -> None:
    cases = cases_of([node(card())])
    answer = {"cases": [result(case["name"], case["name"] != "core-exhausted") for case in cases]}
    verdicts = {evidence.id: evidence.verdict for evidence in scheduling_evidence("tenant-a", cases, answer)}
    assert verdicts == {
        "share-three": "passed",
        "core-exhausted": "failed",
        "memory-refused": "passed",
        "allocation-lifecycle": "passed",
    }


def test_scheduling_that_broke_off_fails_with_its_message() -> None:
    cases = cases_of([node(card())])
    evidence = scheduling_evidence("tenant-a", cases, {"msg": "interrupted by SIGTERM"})
    assert {each.verdict for each in evidence} == {"failed"}
    assert {each.reason for each in evidence} == {"interrupted by SIGTERM"}


def test_scheduling_for_which_no_card_is_idle_is_skipped() -> None:
    evidence = scheduling_evidence("tenant-a", [], {"skipped": True})
    assert {(each.verdict, each.reason) for each in evidence} == {("skipped", "no card is idle to try it on")}


TUNNEL = {
    "tunnelled": True,
    "reason": "",
    "address": "10.112.3.4:443",
    "service": "hami-system/hami-scheduler",
    "failure_policy": "Fail",
    "answered": "schedulerName hami-scheduler",
    "agents": [{"name": "agent", "node": "n1", "dials": 2, "line": "Received DIAL_REQ"}],
    "metric": ["apiserver_egress_dialer_dial_start_total 3"],
}


@pytest.mark.parametrize(
    ("answer", "verdict", "reason"),
    [
        (TUNNEL, "passed", ""),
        ({**TUNNEL, "tunnelled": False, "reason": "the tunnel's agent has no pod"}, "failed", "no pod"),
        ({"msg": "404 hami-webhook not found"}, "failed", "404"),
        ({}, "failed", "did not run"),
    ],
)
def test_tunnel(answer: Object, verdict: str, reason: str) -> None:
    evidence = tunnel_evidence("tenant-a", answer)
    assert evidence.verdict == verdict
    assert reason in evidence.reason


def test_isolation() -> None:
    own, foreign = {"own": True, "status": 200}, {"own": False, "status": 401}
    passed = isolation_evidence({"isolated": True, "violations": [], "answers": [own, own, foreign, foreign]})
    assert (passed.verdict, passed.observed) == ("passed", "2x 200 to its own, 2x 401 to others")
    failed = isolation_evidence(
        {"isolated": False, "violations": ["b sees a."], "answers": [own, {**own, "own": False}]}
    )
    assert (failed.verdict, failed.reason) == ("failed", "b sees a.")
    assert isolation_evidence({"isolated": True, "violations": [], "answers": [own]}).verdict == "skipped"
    assert isolation_evidence({"msg": "no kubeconfig"}).verdict == "failed"


def test_the_order_has_the_eight_checks_of_the_lab() -> None:
    assert order_of(["tenant-a", "tenant-b"]) == [
        "tunnel-admission",
        "share-three",
        "core-exhausted",
        "memory-refused",
        "capacity-a",
        "capacity-b",
        "api-isolation",
        "allocation-lifecycle",
    ]


@pytest.mark.parametrize(
    ("answer", "verdict", "observed"),
    [
        ({"log": "tenantry.gpu: end of devices\n"}, "passed", "no /dev/nvidia*"),
        (
            {"log": "/dev/nvidia0\n/dev/nvidiactl\ntenantry.gpu: end of devices"},
            "failed",
            "/dev/nvidia0, /dev/nvidiactl",
        ),
        ({"log": "/dev/nvidia0\n"}, "failed", "nothing"),
        ({"msg": "pods no-card not found"}, "failed", "nothing"),
    ],
)
def test_a_pod_without_a_request(answer: Object, verdict: str, observed: str) -> None:
    evidence = unrequested_evidence("tenant-a", answer)
    assert (evidence.verdict, evidence.observed) == (verdict, observed)
    assert str(answer.get("msg", "")) in evidence.reason
