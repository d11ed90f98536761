#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets services run with what is on disk. Runs on the host: Python 3.9, standard library."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_services
short_description: Let services run with the programs and configuration that are on disk
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Enables and starts systemd services. Starts one again when what it reads has changed since it started, its program,
    its unit or one of its files. So a restart that an earlier run owed is made up for.
  - Waits until a service that it started answers.
attributes:
  check_mode:
    support: full
    description: Says which services would be enabled, started or started again.
  diff_mode:
    support: none
    description: The result names every service that changes.
  idempotent:
    support: full
    description: Changes nothing when every service runs with what is on disk.
options:
  services:
    description: The services, in the order in which they start.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the unit, without C(.service).
        type: str
        required: true
      files:
        description: Files that the service reads when it starts, as patterns of the shell.
        type: list
        elements: str
        default: []
      check:
        description:
          - Command that succeeds when the service can start with what is on disk.
          - Where it fails, a service that runs is left running.
        type: list
        elements: str
        default: []
      ready:
        description:
          - Command that succeeds when the service answers.
          - Of a service with O(services[].needs) only one that ran before is waited for. What it needs besides may not
            be there yet, as with a kubelet whose join was cut off.
        type: list
        elements: str
        default: []
      needs:
        description: A file without which the service cannot run yet, such as a kubelet's configuration before the join.
        type: path
  timeout_s:
    description: How many seconds a service may take until it answers.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Containerd runs with its configuration
  tenantry.gpu.node_services:
    services:
      - name: containerd
        files: [/etc/containerd/config.toml, /etc/containerd/conf.d/*.toml]
        check: [containerd, config, dump]
        ready: [ctr, version]
"""

RETURN = r"""
started:
  description: Services that were started, or started again, or would be, and why.
  returned: success
  type: dict
  sample: {containerd: /etc/containerd/config.toml is newer}
enabled:
  description: Services that were enabled, or would be.
  returned: success
  type: list
  elements: str
"""

import glob
import os
import subprocess
import time
from dataclasses import dataclass, replace
from typing import Any

from ansible.module_utils.basic import AnsibleModule

RETRY_S = 0.2
ENABLED = ("enabled", "enabled-runtime", "static", "generated", "linked", "alias")
PROPERTIES = (
    "LoadState",
    "ActiveState",
    "UnitFileState",
    "NeedDaemonReload",
    "MainPID",
    "ActiveEnterTimestampMonotonic",
)


class ServiceError(Exception):
    """What went wrong, in one sentence for the user."""


@dataclass(frozen=True)
class Unit:
    """What systemd says of a service. ``age_s``: seconds since it became active."""

    loaded: bool
    active: bool
    enabled: bool
    stale: bool
    pid: int
    age_s: float


def parse_unit(text: str, monotonic_s: float) -> Unit:
    """Read the answer of ``systemctl show``; ``monotonic_s`` is the clock that systemd uses too."""
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    entered_us = int(found.get("ActiveEnterTimestampMonotonic") or 0)
    return Unit(
        loaded=found.get("LoadState") == "loaded",
        active=found.get("ActiveState") in ("active", "reloading"),
        enabled=found.get("UnitFileState") in ENABLED,
        stale=found.get("NeedDaemonReload") == "yes",
        pid=int(found.get("MainPID") or 0),
        age_s=monotonic_s - entered_us / 1e6,
    )


def why_restart(unit: Unit, patterns: list[str], now_s: float) -> str:
    """Why a running service has to be started again, or nothing."""
    if unit.stale:
        return "its unit has changed"
    try:
        if os.readlink(f"/proc/{unit.pid}/exe").endswith(" (deleted)"):
            return "its program has been replaced"
    except OSError:
        pass  # it has just ended, or has no main process
    started_s = now_s - unit.age_s
    for path in sorted(path for pattern in patterns for path in glob.glob(pattern)):
        # The change time: a package manager sets the other one to the day on which it built the package.
        if started_s < os.stat(path).st_ctime <= now_s:
            return f"{path} is newer"
    return ""


class Host:
    """systemd of this host."""

    def run(self, arguments: list[str], timeout_s: float = 120) -> tuple[int, str]:
        """Exit status and output of a program."""
        try:
            # run_command knows no time limit.  pylint: disable-next=ansible-bad-function
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False)
        except FileNotFoundError:
            return 127, f"{arguments[0]} is not installed"
        except subprocess.TimeoutExpired:
            return 124, f"{arguments[0]} took more than {timeout_s:.0f} s"
        return done.returncode, (done.stdout + done.stderr).strip()

    def unit(self, name: str) -> Unit:
        """What systemd says of the service."""
        _status, text = self.run(["systemctl", "show", f"--property={','.join(PROPERTIES)}", f"{name}.service"])
        return parse_unit(text, time.monotonic())

    def change(self, *arguments: str) -> None:
        """Let systemd do something; raises ServiceError with what its journal says."""
        status, text = self.run(["systemctl", *arguments])
        if status:
            name = arguments[-1]
            # What the service itself said, without systemd's own lines.
            match = f"_SYSTEMD_UNIT={name}.service"
            _status, journal = self.run(["journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=2", match])
            raise ServiceError(
                f"{name} does not start: {' '.join((journal or text).split())}; see journalctl -u {name}."
            )

    def check(self, service: dict[str, Any]) -> None:
        """Look whether a service can start; raises ServiceError."""
        status, text = self.run(service["check"]) if service["check"] else (0, "")
        if status:
            last = text.splitlines()[-1] if text else f"exit status {status}"
            command = " ".join(service["check"])
            raise ServiceError(f"{service['name']} is left as it is, because {command} fails: {last}")

    def wait(self, service: dict[str, Any], timeout_s: float) -> None:
        """Wait until the service answers."""
        deadline = time.monotonic() + timeout_s
        while service["ready"]:
            status, text = self.run(service["ready"], timeout_s)
            if status == 0:
                return
            if time.monotonic() > deadline:
                last = text.splitlines()[-1] if text else f"exit status {status}"
                raise ServiceError(f"{service['name']} did not answer within {timeout_s:.0f} s: {last}")
            time.sleep(RETRY_S)


def ensure(host: Host, services: list[dict[str, Any]], timeout_s: float, check: bool) -> dict[str, Any]:
    """Let every service run with what is on disk; raises ServiceError."""
    started: dict[str, str] = {}
    enabled: list[str] = []
    for service in services:
        name = service["name"]
        unit = host.unit(name)
        if not check and (unit.stale or not unit.loaded):
            host.change("daemon-reload")
            unit = replace(host.unit(name), stale=unit.stale)
        if not check and not unit.loaded:
            raise ServiceError(f"There is no service {name}; install the package or the unit that brings it.")
        if not unit.enabled:
            enabled.append(name)
            if not check:
                host.change("enable", name)
        if service["needs"] and not os.path.exists(service["needs"]):
            continue
        reason = why_restart(unit, service["files"], time.time()) if unit.active else "it did not run"
        if not reason:
            continue
        started[name] = reason
        if not check:
            host.check(service)
            host.change("restart", name)
            if unit.active or not service["needs"]:
                host.wait(service, timeout_s)
    return {"changed": bool(started or enabled), "started": started, "enabled": enabled}


def main() -> None:
    """Entry point."""
    service = {
        "name": {"type": "str", "required": True},
        "files": {"type": "list", "elements": "str", "default": []},
        "check": {"type": "list", "elements": "str", "default": []},
        "ready": {"type": "list", "elements": "str", "default": []},
        "needs": {"type": "path"},
    }
    module = AnsibleModule(
        argument_spec={
            "services": {"type": "list", "elements": "dict", "required": True, "options": service},
            "timeout_s": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    os.environ["PATH"] = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin") + ":/usr/local/bin"
    try:
        module.exit_json(**ensure(Host(), module.params["services"], module.params["timeout_s"], module.check_mode))
    except ServiceError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
