# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The container engine's command line, as far as podman and docker agree, and what they print.

Commands may run in threads, so they go through subprocess and not through AnsibleModule.run_command.
"""
# pylint: disable=ansible-bad-function

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

LABEL_LAB = "tenantry.gpu.lab"
LABEL_VERSION = "tenantry.gpu.version"

ENGINES = ("podman", "docker")

PODMAN_BRIDGES = ("cni-podman", "podman")

# Podman's own systemd mode stays off: on cgroup v1 it shows every container the machine's whole systemd hierarchy, and
# one host that stops removes the others' control groups, after which podman exec fails in them.
SYSTEMD_OPTIONS = {
    "podman": ("--systemd=false", "--env=container=podman"),
    "docker": ("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined", "--env=container=docker"),
}


class EngineError(Exception):
    """A command of the engine failed; the message is what it said."""


@dataclass(frozen=True)
class Container:
    """A container as the engine sees it; address is "" where it has none now."""

    name: str
    status: str
    network: str
    address: str
    version: str

    @property
    def running(self) -> bool:
        return self.status == "running"


@dataclass(frozen=True)
class Network:
    """A network of the engine; lab is "" where no lab made it."""

    name: str
    subnets: tuple[str, ...]
    lab: str


def parse_containers(text: str) -> list[Container]:
    """Read the answer of ``inspect --type container``, which both engines write alike."""
    found = []
    for item in json.loads(text):
        labels = item["Config"].get("Labels") or {}
        networks = (item.get("NetworkSettings") or {}).get("Networks") or {}
        name = next(iter(networks), "")
        found.append(
            Container(
                name=item["Name"].lstrip("/"),
                status=item["State"]["Status"],
                network=name,
                address=(networks.get(name) or {}).get("IPAddress") or "",
                version=labels.get(LABEL_VERSION, ""),
            )
        )
    return found


def parse_network(text: str) -> Network:
    """Read the answer of ``network inspect`` of one network, in podman's or in docker's words."""
    (item,) = json.loads(text)
    if "subnets" in item:
        subnets = [entry["subnet"] for entry in item["subnets"] or []]
        return Network(item["name"], tuple(subnets), (item.get("labels") or {}).get(LABEL_LAB, ""))
    subnets = [entry["Subnet"] for entry in item["IPAM"]["Config"] or []]
    return Network(item["Name"], tuple(subnets), (item.get("Labels") or {}).get(LABEL_LAB, ""))


def bridge_with(text: str, address: str) -> str | None:
    """The bridge of podman's that has an address, from the answer of ``ip -json address``."""
    for link in json.loads(text or "[]"):
        held = [entry.get("local") for entry in link.get("addr_info", [])]
        if address in held and link["ifname"].startswith(PODMAN_BRIDGES):
            return str(link["ifname"])
    return None


def remove_stale_bridge(gateway: str) -> None:
    """Delete podman's bridge with this address, which a killed removal of its network leaves behind.

    To be called when the network is gone: then nothing else can remove it, and its range counts as taken.
    """
    try:
        listing = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, text=True, check=False)
        bridge = bridge_with(listing.stdout, gateway)
        if bridge:
            subprocess.run(["ip", "link", "delete", bridge], capture_output=True, check=False)
    except OSError:
        return  # no program ip: the engine says what is wrong


class Engine:
    """Runs the engine's program; every method raises EngineError with what the program said."""

    def __init__(self, program: str, lab_name: str, version: str = "") -> None:
        self.program = program
        self.lab_name = lab_name
        self.labels = (f"--label={LABEL_LAB}={lab_name}", f"--label={LABEL_VERSION}={version}")

    def call(self, *arguments: str, timeout_s: float = 120) -> str:
        """Run one command and give its output; its end is awaited for ``timeout_s`` seconds."""
        try:
            done = subprocess.run(
                [self.program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"{self.program} {arguments[0]} gave no answer within {timeout_s:.0f} s") from error
        except OSError as error:
            raise EngineError(f"{self.program} cannot be run: {error.strerror}") from error
        if done.returncode:
            said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
            raise EngineError(f"{self.program} {arguments[0]}: {said}")
        return done.stdout

    def succeeds(self, *arguments: str) -> bool:
        """Whether a command succeeds."""
        try:
            self.call(*arguments)
        except EngineError:
            return False
        return True

    def containers(self) -> dict[str, Container]:
        """The lab's containers by name, in whatever state."""
        ids = self.call("ps", "--all", "--quiet", f"--filter=label={LABEL_LAB}={self.lab_name}").split()
        if not ids:
            return {}
        return {one.name: one for one in parse_containers(self.call("inspect", "--type=container", *ids))}

    def network(self, name: str) -> Network | None:
        """The network called ``name``, whoever made it."""
        names = self.call("network", "ls", "--format={{.Name}}").split()
        return parse_network(self.call("network", "inspect", name)) if name in names else None

    def labelled(self, kind: str) -> list[str]:
        """Names of the lab's things of a kind, ``volume`` or ``network``."""
        listing = self.call(kind, "ls", "--format={{.Name}}", f"--filter=label={LABEL_LAB}={self.lab_name}")
        return listing.split()

    def images(self, prefix: str | None) -> list[str]:
        """References of the engine's images that begin with ``prefix``; none without one."""
        if not prefix:
            return []
        listing = self.call("images", "--format={{.Repository}}:{{.Tag}}").split()
        return [image for image in listing if image.startswith(prefix)]

    def remove_containers(self, names: Sequence[str]) -> None:
        """Kill and remove containers; one that is gone already is no error."""
        options = ["--time=0", "--ignore"]
        if self.program == "docker":
            there = self.call("ps", "--all", "--format={{.Names}}").split()
            names, options = [name for name in names if name in there], []
        if not names:
            return
        try:
            self.call("rm", "--force", "--volumes", *options, *names)
        except EngineError:
            # On a busy machine a process that waits for the disk outlives podman's patience; it has died by now.
            self.call("rm", "--force", "--volumes", *options, *names)
