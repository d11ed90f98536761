#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepares a host's kernel for containers. Runs on the host: Python 3.9, standard library."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_kernel
short_description: Kernel modules, kernel parameters and swap of a Kubernetes node
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Loads kernel modules and sets kernel parameters, now and for the next start of the host.
  - With O(swap=disable), ends the use of swap now, comments its lines in C(/etc/fstab) and masks its systemd units.
  - Says which version of cgroups the host has.
attributes:
  check_mode:
    support: full
    description: Says what would be changed.
  diff_mode:
    support: none
    description: The result names every change.
  idempotent:
    support: full
    description: Changes nothing when everything is as it shall be.
options:
  modules:
    description: Kernel modules that must be there, loaded or built in.
    type: list
    elements: str
    default: []
  sysctls:
    description: Kernel parameters and their values.
    type: dict
    default: {}
  swap:
    description: Whether swap is left as it is, or ended.
    type: str
    choices: [keep, disable]
    default: keep
"""

EXAMPLES = r"""
- name: The kernel is ready for containers
  tenantry.gpu.node_kernel:
    modules: [overlay, br_netfilter]
    sysctls:
      net.ipv4.ip_forward: 1
    swap: disable
"""

RETURN = r"""
changes:
  description: What was changed, or would be.
  returned: success
  type: list
  elements: str
  sample: [module br_netfilter loaded, net.ipv4.ip_forward set to 1]
reboot:
  description: Why the host has to be started again before all of it can take effect; empty where it need not.
  returned: success
  type: str
  sample: ""
cgroup_version:
  description: Version of the cgroup hierarchy.
  returned: success
  type: int
  sample: 2
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

MODULES_FILE = "etc/modules-load.d/tenantry-node.conf"
# The last of sysctl.d, but before a 99-sysctl.conf, which is the administrator's own /etc/sysctl.conf.
SYSCTL_FILE = "etc/sysctl.d/95-tenantry-node.conf"
HEADER = "# Written by tenantry.gpu's role node.\n"
# A built-in module without parameters is not in /sys/module: something else shows that it is there.
SIGNS = {"br_netfilter": "proc/sys/net/bridge/bridge-nf-call-iptables"}
SWAP_LINE = re.compile(r"^(?!\s*#)\s*\S+\s+\S+\s+swap\s", re.MULTILINE)


class KernelError(Exception):
    """What went wrong, in one sentence for the user."""


class Kernel:
    """The host's kernel, and the files from which it starts next time. ``root`` is the host's root folder."""

    def __init__(self, check: bool, root: Path = Path("/")) -> None:
        self.check = check
        self.root = root
        self.changes: list[str] = []
        self.reboot = ""

    def run(self, arguments: list[str]) -> tuple[int, str]:
        """Exit status and output of a program."""
        try:
            # No module object here.  pylint: disable-next=ansible-bad-function
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
        except FileNotFoundError:
            return 127, f"{arguments[0]} is not installed"
        except subprocess.TimeoutExpired:
            return 124, f"{arguments[0]} took more than 120 s"
        return done.returncode, " ".join((done.stderr or done.stdout).split())

    def read(self, name: str) -> str:
        """Text of a file, or nothing."""
        try:
            return (self.root / name).read_text(encoding="utf-8")
        except OSError:
            return ""

    def persist(self, name: str, content: str) -> None:
        """Write a file for the next start."""
        if self.read(name) == content:
            return
        self.changes.append(f"/{name} written")
        if not self.check:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(content, encoding="utf-8")

    # -- modules --------------------------------------------------------------------------------------------------

    def has_module(self, name: str) -> bool:
        """Whether a module is loaded or built in."""
        name = name.replace("-", "_")
        if (self.root / "sys/module" / name).exists() or (self.root / SIGNS.get(name, "-")).exists():
            return True
        if re.search(rf"\b{re.escape(name)}$", self.read("proc/filesystems"), re.MULTILINE):
            return True
        builtin = self.read(f"lib/modules/{os.uname().release}/modules.builtin").replace("-", "_")
        return f"/{name}.ko" in builtin

    def outdated(self) -> bool:
        """Whether the kernel has been updated, and its older self still runs."""
        folder = self.root / "lib/modules"
        return folder.is_dir() and any(folder.iterdir()) and not (folder / os.uname().release).exists()

    def load(self, modules: list[str]) -> None:
        """Load modules, now and at the next start; raises KernelError."""
        for name in modules:
            if self.has_module(name):
                continue
            self.changes.append(f"module {name} loaded")
            if self.check:
                continue
            status, text = self.run(["modprobe", name])
            if status and self.outdated():
                self.changes.pop()
                self.reboot = f"The running kernel {os.uname().release} has no modules any more, {name} is missing."
            elif status:
                raise KernelError(
                    f"The kernel module {name} cannot be loaded ({text}); install the package of this kernel's modules."
                )
        self.persist(MODULES_FILE, HEADER + "".join(f"{name}\n" for name in modules))

    # -- parameters -----------------------------------------------------------------------------------------------

    def set_parameters(self, sysctls: dict[str, Any]) -> None:
        """Set kernel parameters, now and at the next start; raises KernelError."""
        wanted = {
            name: str(int(value) if isinstance(value, bool) else value) for name, value in sorted(sysctls.items())
        }
        for name, value in wanted.items():
            path = "proc/sys/" + name.replace(".", "/")
            if self.read(path).split() == value.split():
                continue
            if self.reboot and not (self.root / path).exists():
                continue  # it comes with the module, at the next start
            self.changes.append(f"{name} set to {value}")
            if self.check:
                continue
            try:
                (self.root / path).write_text(f"{value}\n", encoding="utf-8")
            except OSError as error:
                raise KernelError(
                    f"The kernel parameter {name} cannot be set to {value} ({error.strerror}); "
                    "take it out of node_sysctls if this kernel has no such parameter."
                ) from error
        self.persist(SYSCTL_FILE, HEADER + "".join(f"{name} = {value}\n" for name, value in wanted.items()))

    # -- swap -----------------------------------------------------------------------------------------------------

    def disable_swap(self) -> None:
        """End the use of swap, now and at the next start; raises KernelError."""
        fstab = self.read("etc/fstab")
        commented = SWAP_LINE.sub(lambda line: f"# node_swap: {line.group()}", fstab)
        if commented != fstab:
            self.persist("etc/fstab", commented)
        _status, listed = self.run(
            ["systemctl", "list-units", "--type=swap", "--all", "--plain", "--no-legend", "--full"]
        )
        units = re.findall(r"(\S+\.swap)\s+(\S+)", listed)
        for unit in (unit for unit, load in units if load not in ("masked", "not-found")):
            self.change(f"{unit} masked", ["systemctl", "mask", unit])
        for device in [line.split()[0] for line in self.read("proc/swaps").splitlines()[1:]]:
            self.change(f"swap on {device} ended", ["swapoff", device])

    def change(self, what: str, arguments: list[str]) -> None:
        """Change something by a program; raises KernelError."""
        self.changes.append(what)
        if self.check:
            return
        status, text = self.run(arguments)
        if status:
            raise KernelError(f"{' '.join(arguments)} failed: {text}.")

    def cgroup_version(self) -> int:
        """2 where the unified hierarchy alone is mounted."""
        return 2 if (self.root / "sys/fs/cgroup/cgroup.controllers").exists() else 1


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "modules": {"type": "list", "elements": "str", "default": []},
            "sysctls": {"type": "dict", "default": {}},
            "swap": {"type": "str", "choices": ["keep", "disable"], "default": "keep"},
        },
        supports_check_mode=True,
    )
    kernel = Kernel(module.check_mode)
    try:
        kernel.load(module.params["modules"])
        kernel.set_parameters(module.params["sysctls"])
        if module.params["swap"] == "disable":
            kernel.disable_swap()
    except KernelError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(kernel.changes),
        changes=kernel.changes,
        reboot=kernel.reboot,
        cgroup_version=kernel.cgroup_version(),
    )


if __name__ == "__main__":
    main()
