# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._artifact_folder import Folder, last_line, write_whole


@pytest.mark.parametrize(
    ("said", "line"),
    [
        pytest.param("", "it said nothing", id="nothing"),
        pytest.param("Error: chart not found\n\n", "Error: chart not found", id="helm"),
        pytest.param(
            r'time="2026-11-30T11:41:20Z" level=fatal msg="writing blob: Patch \"http://m/v2/a/blobs/uploads/1?_state=x\":'
            r' unexpected EOF"',
            'writing blob: Patch "http://m/v2/a/blobs/uploads/1": unexpected EOF',
            id="skopeo",
        ),
    ],
)
def test_what_a_program_said_last(said, line):
    assert last_line(said) == line


def test_checksums_name_what_belongs_to_the_folder_and_no_half_file(tmp_path):
    for name in ("files/a/1/a", "files/a/1/.b.part", "charts/c-1.tgz", "packages/debian-12/Packages", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    folder = Folder(str(tmp_path))
    assert folder.write_sums()
    assert list(folder.sums()) == ["charts/c-1.tgz", "files/a/1/a", "packages/debian-12/Packages"]
    assert not folder.write_sums()


def test_a_text_is_written_once(tmp_path):
    path = tmp_path / "new" / "text"
    assert write_whole(path, "one")
    assert not write_whole(path, "one")
    assert [each.name for each in path.parent.iterdir()] == ["text"]
