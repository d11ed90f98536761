# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.tenantry.gpu.plugins.modules.node_files import FilesError, apply

MARK = "Written by a test"
CONFIG = "/etc/containerd/config.toml"
TEXT = f"# {MARK}\nversion = 3\n"


def tree(root: Path) -> dict[str, str]:
    return {f"/{path.relative_to(root)}": path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def put(root: Path, name: str, content: str) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_a_file_is_written_once(tmp_path):
    first = apply({CONFIG: TEXT}, MARK, check=False, root=tmp_path)
    assert (first["changed"], first["written"], first["kept"]) == (True, [CONFIG], [])
    assert first["diff"] == [{"before_header": CONFIG, "after_header": CONFIG, "before": "", "after": TEXT}]
    assert tree(tmp_path) == {CONFIG: TEXT}
    assert (tmp_path / CONFIG.lstrip("/")).stat().st_mode & 0o777 == 0o644
    assert apply({CONFIG: TEXT}, MARK, check=False, root=tmp_path)["changed"] is False


def test_a_file_of_somebody_else_is_kept_beside_ours(tmp_path):
    put(tmp_path, CONFIG, 'disabled_plugins = ["cri"]\n')
    result = apply({CONFIG: TEXT}, MARK, check=False, root=tmp_path)
    assert tree(tmp_path) == {CONFIG: TEXT, result["kept"][0]: 'disabled_plugins = ["cri"]\n'}


def test_another_version_of_ours_is_not_kept(tmp_path):
    put(tmp_path, CONFIG, f"# {MARK}\nversion = 2\n")
    assert apply({CONFIG: TEXT}, MARK, check=False, root=tmp_path)["kept"] == []
    assert tree(tmp_path) == {CONFIG: TEXT}


@pytest.mark.parametrize(
    ("content", "left"),
    [
        pytest.param(TEXT, {}, id="ours-is-removed"),
        pytest.param("theirs\n", {CONFIG: "theirs\n"}, id="theirs-stays"),
        pytest.param(None, {}, id="nothing-there"),
    ],
)
def test_a_file_that_shall_not_be_there(tmp_path, content, left):
    if content is not None:
        put(tmp_path, CONFIG, content)
    result = apply({CONFIG: ""}, MARK, check=False, root=tmp_path)
    assert tree(tmp_path) == left
    assert result["changed"] is (content == TEXT)


def test_check_mode_writes_nothing_and_says_the_same(tmp_path):
    put(tmp_path, CONFIG, "theirs\n")
    foreseen = apply({CONFIG: TEXT, "/etc/new": TEXT}, MARK, check=True, root=tmp_path)
    assert tree(tmp_path) == {CONFIG: "theirs\n"}
    done = apply({CONFIG: TEXT, "/etc/new": TEXT}, MARK, check=False, root=tmp_path)
    assert (foreseen["written"], foreseen["diff"]) == (done["written"], done["diff"])


def test_a_file_without_its_mark_is_refused(tmp_path):
    with pytest.raises(FilesError, match="without its mark"):
        apply({CONFIG: "version = 3\n"}, MARK, check=False, root=tmp_path)
    assert tree(tmp_path) == {}


def test_a_folder_in_the_way_is_named(tmp_path):
    (tmp_path / CONFIG.lstrip("/")).mkdir(parents=True)
    with pytest.raises(FilesError, match=r"config.toml cannot be read \(Is a directory\)"):
        apply({CONFIG: TEXT}, MARK, check=False, root=tmp_path)
