# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.tenantry.gpu.plugins.modules.node_kernel import HEADER, Kernel, KernelError

RELEASE = os.uname().release
FSTAB = (
    "UUID=1 / ext4 defaults 0 1\n#/swap.old none swap sw 0 0\nUUID=2 none swap sw 0 0\n/swapfile\tnone\tswap\tsw 0 0\n"
)
SWAPS = "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 1 0 -2\n"
UNITS = "dev-sda2.swap loaded active active /dev/sda2\ndev-old.swap masked inactive dead dev-old.swap\n"


class Machine(Kernel):
    """A kernel that is a folder, with programs that only leave a trace."""

    def __init__(self, root: Path, check: bool = False) -> None:
        super().__init__(check, root)
        self.calls: list[str] = []
        self.answers: dict[str, tuple[int, str]] = {}

    def put(self, name: str, content: str = "") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def run(self, arguments: list[str]) -> tuple[int, str]:
        self.calls.append(" ".join(arguments))
        return self.answers.get(arguments[0], (0, ""))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("module", "path", "content"),
    [
        pytest.param("nf_conntrack", "sys/module/nf_conntrack/refcnt", "0\n", id="loaded"),
        pytest.param("nf-conntrack", "sys/module/nf_conntrack/refcnt", "0\n", id="named-with-a-dash"),
        pytest.param("overlay", "proc/filesystems", "nodev\tproc\nnodev\toverlay\n", id="file-system"),
        pytest.param("br_netfilter", "proc/sys/net/bridge/bridge-nf-call-iptables", "1\n", id="bridge"),
        pytest.param("vhost", f"lib/modules/{RELEASE}/modules.builtin", "kernel/drivers/vhost.ko\n", id="built-in"),
    ],
)
def test_a_module_that_is_there_is_not_loaded(machine, module, path, content):
    machine.put(path, content)
    machine.load([module])
    assert machine.calls == []
    assert machine.read("etc/modules-load.d/tenantry-node.conf") == f"{HEADER}{module}\n"


def test_a_module_is_loaded_now_and_at_the_next_start(machine):
    machine.load(["overlay"])
    assert machine.calls == ["modprobe overlay"]
    assert machine.changes == ["module overlay loaded", "/etc/modules-load.d/tenantry-node.conf written"]


def test_a_module_that_cannot_be_loaded_is_named(machine):
    machine.answers["modprobe"] = (1, "FATAL: Module overlay not found")
    with pytest.raises(KernelError, match=r"kernel module overlay cannot be loaded \(FATAL"):
        machine.load(["overlay"])


def test_a_kernel_that_was_updated_asks_for_a_reboot(machine):
    machine.put("lib/modules/0.0.1-newer/modules.dep")
    machine.answers["modprobe"] = (1, "FATAL: Module br_netfilter not found")
    machine.load(["br_netfilter"])
    machine.put("proc/sys/net/ipv4/ip_forward", "0\n")
    machine.set_parameters({"net.bridge.bridge-nf-call-iptables": 1, "net.ipv4.ip_forward": 1})
    assert machine.reboot == f"The running kernel {RELEASE} has no modules any more, br_netfilter is missing."
    assert machine.read("proc/sys/net/ipv4/ip_forward") == "1\n"
    assert "bridge-nf-call-iptables = 1" in machine.read("etc/sysctl.d/95-tenantry-node.conf")


def test_parameters_are_set_once(machine):
    machine.put("proc/sys/net/ipv4/ip_forward", "0\n")
    machine.put("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
    wanted = {"net.ipv4.ip_forward": True, "net.ipv4.ip_local_port_range": "32768 60999"}
    machine.set_parameters(wanted)
    assert machine.changes == ["net.ipv4.ip_forward set to 1", "/etc/sysctl.d/95-tenantry-node.conf written"]
    machine.changes.clear()
    machine.set_parameters(wanted)
    assert machine.changes == []


def test_a_parameter_that_the_kernel_lacks_is_named(machine):
    with pytest.raises(KernelError, match=r"net.none cannot be set to 1 \(No such file or directory\)"):
        machine.set_parameters({"net.none": 1})


def test_swap_ends_now_and_for_ever(machine):
    machine.put("etc/fstab", FSTAB)
    machine.put("proc/swaps", SWAPS)
    machine.answers["systemctl"] = (0, UNITS)
    machine.disable_swap()
    assert machine.read("etc/fstab").splitlines() == [
        "UUID=1 / ext4 defaults 0 1",
        "#/swap.old none swap sw 0 0",
        "# node_swap: UUID=2 none swap sw 0 0",
        "# node_swap: /swapfile\tnone\tswap\tsw 0 0",
    ]
    assert machine.calls[1:] == ["systemctl mask dev-sda2.swap", "swapoff /dev/sda2"]


def test_a_host_without_swap_stays_as_it_is(machine):
    machine.put("etc/fstab", FSTAB.splitlines()[0])
    machine.disable_swap()
    assert machine.changes == []


def test_check_mode_changes_nothing(tmp_path):
    machine = Machine(tmp_path, check=True)
    machine.put("etc/fstab", FSTAB)
    machine.put("proc/swaps", SWAPS)
    machine.put("proc/sys/net/ipv4/ip_forward", "0\n")
    machine.load(["overlay"])
    machine.set_parameters({"net.ipv4.ip_forward": 1})
    machine.disable_swap()
    assert len(machine.changes) == 6
    assert machine.read("etc/fstab") == FSTAB
    assert [call for call in machine.calls if "list-units" not in call] == []


@pytest.mark.parametrize(("files", "version"), [([], 1), (["sys/fs/cgroup/cgroup.controllers"], 2)])
def test_the_version_of_cgroups(machine, files, version):
    for name in files:
        machine.put(name)
    assert machine.cgroup_version() == version
