#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verification_report
short_description: Writes the report of a verification from its evidence
version_added: "0.1.0"
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - Groups the records of all tenants by check and writes C(report.json), C(junit.xml) and, for people, C(report.txt).
  - A failed check does not fail the task; RV(passed) says whether there is one.
extends_documentation_fragment:
  - tenantry.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details:
      - A report is all new; compare RV(counts) and RV(failed_checks).
  idempotent:
    support: full
    details:
      - A report is written every time. It counts as a change where a verdict, the components or the versions differ
        from those of the report that was there; times and proofs always do.
options:
  path:
    description: Folder of the report. It is created, with mode 0700, if it does not exist.
    type: path
    required: true
  components:
    description: Which components were checked, the originals or the stand-ins.
    type: str
    choices: [upstream, standin]
    required: true
  versions:
    description: Versions of the components, for the report.
    type: dict
    default: {}
  order:
    description: Ids of checks in the order in which the report gives them; others follow.
    type: list
    elements: str
    default: []
  evidence:
    description: The records.
    type: list
    elements: dict
    required: true
    suboptions:
      id:
        description: Id of the check, the same for every tenant and every run.
        type: str
        required: true
      subject:
        description: The tenant that the record is about. Empty for all.
        type: str
        default: ""
      claim:
        description: What the check shows, in one sentence.
        type: str
        required: true
      expected:
        description: What had to be seen.
        type: str
        required: true
      observed:
        description: What was seen.
        type: str
        required: true
      verdict:
        description: How it ended.
        type: str
        choices: [passed, failed, skipped]
        required: true
      reason:
        description: Why it failed or was skipped.
        type: str
        default: ""
      proof:
        description: What shows it, as it was read.
        type: dict
        default: {}
"""

EXAMPLES = r"""
- name: The report is written
  tenantry.gpu.verification_report:
    path: .state/lab/report
    components: standin
    evidence:
      - id: capacity-a
        subject: tenant-a
        claim: The tenant's cards are registered with all their memory, compute and slots.
        expected: 81920 MiB, 100 cores, 10 slots
        observed: 81920 MiB, 100 cores, 10 slots
        verdict: passed
"""

RETURN = r"""
passed:
  description: Whether no check failed and at least one passed.
  returned: success
  type: bool
  sample: true
counts:
  description: Number of checks by verdict.
  returned: success
  type: dict
  sample: {passed: 8, failed: 0, skipped: 0}
failed_checks:
  description: Ids of the checks that failed.
  returned: success
  type: list
  elements: str
  sample: []
report_path:
  description: Path of the report in JSON.
  returned: success
  type: str
  sample: .state/lab/report/report.json
report_table:
  description: The checks as a table for people.
  returned: success
  type: str
  sample: "check       verdict  expected                  observed"
"""

import json
import os
import tempfile
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tenantry.gpu.plugins.module_utils._evidence import (
    EvidenceError,
    checks_of,
    evidence_from_dict,
    junit_of,
    report_of,
    table_of,
)

EVIDENCE_OPTIONS: dict[str, Any] = {
    "id": {"type": "str", "required": True},
    "subject": {"type": "str", "default": ""},
    "claim": {"type": "str", "required": True},
    "expected": {"type": "str", "required": True},
    "observed": {"type": "str", "required": True},
    "verdict": {"type": "str", "choices": ["passed", "failed", "skipped"], "required": True},
    "reason": {"type": "str", "default": ""},
    "proof": {"type": "dict", "default": {}},
}


def write_file(path: str, text: str) -> None:
    """Write a file whole or not at all, readable by its owner alone."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def outcome_of(report: Mapping[str, Any]) -> list[Any]:
    """What does not differ between two runs that found the same."""
    verdicts = {check["id"]: check["verdict"] for check in report["checks"]}
    return [report["schema"], report["components"], report["versions"], verdicts]


def differs(path: str, report: Mapping[str, Any]) -> bool:
    """Whether the report at a path, if there is one, says something else."""
    try:
        with open(path, encoding="utf-8") as file:
            return outcome_of(json.load(file)) != outcome_of(report)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "components": {"type": "str", "choices": ["upstream", "standin"], "required": True},
            "versions": {"type": "dict", "default": {}},
            "order": {"type": "list", "elements": "str", "default": []},
            "evidence": {"type": "list", "elements": "dict", "required": True, "options": EVIDENCE_OPTIONS},
        },
        supports_check_mode=True,
    )
    params = module.params
    made_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        checks = checks_of([evidence_from_dict(record) for record in params["evidence"]], params["order"])
    except EvidenceError as error:
        module.fail_json(msg=str(error))
    report = report_of(checks, params["components"], made_at, params["versions"])
    table = table_of(checks)
    report_path = os.path.join(params["path"], "report.json")
    changed = differs(report_path, report)
    if not module.check_mode:
        try:
            os.makedirs(params["path"], mode=0o700, exist_ok=True)
            write_file(report_path, json.dumps(report, indent=2, default=str) + "\n")
            write_file(os.path.join(params["path"], "junit.xml"), junit_of(checks, params["components"], made_at))
            write_file(os.path.join(params["path"], "report.txt"), f"components: {params['components']}\n\n{table}\n")
        except OSError as error:
            module.fail_json(msg=f"The report cannot be written to {params['path']}: {error.strerror}.")
    module.exit_json(
        changed=changed,
        passed=report["passed"],
        counts=report["counts"],
        failed_checks=[check.id for check in checks if check.verdict == "failed"],
        report_path=report_path,
        report_table=table,
    )


if __name__ == "__main__":
    main()
