# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from ansible_collections.tenantry.gpu.plugins.modules.node_programs import Host, ProgramsError, apply, sha256

ARCHIVE = "files/containerd/2.3.7/containerd-2.3.7-linux-amd64.tar.gz"
KUBELET = "files/kubernetes/1.36.3/kubelet"
PROGRAMS = {ARCHIVE: "/usr/local", KUBELET: "/usr/bin/kubelet"}


class Folder:
    """A folder of artifacts that have arrived on a host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.received: dict[str, str] = {}
        self.file(KUBELET, "kubelet 1.36.3")
        self.archive(ARCHIVE, {"bin/containerd": "containerd 2.3.7", "bin/ctr": "ctr 2.3.7"})

    def file(self, name: str, content: str) -> None:
        path = self.root / name.replace("/", "-")
        path.write_text(content)
        self.received[name] = str(path)

    def archive(self, name: str, programs: dict[str, str], mode: int = 0o755) -> None:
        path = self.root / name.replace("/", "-")
        with tarfile.open(path, "w:gz") as tar:
            for member, content in programs.items():
                info = tarfile.TarInfo(member)
                info.size, info.mode = len(content), mode
                tar.addfile(info, io.BytesIO(content.encode()))
        self.received[name] = str(path)

    @property
    def sums(self) -> dict[str, str]:
        return {name: sha256(Path(path)) for name, path in self.received.items()}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "received").mkdir()
    return Folder(tmp_path / "received")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "host").mkdir()
    return tmp_path / "host"


def test_what_is_missing_is_said_and_nothing_is_done(root, folder):
    result = apply(Host(root), PROGRAMS, folder.sums, {})
    assert result == {"changed": True, "installed": sorted(PROGRAMS), "missing": sorted(PROGRAMS)}
    assert list(root.iterdir()) == []


def test_programs_are_installed_once(root, folder):
    apply(Host(root), PROGRAMS, folder.sums, folder.received)
    assert (root / "usr/local/bin/ctr").read_text() == "ctr 2.3.7"
    assert (root / "usr/bin/kubelet").read_text() == "kubelet 1.36.3"
    assert (root / "usr/bin/kubelet").stat().st_mode & 0o777 == 0o755
    assert apply(Host(root), PROGRAMS, folder.sums, {}) == {"changed": False, "installed": [], "missing": []}


def test_another_version_is_installed_in_its_place_and_back(root, folder):
    newer = KUBELET.replace("1.36.3", "1.36.4")
    apply(Host(root), {KUBELET: "/usr/bin/kubelet"}, folder.sums, folder.received)
    folder.file(newer, "kubelet 1.36.4, longer")
    apply(Host(root), {newer: "/usr/bin/kubelet"}, folder.sums, folder.received)
    assert (root / "usr/bin/kubelet").read_text() == "kubelet 1.36.4, longer"
    assert list(Host(root).state) == [newer]
    assert apply(Host(root), {KUBELET: "/usr/bin/kubelet"}, folder.sums, {})["missing"] == [KUBELET]


def test_a_program_that_somebody_replaced_is_missing(root, folder):
    apply(Host(root), PROGRAMS, folder.sums, folder.received)
    (root / "usr/local/bin/ctr").write_text("another one")
    assert apply(Host(root), PROGRAMS, folder.sums, {})["missing"] == [ARCHIVE]


def test_what_arrived_damaged_is_not_installed(root, folder):
    sums = folder.sums
    Path(folder.received[KUBELET]).write_text("cut")
    with pytest.raises(ProgramsError, match=r"kubelet arrived with checksum .* nothing of it was installed"):
        apply(Host(root), PROGRAMS, sums, folder.received)
    assert not (root / "usr/bin").exists()


def test_what_was_installed_before_the_damage_stays_known(root, folder):
    sums = folder.sums
    Path(folder.received[KUBELET]).write_text("cut")
    with pytest.raises(ProgramsError):
        apply(Host(root), PROGRAMS, sums, folder.received)
    assert apply(Host(root), PROGRAMS, sums, {})["missing"] == [KUBELET]


@pytest.mark.parametrize(
    ("member", "match"),
    [
        pytest.param("../etc/passwd", "leaves the folder", id="path-upwards"),
        pytest.param("bin/../../etc/passwd", "leaves the folder", id="path-upwards-inside"),
    ],
)
def test_an_archive_stays_in_its_folder(root, folder, member, match):
    folder.archive(ARCHIVE, {member: "x"})
    with pytest.raises(ProgramsError, match=match):
        apply(Host(root), {ARCHIVE: "/usr/local"}, folder.sums, folder.received)


def test_only_programs_are_taken_from_an_archive(root, folder):
    folder.archive(ARCHIVE, {"./LICENSE": "x"}, mode=0o644)
    apply(Host(root), {ARCHIVE: "/opt/cni/bin"}, folder.sums, folder.received)
    assert not (root / "opt").exists()


def test_an_archive_that_is_none_is_named(root, folder):
    folder.file(ARCHIVE, "no archive")
    with pytest.raises(ProgramsError, match=r"containerd-2.3.7-linux-amd64.tar.gz cannot be installed at /usr/local"):
        apply(Host(root), {ARCHIVE: "/usr/local"}, folder.sums, folder.received)


def test_a_damaged_memory_installs_again(root, folder):
    apply(Host(root), PROGRAMS, folder.sums, folder.received)
    (root / "var/lib/tenantry-gpu/programs.json").write_text("{")
    assert apply(Host(root), PROGRAMS, folder.sums, {})["missing"] == sorted(PROGRAMS)
