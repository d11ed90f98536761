"""What the how-to on scheduling shows can be copied."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import Limit, case_from_options, check_order

HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "verify-scheduling.md"


def test_the_cases_of_the_how_to_are_cases() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    found = [block for block in map(yaml.safe_load, blocks) if "cases" in block]
    assert len(found) == 1
    options: list[dict[str, Any]] = found[0]["cases"]
    cases = [case_from_options({"replicas": 1, **each}) for each in options]
    check_order(cases, Limit(memory_mib=16000))
    assert {case.expect.outcome for case in cases} == {"placed", "refused", "over_quota"}
