"""What a run leaves on the controller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from lab import Lab

CHECKS = {
    "tunnel-admission",
    "share-three",
    "core-exhausted",
    "memory-refused",
    "capacity-a",
    "capacity-b",
    "api-isolation",
    "allocation-lifecycle",
}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("cluster", ["management", "tenant-a", "tenant-b"])
def test_a_kubeconfig_is_its_owners_alone(lab: Lab, cluster: str) -> None:
    assert mode(lab.kubeconfig(cluster)) == 0o600


def test_the_state_directory_is_its_owners_alone(lab: Lab) -> None:
    assert mode(lab.state_dir) == 0o700


def test_no_private_key_is_readable_by_others(lab: Lab) -> None:
    keys = [path for path in lab.state_dir.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert keys
    assert {str(path): oct(mode(path)) for path in keys if mode(path) & 0o077} == {}


@pytest.fixture(scope="module")
def report(lab: Lab) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((lab.state_dir / "report" / "report.json").read_text())
    return found


def test_the_report_says_first_which_components_it_judged(report: dict[str, Any]) -> None:
    assert next(iter(report.items())) == ("components", "standin")


def test_the_report_has_eight_passed_checks(report: dict[str, Any]) -> None:
    assert report["passed"] is True
    assert {check["id"]: check["verdict"] for check in report["checks"]} == dict.fromkeys(CHECKS, "passed")


@pytest.mark.parametrize("check", sorted(CHECKS))
def test_a_check_shows_what_was_seen(report: dict[str, Any], check: str) -> None:
    (found,) = (entry for entry in report["checks"] if entry["id"] == check)
    assert found["claim"]
    for record in found["evidence"]:
        assert record["expected"]
        assert record["observed"]
        assert record["proof"]


def test_junit_has_the_same_eight_checks(lab: Lab) -> None:
    cases = list(ElementTree.parse(lab.state_dir / "report" / "junit.xml").iter("testcase"))
    assert {case.attrib["name"] for case in cases} == CHECKS
    assert [case.attrib["name"] for case in cases if case.find("failure") is not None] == []
