# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils._evidence import (
    Evidence,
    EvidenceError,
    checks_of,
    evidence_from_dict,
    junit_of,
    report_of,
    table_of,
)

MADE_AT = "2026-11-30T04:05:06+00:00"


def record(**values: Any) -> Evidence:
    base = {
        "id": "share-three",
        "claim": "Three share.",
        "expected": "3 pods",
        "observed": "3 pods",
        "verdict": "passed",
    }
    return Evidence(**{**base, **values})


texts = st.text(max_size=30)
records = st.builds(
    Evidence,
    id=st.sampled_from(["a", "b", "c"]),
    claim=texts,
    expected=texts,
    observed=texts,
    verdict=st.sampled_from(["passed", "failed", "skipped"]),
    subject=st.sampled_from(["", "tenant-a", "tenant-b"]),
    reason=texts,
    proof=st.dictionaries(texts, texts, max_size=2),
)


@given(records)
def test_a_record_survives_its_dictionary(evidence: Evidence) -> None:
    assert evidence_from_dict(evidence.to_dict()) == evidence


@given(st.lists(records))
def test_every_report_can_be_written_and_read(evidence: list[Evidence]) -> None:
    checks = checks_of(evidence)
    report = json.loads(json.dumps(report_of(checks, "standin", MADE_AT, {})))
    root = ElementTree.fromstring(junit_of(checks, "standin", MADE_AT))
    assert len(report["checks"]) == len(root.findall("*/testcase")) == len({each.id for each in evidence})
    assert sum(report["counts"].values()) == len(checks)
    table_of(checks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "fine"}, "'share-three' ends 'fine'"),
        ({"claim": None}, "'share-three' lacks claim"),
        ({"colour": "red"}, "'share-three' has unknown colour"),
        ({"id": 3, "verdict": None}, "lacks id, verdict"),
    ],
)
def test_a_record_that_is_none_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        evidence_from_dict({**record().to_dict(), **change})


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "failed"], "failed"),
        (["passed", "skipped"], "passed"),
        (["skipped", "skipped"], "skipped"),
        (["skipped", "failed"], "failed"),
    ],
)
def test_a_check_fails_when_one_tenant_fails(verdicts: list[str], verdict: str) -> None:
    (check,) = checks_of(record(subject=f"tenant-{n}", verdict=each) for n, each in enumerate(verdicts))
    assert check.verdict == verdict


def test_tenants_that_say_the_same_say_it_once() -> None:
    (check,) = checks_of([record(subject="tenant-a"), record(subject="tenant-b")])
    assert check.observed == "3 pods"


def test_tenants_that_differ_are_named_and_the_failed_one_speaks() -> None:
    good = record(subject="tenant-a", observed="all well")
    other = record(subject="tenant-b", observed="well too")
    bad = record(subject="tenant-c", observed="2 pods", verdict="failed", reason="no card")
    assert checks_of([good, other])[0].observed == "tenant-a: all well; tenant-b: well too"
    (check,) = checks_of([good, other, bad])
    assert (check.observed, check.reason) == ("2 pods", "tenant-c: no card")


def test_the_order_comes_first_and_what_has_no_record_is_left_out() -> None:
    checks = checks_of([record(id="other"), record(id="b"), record(id="a")], ["a", "missing", "b"])
    assert [check.id for check in checks] == ["a", "b", "other"]


def test_the_report_says_first_which_components_were_checked() -> None:
    report = report_of(checks_of([record()]), "standin", MADE_AT, {"hami": "2.10.0"})
    assert next(iter(report)) == "components"
    assert report["schema"] == "tenantry.gpu/report/1.0"
    assert report["passed"] is True
    assert report["versions"] == {"hami": "2.10.0"}


@pytest.mark.parametrize("verdicts", [[], ["skipped"], ["failed", "passed"]])
def test_a_report_without_a_passed_check_or_with_a_failed_one_has_not_passed(verdicts: list[str]) -> None:
    checks = checks_of(record(id=str(number), verdict=verdict) for number, verdict in enumerate(verdicts))
    assert report_of(checks, "standin", MADE_AT, {})["passed"] is False


def test_junit_counts_and_tells() -> None:
    evidence = [record(), record(id="x", verdict="failed", reason="broke\x00"), record(id="y", verdict="skipped")]
    suite = ElementTree.fromstring(junit_of(checks_of(evidence), "standin", MADE_AT))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert suite.find("testcase[@name='x']/failure").get("message") == "broke?"  # type: ignore[union-attr]


def test_the_table_is_aligned_and_tells_failures_in_full() -> None:
    long = "w" * 200
    table = table_of(checks_of([record(), record(id="x", verdict="failed", reason=long)])).splitlines()
    assert table[0].split() == ["check", "verdict", "expected", "observed"]
    assert table[0].index("verdict") == table[2].index("passed") == table[3].index("failed")
    assert table[-1] == f"x: {long}"
