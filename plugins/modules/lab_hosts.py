#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: lab_hosts
short_description: The hosts of a lab, containers that run systemd and containerd
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Makes the network of a lab, its registry and its hosts, or removes them, in one call and the hosts at the same time.
  - A container that runs is kept, one that stopped is started, one that is missing is made. One that cannot be started
    (what an interrupted run or a crash left behind) is made anew, and the result's RV(replaced) names it.
  - A container of another version of the lab is an error, and then nothing is changed.
  - In every host it routes the clusters' service and pod ranges so that no packet for them takes the default route.
    Service ranges stay on the link, since a connection to a service needs a route before kube-proxy redirects it.
    Pod ranges are unreachable, except for the more specific routes that a CNI adds.
attributes:
  check_mode:
    support: full
    description: Says what would be made, started or removed, and does nothing.
  diff_mode:
    support: none
    description: The result names every container that is made, started or removed.
  idempotent:
    support: full
    description: Changes nothing when everything stands.
options:
  state:
    description: Whether the lab's containers are there.
    type: str
    choices: [present, absent]
    default: present
  lab_name:
    description: Name of the lab and of its network, and the prefix of its containers and volumes.
    type: str
    required: true
  engine:
    description: The container engine's program.
    type: str
    choices: [podman, docker]
    required: true
  version:
    description: Version of the lab, a label on all that is made. Required with O(state=present).
    type: str
  subnet:
    description: The lab's network in CIDR notation; its first address is the gateway. Required with O(state=present).
    type: str
  image:
    description: Image of the hosts that name none, in the engine's own storage.
    type: str
  hosts:
    description: The hosts. With O(state=absent) their names find leftovers that lost their label.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The host's name; its container is called C(<lab_name>-<name>).
        type: str
        required: true
      address:
        description: Its address in O(subnet). Required with O(state=present).
        type: str
      image:
        description: Its image where it is not O(image).
        type: str
  registry:
    description: The registry that the hosts pull from. Without it none is made.
    type: dict
    suboptions:
      image:
        description: Image of the registry, in the engine's own storage.
        type: str
        required: true
      address:
        description: Its address in O(subnet); it answers on port 5000.
        type: str
        required: true
      storage:
        description: Folder on this machine that becomes C(/var/lib/registry).
        type: path
        required: true
  service_cidrs:
    description: Service ranges of all clusters in the lab.
    type: list
    elements: str
    default: []
  pod_cidrs:
    description: Pod ranges of all clusters in the lab.
    type: list
    elements: str
    default: []
  timeout_s:
    description: Seconds within which the registry and every host's containerd, where it has one, must answer.
    type: int
    default: 60
  image_prefix:
    description: With O(state=absent), the engine's images whose name begins so are removed if no container needs them.
    type: str
  progress_file:
    description: File to which lines about the progress are appended.
    type: path
"""

EXAMPLES = r"""
- name: A lab of two hosts
  tenantry.gpu.lab_hosts:
    lab_name: lab
    engine: podman
    version: 0.1.0-4f2a
    subnet: 172.30.211.0/24
    image: localhost/tenantry-gpu/node:4f2a
    hosts:
      - {name: management-0, address: 172.30.211.10}
      - {name: a-worker-0, address: 172.30.211.11}
    service_cidrs: [10.96.0.0/16]
    pod_cidrs: [10.244.0.0/16]

- name: The lab is gone
  tenantry.gpu.lab_hosts:
    lab_name: lab
    engine: podman
    state: absent
"""

RETURN = r"""
created:
  description: Containers that were made.
  returned: success
  type: list
  elements: str
started:
  description: Containers that had stopped and were started.
  returned: success
  type: list
  elements: str
replaced:
  description: Containers that could not be started, and were made anew.
  returned: success
  type: list
  elements: str
routed:
  description: Hosts in which routes changed.
  returned: success
  type: list
  elements: str
tuned:
  description: Kernel parameters of this machine that were raised until its next start.
  returned: success
  type: list
  elements: str
removed:
  description: Containers, volumes, networks and images that were removed.
  returned: success
  type: list
  elements: str
"""

import http.client
import ipaddress
import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._engine import ENGINES, SYSTEMD_OPTIONS, Container, Engine, EngineError, remove_stale_bridge

REGISTRY_PORT = 5000
# Where podman's CNI backend keeps leases; a crash leaves them, and then the address counts as taken.
CNI_LEASES = "/var/lib/cni/networks"
ROUTE_PROTOCOL = 84
# A host holds about 20 inotify instances, all of them root's, and the kernel's default of 128 starves the second lab:
# its systemd ends without a word.
INOTIFY_INSTANCES = "/proc/sys/fs/inotify/max_user_instances"
INOTIFY_WANTED = 1024
ROUTED = "routed"
SILENT = "silent"

# Runs in a host, once, instead of one exec for each question: an exec costs 0.1 s and more.
# The unit sets the routes again when the container is started without us.
SETTLE = r"""
set -eu
routes=$1 tries=$2 file=/etc/tenantry-gpu/routes
unit=/etc/systemd/system/tenantry-gpu-routes.service
wanted=$(printf '%s' "$routes" | grep -c . || true)
present=$(ip route show proto 84 | grep -c . || true)
answer=settled
if [ "$(cat $file 2>/dev/null)" != "$routes" ] || [ "$wanted" != "$present" ]; then
  mkdir -p ${file%/*} ${unit%/*}/multi-user.target.wants
  printf '%s\n' "$routes" > $file
  cat > $unit <<'UNIT'
[Unit]
Description=Ranges of the lab's clusters stay in the lab
Before=containerd.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'exec ip -batch /etc/tenantry-gpu/routes'
[Install]
WantedBy=multi-user.target
UNIT
  ln -sf $unit ${unit%/*}/multi-user.target.wants/
  ip route flush proto 84
  ip -batch $file
  answer=routed
fi
while command -v ctr >/dev/null && ! ctr version >/dev/null 2>&1; do
  tries=$((tries - 1))
  if [ $tries -le 0 ]; then
    echo silent
    systemctl is-system-running || true
    systemctl --no-pager --full status containerd | head -4 || true
    journalctl --no-pager --unit containerd --lines 20 --output cat || true
    exit 0
  fi
  sleep 0.2
done
echo $answer
"""


@dataclass(frozen=True)
class Wanted:
    """A container that has to run: how to make it, and how to know that it works."""

    name: str
    address: str
    image: str
    options: tuple[str, ...]
    volume: str = ""


@dataclass
class Outcome:
    """What was done, by the names of the containers; appended to from several threads."""

    created: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    routed: list[str] = field(default_factory=list)
    tuned: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def to_result(self) -> dict[str, Any]:
        lists = {name: sorted(names) for name, names in vars(self).items()}
        return {"changed": any(lists.values()), **lists}


def route_batch(service_cidrs: Iterable[str], pod_cidrs: Iterable[str]) -> str:
    """Lines for ``ip -batch`` that keep the ranges inside a host.

    A service range gets a route on the link: a local connection needs some route before kube-proxy's redirection,
    and an address that stays unredirected finds no neighbour. An unreachable route would refuse both.
    """
    tail = f"proto {ROUTE_PROTOCOL} metric 4096"
    lines = [f"route replace {cidr} dev eth0 scope link {tail}" for cidr in sorted(set(service_cidrs))]
    lines += [f"route replace unreachable {cidr} {tail}" for cidr in sorted(set(pod_cidrs) - set(service_cidrs))]
    return "\n".join(lines)


def mac_address(address: str) -> str:
    """The same hardware address at every start, or neighbours look for a restarted host at its old one for 30 s."""
    return ":".join(f"{byte:02x}" for byte in (0x02, 0x42, *ipaddress.IPv4Address(address).packed))


def other_version(containers: Iterable[Container], lab_name: str, version: str) -> str | None:
    """A sentence if containers of another version of the lab stand."""
    others = sorted({one.version or "unknown" for one in containers if one.version != version})
    if not others:
        return None
    return (
        f"The lab {lab_name} stands in version {', '.join(others)}, and this is version {version}; "
        f"remove it with make destroy (playbooks/teardown.yml), then run this again."
    )


def other_address(containers: Iterable[Container], wanted: Iterable[Wanted]) -> str | None:
    """A sentence if a running host has another address than the inventory gives it."""
    addresses = {one.name: one.address for one in containers if one.running and one.address}
    moved = [one for one in wanted if addresses.get(one.name, one.address) != one.address]
    if not moved:
        return None
    first = moved[0]
    return (
        f"The container {first.name} has address {addresses[first.name]} and the inventory gives it {first.address}; "
        f"undo the change in the inventory, or remove the lab with make destroy."
    )


class Lab:
    """The containers of one lab; raises EngineError."""

    def __init__(self, parameters: dict[str, Any], check_mode: bool) -> None:
        self.parameters = parameters
        self.check_mode = check_mode
        self.name: str = parameters["lab_name"]
        self.engine = Engine(parameters["engine"], self.name, parameters["version"] or "")
        self.outcome = Outcome()

    # -- what has to be there ------------------------------------------------------------------------------------

    def host(self, name: str, address: str, image: str | None) -> Wanted:
        """A host of the lab: what systemd, containerd and a kubelet need."""
        container, volume = f"{self.name}-{name}", f"{self.name}-{name}-containerd"
        modules = ("--volume=/lib/modules:/lib/modules:ro",) if os.path.isdir("/lib/modules") else ()
        registry = self.parameters["registry"]
        mirror = (f"--env=TENANTRY_REGISTRY={registry['address']}:{REGISTRY_PORT}",) if registry else ()
        options = (
            f"--hostname={name}",
            "--privileged",
            "--cgroupns=private",
            "--tmpfs=/run",
            "--tmpfs=/tmp",
            f"--volume={volume}:/var/lib/containerd",
            *SYSTEMD_OPTIONS[self.parameters["engine"]],
            *modules,
            *mirror,
        )
        return Wanted(container, address, image or self.parameters["image"], options, volume)

    def registry(self) -> Wanted | None:
        """The lab's registry; its storage belongs to the machine's cache and outlives it."""
        registry = self.parameters["registry"]
        if not registry:
            return None
        options = (f"--volume={registry['storage']}:/var/lib/registry", "--security-opt=label=disable")
        return Wanted(f"{self.name}-registry", registry["address"], registry["image"], options)

    # -- present -------------------------------------------------------------------------------------------------

    def present(self) -> None:
        """Make, start or keep everything, and wait until it answers."""
        registry = self.registry()
        hosts = [self.host(host["name"], host["address"], host.get("image")) for host in self.parameters["hosts"]]
        wanted = ([registry] if registry else []) + hosts
        if not all(one.image for one in wanted):
            raise EngineError("image: hosts without an image of their own need it; give it.")
        found = self.engine.containers()
        for sentence in (
            other_version(found.values(), self.name, self.parameters["version"]),
            other_address(found.values(), wanted),
        ):
            if sentence:
                raise EngineError(sentence)
        if self.check_mode:
            self.foresee(wanted, found)
            return
        self.ensure_inotify()
        self.ensure_network(bool(found))
        if registry:
            os.makedirs(self.parameters["registry"]["storage"], exist_ok=True)
        with ThreadPoolExecutor(max_workers=16) as pool:
            jobs = [pool.submit(self.ensure, one, found.get(one.name), self.settle) for one in hosts]
            if registry:
                jobs.append(pool.submit(self.ensure, registry, found.get(registry.name), self.await_registry))
            errors = [str(error) for error in (job.exception() for job in jobs) if error]
        if errors:
            raise EngineError("; ".join(errors))

    def foresee(self, wanted: Iterable[Wanted], found: dict[str, Container]) -> None:
        """Say what would be made or started."""
        for one in wanted:
            if one.name not in found:
                self.outcome.created.append(one.name)
            elif not found[one.name].running:
                self.outcome.started.append(one.name)

    def ensure_inotify(self) -> None:
        """Let this machine's kernel give out enough inotify instances, until its next start."""
        try:
            with open(INOTIFY_INSTANCES, "r+", encoding="ascii") as stream:
                if int(stream.read()) < INOTIFY_WANTED:
                    stream.seek(0)
                    stream.write(f"{INOTIFY_WANTED}\n")
                    self.outcome.tuned.append("fs.inotify.max_user_instances")
        except OSError:
            return  # not root's to change here; a host that starves says so

    def ensure_network(self, inhabited: bool) -> None:
        """Make the lab's network; one without containers is made anew, since a crash leaves leases in it."""
        subnet = self.parameters["subnet"]
        network = self.engine.network(self.name)
        if network and network.lab != self.name:
            raise EngineError(
                f"{self.engine.program} has a network {self.name} that is no lab's; give lab_name another value."
            )
        if network and inhabited and network.subnets == (subnet,):
            return
        if network and inhabited:
            raise EngineError(
                f"The lab {self.name} stands in the network {', '.join(network.subnets)} and lab_subnet is {subnet}; "
                f"undo the change, or remove the lab with make destroy."
            )
        if network:
            self.engine.call("network", "rm", self.name)
        shutil.rmtree(os.path.join(CNI_LEASES, self.name), ignore_errors=True)
        gateway = ipaddress.ip_network(subnet)[1]
        if not inhabited:
            remove_stale_bridge(str(gateway))
        self.engine.call(
            *("network", "create", f"--subnet={subnet}", f"--gateway={gateway}", *self.engine.labels, self.name)
        )

    def ensure(self, wanted: Wanted, found: Container | None, works: Callable[[Wanted], None]) -> None:
        """Bring one container to work: keep it, start it, or make it anew where nothing else helps."""
        if found is None or not self.revive(wanted, found):
            self.progress(f"{wanted.name}: starting")
            self.create(wanted)
            (self.outcome.replaced if found else self.outcome.created).append(wanted.name)
        works(wanted)
        self.progress(f"{wanted.name}: ready")

    def revive(self, wanted: Wanted, found: Container) -> bool:
        """Start what has stopped, also what only its record says is running; false where that does not help."""
        if found.running:
            if self.alive(wanted.name):
                return True
            self.engine.succeeds("stop", "--time=0", wanted.name)
        if not self.engine.succeeds("start", wanted.name) or not self.alive(wanted.name):
            return False
        self.outcome.started.append(wanted.name)
        return True

    def alive(self, name: str) -> bool:
        """Whether a container's first process lives, whatever the engine's record says."""
        try:
            pid = int(self.engine.call("inspect", "--type=container", "--format={{.State.Pid}}", name))
        except (EngineError, ValueError):
            return False
        return pid > 0 and os.path.exists(f"/proc/{pid}")

    def create(self, wanted: Wanted) -> None:
        """Make a container, after removing whatever an interrupted run left of it."""
        self.engine.remove_containers([wanted.name])
        if wanted.volume:
            self.engine.succeeds("volume", "rm", "--force", wanted.volume)
            self.engine.call("volume", "create", *self.engine.labels, wanted.volume)
        command = (
            *("run", "--detach", "--pull=never", f"--name={wanted.name}"),
            *(f"--network={self.name}", f"--ip={wanted.address}", f"--mac-address={mac_address(wanted.address)}"),
            *(*self.engine.labels, *wanted.options, wanted.image),
        )
        try:
            self.engine.call(*command)
        except EngineError:
            # A lease or a half-made container of a run that was killed; the second error is the true one.
            self.engine.remove_containers([wanted.name])
            lease = os.path.join(CNI_LEASES, self.name, wanted.address)
            if os.path.exists(lease):
                os.unlink(lease)
            self.engine.call(*command)

    def settle(self, wanted: Wanted) -> None:
        """Set a host's routes and wait until its containerd answers."""
        routes = route_batch(self.parameters["service_cidrs"], self.parameters["pod_cidrs"])
        timeout_s = self.parameters["timeout_s"]
        arguments = ("exec", wanted.name, "sh", "-c", SETTLE, "settle", routes, str(timeout_s * 5))
        try:
            answer = self.engine.call(*arguments, timeout_s=timeout_s * 2 + 10).strip()
        except EngineError as error:
            raise EngineError(f"{wanted.name}: {error}; last seen: {self.last_seen(wanted.name)}") from error
        verdict, seen = (answer + "\n").split("\n", 1)
        if verdict == SILENT:
            raise EngineError(f"{wanted.name}: containerd gave no answer within {timeout_s} s; last seen: {seen}")
        done = self.outcome
        if verdict == ROUTED and wanted.name not in done.created + done.replaced + done.started:
            done.routed.append(wanted.name)

    def await_registry(self, wanted: Wanted) -> None:
        """Wait until the registry answers."""
        deadline = time.monotonic() + self.parameters["timeout_s"]
        while True:
            connection = http.client.HTTPConnection(wanted.address, REGISTRY_PORT, timeout=2)
            try:
                connection.request("GET", "/v2/")
                status = connection.getresponse().status
                seen = f"HTTP status {status}"
                if status == http.client.OK:
                    return
            except (OSError, http.client.HTTPException) as error:
                seen = str(error)
            finally:
                connection.close()
            if time.monotonic() > deadline:
                seen += f", {self.last_seen(wanted.name)}"
                raise EngineError(f"{wanted.name} gave no answer at {wanted.address}; last seen: {seen}")
            time.sleep(0.1)

    def last_seen(self, name: str) -> str:
        """How a container stands, and the end of what it printed."""
        try:
            template = "{{.State.Status}}, exit status {{.State.ExitCode}}"
            state = self.engine.call("inspect", "--type=container", f"--format={template}", name)
            return f"{state.strip()}; {self.engine.call('logs', '--tail=10', name).strip()}"
        except EngineError as error:
            return str(error)

    def progress(self, line: str) -> None:
        """Append a line to the progress file."""
        if self.parameters["progress_file"]:
            with open(self.parameters["progress_file"], "a", encoding="utf-8") as stream:
                stream.write(f"{line}\n")

    # -- absent --------------------------------------------------------------------------------------------------

    def absent(self) -> None:
        """Remove what carries the lab's label, and what its hosts' names find without one."""
        containers = sorted(self.engine.containers())
        volumes, networks = self.engine.labelled("volume"), self.engine.labelled("network")
        images = self.engine.images(self.parameters["image_prefix"])
        self.outcome.removed += containers + volumes + networks
        if self.check_mode:
            return
        unlabelled = [f"{self.name}-{host['name']}" for host in self.parameters["hosts"]]
        self.engine.remove_containers(sorted({*containers, *unlabelled, f"{self.name}-registry"}))
        for kind, names in (("volume", volumes), ("network", networks)):
            if names:
                self.engine.call(kind, "rm", *names)
        shutil.rmtree(os.path.join(CNI_LEASES, self.name), ignore_errors=True)
        if self.parameters["subnet"]:
            remove_stale_bridge(str(ipaddress.ip_network(self.parameters["subnet"])[1]))
        self.outcome.removed += [image for image in images if self.engine.succeeds("rmi", image)]


def main() -> None:
    host = {"name": {"type": "str", "required": True}, "address": {"type": "str"}, "image": {"type": "str"}}
    registry = {
        "image": {"type": "str", "required": True},
        "address": {"type": "str", "required": True},
        "storage": {"type": "path", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "lab_name": {"type": "str", "required": True},
            "engine": {"type": "str", "choices": list(ENGINES), "required": True},
            "version": {"type": "str"},
            "subnet": {"type": "str"},
            "image": {"type": "str"},
            "hosts": {"type": "list", "elements": "dict", "default": [], "options": host},
            "registry": {"type": "dict", "options": registry},
            "service_cidrs": {"type": "list", "elements": "str", "default": []},
            "pod_cidrs": {"type": "list", "elements": "str", "default": []},
            "timeout_s": {"type": "int", "default": 60},
            "image_prefix": {"type": "str"},
            "progress_file": {"type": "path"},
        },
        required_if=[("state", "present", ("version", "subnet"))],
        supports_check_mode=True,
    )
    lab = Lab(module.params, module.check_mode)
    try:
        if module.params["state"] == "present":
            lab.present()
        else:
            lab.absent()
    except EngineError as error:
        module.fail_json(msg=str(error), **lab.outcome.to_result())
    for name in lab.outcome.replaced:
        module.warn(f"{name} could not be started and was made anew; what ran in it is set up again.")
    module.exit_json(**lab.outcome.to_result())


if __name__ == "__main__":
    main()
