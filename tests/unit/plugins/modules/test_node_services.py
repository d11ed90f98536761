# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ansible_collections.tenantry.gpu.plugins.modules import node_services
from ansible_collections.tenantry.gpu.plugins.modules.node_services import Host, ServiceError, Unit, ensure, parse_unit

RUNNING = Unit(loaded=True, active=True, enabled=True, stale=False, pid=os.getpid(), age_s=60)


class Systemd(Host):
    """A systemd that has one answer for every service and remembers what it was asked to do."""

    def __init__(self, unit: Unit, ready: tuple[int, str] = (0, "")) -> None:
        self.calls: list[str] = []
        self.units = [unit]
        self.ready = ready

    def unit(self, name: str) -> Unit:
        return self.units.pop(0) if len(self.units) > 1 else self.units[0]

    def run(self, arguments: list[str], timeout_s: float = 120) -> tuple[int, str]:
        self.calls.append(" ".join(arguments))
        return self.ready if arguments[0] == "ctr" else (0, "")


def service(**changes: object) -> dict[str, object]:
    return {"name": "containerd", "files": [], "check": [], "ready": [], "needs": None, **changes}


def changed(unit: Unit, **changes: object) -> Unit:
    return Unit(**{**vars(unit), **changes})


def test_what_systemd_says():
    text = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nNeedDaemonReload=no\nMainPID=7\n"
    unit = parse_unit(text + "ActiveEnterTimestampMonotonic=5000000\n", monotonic_s=65)
    assert unit == Unit(loaded=True, active=True, enabled=True, stale=False, pid=7, age_s=60)


def test_what_systemd_says_of_nothing():
    unit = parse_unit("LoadState=not-found\nActiveState=inactive\nUnitFileState=\nMainPID=0\n", monotonic_s=65)
    assert (unit.loaded, unit.active, unit.enabled, unit.stale) == (False, False, False, False)


def test_a_service_that_runs_with_what_is_on_disk_is_left_alone():
    systemd = Systemd(RUNNING)
    assert ensure(systemd, [service()], 1, check=False) == {"changed": False, "started": {}, "enabled": []}
    assert systemd.calls == []


def test_a_newer_file_starts_it_again(tmp_path):
    (tmp_path / "50.toml").touch()
    systemd = Systemd(RUNNING)
    result = ensure(systemd, [service(files=[f"{tmp_path}/*.toml"], ready=["ctr", "version"])], 1, check=False)
    assert result["started"] == {"containerd": f"{tmp_path}/50.toml is newer"}
    assert systemd.calls == ["systemctl restart containerd", "ctr version"]


@pytest.mark.parametrize(("active", "asked"), [(True, 1), (False, 0)], ids=["it ran", "its join was cut off"])
def test_a_kubelet_is_waited_for_where_it_ran_before(tmp_path, active, asked):
    configuration = tmp_path / "config.yaml"
    configuration.touch()
    systemd = Systemd(changed(RUNNING, active=active))
    kubelet = service(name="kubelet", files=[str(configuration)], needs=str(configuration), ready=["ctr", "version"])
    assert "kubelet" in ensure(systemd, [kubelet], 1, check=False)["started"]
    assert systemd.calls.count("ctr version") == asked


def test_a_file_that_is_older_does_not(tmp_path):
    (tmp_path / "50.toml").touch()
    unit = changed(RUNNING, age_s=-1)
    assert not ensure(Systemd(unit), [service(files=[f"{tmp_path}/*.toml"])], 1, check=False)["changed"]


def test_a_replaced_program_starts_it_again(monkeypatch):
    monkeypatch.setattr(os, "readlink", lambda path: "/usr/local/bin/containerd (deleted)")
    assert ensure(Systemd(RUNNING), [service()], 1, check=True)["started"] == {
        "containerd": "its program has been replaced"
    }


def test_a_changed_unit_is_read_and_starts_it_again():
    systemd = Systemd(changed(RUNNING, stale=True))
    assert ensure(systemd, [service()], 1, check=False)["started"] == {"containerd": "its unit has changed"}
    assert systemd.calls == ["systemctl daemon-reload", "systemctl restart containerd"]


def test_a_new_unit_is_enabled_and_started():
    systemd = Systemd(Unit(loaded=False, active=False, enabled=False, stale=False, pid=0, age_s=0))
    systemd.units.append(Unit(loaded=True, active=False, enabled=False, stale=False, pid=0, age_s=0))
    result = ensure(systemd, [service()], 1, check=False)
    assert result == {"changed": True, "started": {"containerd": "it did not run"}, "enabled": ["containerd"]}
    assert systemd.calls == ["systemctl daemon-reload", "systemctl enable containerd", "systemctl restart containerd"]


def test_a_kubelet_before_its_join_is_only_enabled(tmp_path):
    systemd = Systemd(changed(RUNNING, active=False, enabled=False))
    result = ensure(systemd, [service(name="kubelet", needs=f"{tmp_path}/config.yaml")], 1, check=False)
    assert (result["started"], result["enabled"]) == ({}, ["kubelet"])


def test_a_service_that_is_not_there_is_named():
    systemd = Systemd(Unit(loaded=False, active=False, enabled=False, stale=False, pid=0, age_s=0))
    with pytest.raises(ServiceError, match="no service containerd; install"):
        ensure(systemd, [service()], 1, check=False)
    assert ensure(systemd, [service()], 1, check=True)["changed"]


def test_a_service_that_does_not_answer_is_named_with_what_it_said(monkeypatch):
    monkeypatch.setattr(node_services, "RETRY_S", 0.01)
    systemd = Systemd(changed(RUNNING, active=False), ready=(1, "usage\nctr: connection refused"))
    with pytest.raises(ServiceError, match="containerd did not answer within 0 s: ctr: connection refused"):
        ensure(systemd, [service(ready=["ctr", "version"])], 0, check=False)


def test_a_service_that_could_not_start_is_left_running(tmp_path):
    (tmp_path / "50.toml").touch()
    systemd = Systemd(RUNNING, ready=(1, "containerd: failed to unmarshal TOML"))
    with pytest.raises(ServiceError, match="containerd is left as it is, because ctr check fails: containerd: failed"):
        ensure(systemd, [service(files=[f"{tmp_path}/*"], check=["ctr", "check"])], 1, check=False)
    assert systemd.calls == ["ctr check"]


def test_a_service_that_does_not_start_is_named_with_its_journal(monkeypatch):
    systemd = Systemd(changed(RUNNING, active=False))
    monkeypatch.setattr(
        systemd,
        "run",
        lambda arguments, timeout_s=120: (0, "invalid toml") if "journalctl" in arguments else (1, "failed"),
    )
    with pytest.raises(ServiceError, match="containerd does not start: invalid toml; see journalctl -u containerd"):
        ensure(systemd, [service()], 1, check=False)


def test_check_mode_does_nothing(tmp_path):
    (tmp_path / "50.toml").touch()
    systemd = Systemd(changed(RUNNING, stale=True, enabled=False))
    assert ensure(systemd, [service(files=[f"{tmp_path}/*"])], 1, check=True)["changed"]
    assert systemd.calls == []


def test_a_real_program_that_ends_or_is_missing(tmp_path: Path):
    host = Host()
    assert host.run(["sh", "-c", "echo out; echo err >&2; exit 3"]) == (3, "out\nerr")
    assert host.run(["no-such-program-here"]) == (127, "no-such-program-here is not installed")
    started = time.monotonic()
    assert host.run(["sleep", "5"], timeout_s=0.1)[0] == 124
    assert time.monotonic() - started < 2
