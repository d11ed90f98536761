# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest

from ansible_collections.tenantry.gpu.plugins.action.node_programs import ActionModule
from ansible_collections.tenantry.gpu.plugins.module_utils._checksums import ArtifactsError

PROGRAMS = {"files/kubelet": "/usr/bin/kubelet", "files/kubeadm": "/usr/bin/kubeadm"}


class Action(ActionModule):
    """The controller's half, with a host that lacks what ``missing`` names."""

    def __init__(self, folder, missing, check_mode=False):
        self._task = SimpleNamespace(args={"src": str(folder), "programs": PROGRAMS}, check_mode=check_mode)
        self._connection = SimpleNamespace(
            _shell=SimpleNamespace(tmpdir="/remote", join_path=lambda *parts: "/".join(parts))
        )
        self.missing = missing
        self.calls = []
        self.sent = {}

    def _execute_module(self, module_name, module_args, task_vars, persist_files):
        self.calls.append(module_args)
        return {"changed": bool(self.missing), "missing": [] if module_args.get("received") else self.missing}

    def _transfer_file(self, local_path, remote_path):
        self.sent[remote_path] = local_path


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    lines = ""
    for name in PROGRAMS:
        (tmp_path / name).write_text(name)
        lines += f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n"
    (tmp_path / "SHA256SUMS").write_text(lines)
    return tmp_path


def test_a_host_that_has_everything_is_sent_nothing(folder):
    action = Action(folder, [])
    assert action._ensure({})["changed"] is False
    assert (len(action.calls), action.sent) == (1, {})
    assert action.calls[0]["checksums"]["files/kubelet"] == hashlib.sha256(b"files/kubelet").hexdigest()


def test_only_what_is_missing_is_sent(folder):
    action = Action(folder, ["files/kubelet"])
    assert action._ensure({})["changed"] is True
    assert action.sent == {"/remote/artifact-0": f"{folder}/files/kubelet"}
    assert action.calls[1]["received"] == {"files/kubelet": "/remote/artifact-0"}


def test_check_mode_sends_nothing(folder):
    action = Action(folder, ["files/kubelet"], check_mode=True)
    assert action._ensure({})["changed"] is True
    assert (len(action.calls), action.sent) == (1, {})


def test_a_damaged_file_is_named_and_nothing_is_sent(folder):
    (folder / "files/kubelet").write_text("cut")
    action = Action(folder, sorted(PROGRAMS))
    with pytest.raises(ArtifactsError, match="files/kubelet has checksum"):
        action._ensure({})
    assert action.sent == {}


def test_a_version_that_the_folder_does_not_have_is_named_before_the_host_is_asked(folder):
    (folder / "SHA256SUMS").write_text("")
    action = Action(folder, [])
    with pytest.raises(ArtifactsError, match="holds no files/kubeadm, files/kubelet; fetch it"):
        action._ensure({})
    assert action.calls == []
