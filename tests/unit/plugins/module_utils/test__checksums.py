# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._checksums import (
    ArtifactsError,
    parse_sums,
    read_sums,
    verify,
)

SUM = "0" * 64


@pytest.mark.parametrize(
    ("line", "path"),
    [
        pytest.param(f"{SUM}  files/a", "files/a", id="text"),
        pytest.param(f"{SUM} *files/a", "files/a", id="binary"),
        pytest.param(f"{SUM}  ./files/a", "files/a", id="with-a-dot"),
        pytest.param(f"{SUM}  files/a b", "files/a b", id="with-a-blank"),
    ],
)
def test_a_line_of_sha256sum(line, path):
    assert parse_sums(line) == {path: SUM}


@pytest.mark.parametrize("line", ["", "abc  files/a", SUM, f"{SUM}  "])
def test_a_line_that_is_none(line):
    with pytest.raises(ArtifactsError, match="no checksum and path"):
        parse_sums(f"{SUM}  files/a\n{line}\n")


def test_a_folder_without_its_list_is_named(tmp_path):
    with pytest.raises(ArtifactsError, match=r"SHA256SUMS cannot be read \(No such file or directory\); write the"):
        read_sums(tmp_path)


def test_every_fault_is_named_at_once(tmp_path):
    (tmp_path / "good").write_text("good")
    (tmp_path / "bad").write_text("bad")
    sums = {"good": hashlib.sha256(b"good").hexdigest(), "bad": SUM, "gone": SUM}
    verify(tmp_path, ["good"], sums)
    with pytest.raises(ArtifactsError) as error:
        verify(tmp_path, ["good", "bad", "gone", "unknown"], sums)
    assert str(error.value) == (
        f"{tmp_path}: bad has checksum {hashlib.sha256(b'bad').hexdigest()[:12]}... instead of {SUM[:12]}...; "
        "gone cannot be read (No such file or directory); unknown is not in SHA256SUMS. "
        "Nothing was changed with it; fetch it again with playbooks/artifacts.yml."
    )
