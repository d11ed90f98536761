# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.tenantry.gpu.plugins.modules import verification_report as module

RECORD = {"id": "share-three", "claim": "c", "expected": "e", "observed": "o", "verdict": "passed"}


def run(capsys: pytest.CaptureFixture[str], path: Path, *records: dict[str, Any], **more: Any) -> dict[str, Any]:
    arguments = {"path": str(path), "components": "standin", "evidence": list(records), **more}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_three_files_for_their_owner_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "state" / "report"
    answer = run(capsys, folder, RECORD, {**RECORD, "id": "x", "verdict": "failed", "reason": "no card"})
    assert (answer["passed"], answer["failed_checks"], answer["changed"]) == (False, ["x"], True)
    assert {file.name for file in folder.iterdir()} == {"report.json", "junit.xml", "report.txt"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "report.json").stat().st_mode) == 0o600
    assert (folder / "report.json").read_text().startswith('{\n  "components": "standin",\n')
    assert answer["report_table"] in (folder / "report.txt").read_text()


def test_a_change_is_another_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, tmp_path, RECORD)["changed"] is True
    assert run(capsys, tmp_path, {**RECORD, "proof": {"pod": "another"}})["changed"] is False
    assert run(capsys, tmp_path, {**RECORD, "verdict": "failed"}, _ansible_check_mode=True)["changed"] is True
    (tmp_path / "report.json").write_text("cut off {")
    assert run(capsys, tmp_path, RECORD)["changed"] is True


def test_check_mode_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = run(capsys, tmp_path / "report", RECORD, _ansible_check_mode=True)
    assert answer["passed"] is True
    assert not (tmp_path / "report").exists()


def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = run(capsys, tmp_path / "file" / "report", RECORD)
    assert answer["failed"]
    assert "cannot be written to" in answer["msg"]
