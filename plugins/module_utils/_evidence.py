# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Records of checks: claim, expected, observed, proof; and the reports made of them.

No input or output. A check may have records of several tenants; it passes when none of them failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

# Raise the number before the dot when a reader of the old form would misread the new one.
SCHEMA = "tenantry.gpu/report/1.0"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
VERDICTS = (PASSED, FAILED, SKIPPED)

Object = dict[str, Any]


class EvidenceError(ValueError):
    """A record that is none; the message says what is missing or wrong in it."""


@dataclass(frozen=True)
class Evidence:
    """What one check found for one subject (a tenant; empty: all of them).

    ``proof`` is whatever shows it, as it was read; a failed or skipped one gives its ``reason``.
    """

    id: str
    claim: str
    expected: str
    observed: str
    verdict: str
    subject: str = ""
    reason: str = ""
    proof: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> Object:
        # Not asdict: it builds copies of the proof's containers, which Ansible's lazy ones do not allow.
        return dict(vars(self))


def evidence_from_dict(record: Mapping[str, Any]) -> Evidence:
    """Read a record. Raises EvidenceError."""
    known = Evidence.__dataclass_fields__
    unknown = sorted(set(record) - set(known))
    required = ("id", "claim", "expected", "observed", "verdict")
    missing = [name for name in required if not isinstance(record.get(name), str)]
    name = record.get("id", "without id")
    if unknown or missing:
        wrong = f"has unknown {', '.join(unknown)}" if unknown else f"lacks {', '.join(missing)}"
        raise EvidenceError(f"The evidence {name!r} {wrong}; a record has {', '.join(known)}.")
    if record["verdict"] not in VERDICTS:
        raise EvidenceError(
            f"The evidence {name!r} ends {record['verdict']!r} and not in one of {', '.join(VERDICTS)}."
        )
    return Evidence(**record)


@dataclass(frozen=True)
class Check:
    """All records of one id."""

    id: str
    records: tuple[Evidence, ...]

    @property
    def claim(self) -> str:
        return self.records[0].claim

    @property
    def verdict(self) -> str:
        verdicts = {record.verdict for record in self.records}
        return next(verdict for verdict in (FAILED, PASSED, SKIPPED) if verdict in verdicts)

    @property
    def expected(self) -> str:
        return self._said("expected")

    @property
    def observed(self) -> str:
        return self._said("observed")

    @property
    def reason(self) -> str:
        wanted = [record for record in self.records if record.verdict == self.verdict and record.reason]
        return "; ".join(f"{record.subject}: {record.reason}" if record.subject else record.reason for record in wanted)

    def _said(self, what: str) -> str:
        """What the records say, once where all say the same; the failed ones alone where there are such."""
        records = [record for record in self.records if record.verdict == self.verdict]
        texts = {record.subject: str(getattr(record, what)) for record in records}
        if len(set(texts.values())) == 1:
            return next(iter(texts.values()))
        return "; ".join(f"{subject}: {text}" if subject else text for subject, text in texts.items())

    def to_dict(self) -> Object:
        return {
            "id": self.id,
            "claim": self.claim,
            "verdict": self.verdict,
            "expected": self.expected,
            "observed": self.observed,
            "reason": self.reason,
            "evidence": [record.to_dict() for record in self.records],
        }


def checks_of(evidence: Iterable[Evidence], order: Sequence[str] = ()) -> list[Check]:
    """Group records by their ids: those in ``order`` first, the others as they come."""
    groups: dict[str, list[Evidence]] = {name: [] for name in order}
    for record in evidence:
        groups.setdefault(record.id, []).append(record)
    return [Check(name, tuple(records)) for name, records in groups.items() if records]


def report_of(checks: Sequence[Check], components: str, made_at: str, versions: Mapping[str, str]) -> Object:
    """The report as it is written to report.json; its first entry says which components were checked."""
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in VERDICTS}
    return {
        "components": components,
        "schema": SCHEMA,
        "made_at": made_at,
        "versions": dict(versions),
        "passed": counts[FAILED] == 0 and counts[PASSED] > 0,
        "counts": counts,
        "checks": [check.to_dict() for check in checks],
    }


def junit_of(checks: Sequence[Check], components: str, made_at: str) -> str:
    """The report for machines that read JUnit's XML: a test case a check."""
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in VERDICTS}
    totals = {"tests": len(checks), "failures": counts[FAILED], "skipped": counts[SKIPPED], "errors": 0}
    numbers = {key: str(number) for key, number in totals.items()}
    suites = ElementTree.Element("testsuites", numbers)
    name = f"tenantry.gpu ({components})"
    suite = ElementTree.SubElement(suites, "testsuite", {"name": name, "timestamp": made_at, **numbers})
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "tenantry.gpu", "name": check.id})
        told = f"{check.claim}\nexpected: {check.expected}\nobserved: {check.observed}"
        if check.verdict == FAILED:
            message = _xml_text(check.reason or check.observed)
            ElementTree.SubElement(case, "failure", {"message": message}).text = _xml_text(told)
        elif check.verdict == SKIPPED:
            ElementTree.SubElement(case, "skipped", {"message": _xml_text(check.reason)})
        proof = json.dumps([dict(record.proof) for record in check.records], indent=1, default=str)
        ElementTree.SubElement(case, "system-out").text = _xml_text(f"{told}\n{proof}")
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _xml_text(text: str) -> str:
    """The text without the control characters that XML cannot hold."""
    return "".join(char if char in "\n\t" or char >= " " else "?" for char in text)


def table_of(checks: Sequence[Check], width: int = 50) -> str:
    """A table for people. Cells are cut at ``width`` characters; what did not pass is told below it in full."""
    rows = [("check", "verdict", "expected", "observed")]
    rows += [(check.id, check.verdict, _cut(check.expected, width), _cut(check.observed, width)) for check in checks]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    rows.insert(1, tuple("-" * length for length in (*widths, max(len(row[3]) for row in rows))))  # type: ignore[arg-type]
    lines = ["  ".join([*(cell.ljust(length) for cell, length in zip(row, widths)), row[-1]]).rstrip() for row in rows]
    told = [f"{check.id}: {check.reason or check.observed}" for check in checks if check.verdict != PASSED]
    return "\n".join([*lines, *([""] if told else []), *told])


def _cut(text: str, width: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."
