# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What stands against a production install, judged over all hosts at once from what each said of itself.

Pure functions. A finding is an error, which ends the run before anything is changed, or a warning. A host that already
belongs to the inventory's cluster has what our own roles put there: its ports, routes and files are no findings.
"""

from __future__ import annotations

import ipaddress
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ._host_facts import Dial, Facts, UrlAnswer
from ._inventory import minor_of
from ._nvidia import DriverError, choose_kernel_modules
from ._site import MANAGEMENT, NODE_PORTS, OVERLAYS, VIRTUAL_ADDRESS, WORKER, Host, Site

ERROR, WARNING = "error", "warning"
CONTROLLER = "controller"
# Answers to a dial that show that the way is open.
OPEN = ("open", "refused")
WAY_REMEDY = "open the way between them"
# Device of a route in /proc/net/route that rejects (unreachable, prohibit).
NOWHERE = "*"

# ID of os-release(5), and the versions (of the RHEL family the major ones) that the roles know.
SYSTEMS: Mapping[str, tuple[str, Sequence[str]]] = {
    "debian": ("Debian", ("12", "13")),
    "ubuntu": ("Ubuntu", ("22.04", "24.04")),
    "rhel": ("RHEL", ("9", "10")),
    "rocky": ("Rocky Linux", ("9", "10")),
}
ARCHITECTURES = ("x86_64", "aarch64")
# kube-proxy's mode nftables (KEP-3866).
KERNEL_OLDEST = (5, 13)
# Kubernetes 1.35 and newer: KubeletConfiguration's failCgroupV1 is true where it is not set.
CGROUP_V1_REFUSED = (1, 35)
# kubeadm's checks NumCPU and Mem of a control plane (cmd/kubeadm/app/constants, ControlPlaneNumCPU and -Mem).
CONTROL_PLANE_CORES, CONTROL_PLANE_MEMORY_MIB = 2, 1700
# The module starts a little after its task; on a busy controller, a good deal.
CLOCK_BEHIND_S, CLOCK_AHEAD_S = 5.0, 60.0

# Listeners that our roles bring, by kind of host. 10248 to 10259 are kubelet's, kube-proxy's and the control plane's.
PORTS: Mapping[str, Sequence[int]] = {
    MANAGEMENT: (6443, 2379, 2380, 7946, 10248, 10249, 10250, 10256, 10257, 10259),
    WORKER: (10248, 10249, 10250, 10256),
}
# The kubelet removes images, then pods, below these shares of a file system (its defaults of evictionHard).
EVICTION_PERCENT = 15
GENERIC_WORDS = {"nvidia", "tesla", "geforce", "quadro", "corporation", "pcie", "nvl", "server", "edition"}


@dataclass(frozen=True)
class Finding:
    """What is wrong, on which host, and what to do. ``check`` is its stable name in docs/reference/preflight.md."""

    severity: str
    host: str
    check: str
    finding: str
    remedy: str


# The judgement.


def judge(site: Site) -> list[Finding]:
    """Every finding, errors first, hosts in the inventory's order."""
    found: list[Finding] = []
    for host in site.hosts:
        if host.facts is None:
            found += [_no_facts(host)] if host.asked else []
            continue
        for check in CHECKS:
            found += [replace(finding, host=host.name) for finding in check(host, host.facts, site)]
    found += duplicates(site.hosts)
    found += controller(site)
    return sorted(found, key=lambda finding: finding.severity)


def _error(check: str, finding: str, remedy: str) -> Finding:
    return Finding(ERROR, "", check, finding, remedy)


def _warning(check: str, finding: str, remedy: str) -> Finding:
    return Finding(WARNING, "", check, finding, remedy)


def _no_facts(host: Host) -> Finding:
    trouble = " ".join(host.trouble.split()) or "it gave no answer"
    if not host.unreachable:
        return Finding(
            ERROR,
            host.name,
            "facts",
            f"could not be looked at: {trouble}",
            "see that it runs and has Python 3.9 or newer",
        )
    # Without all management hosts nobody can say what their cluster is; a worker can come later.
    severity = ERROR if host.kind == MANAGEMENT else WARNING
    going_on = "" if host.kind == MANAGEMENT else "; the others go on without it"
    return Finding(
        severity,
        host.name,
        "unreachable",
        f"cannot be reached: {trouble}",
        f"see that it runs, and that ansible_host, ansible_user and its key are right{going_on}",
    )


def check_root(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """What only root may read was not read."""
    if not facts.root:
        yield _error("root", "was looked at by a user who is not root", "give ansible_become: true")


def check_system(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Distribution, architecture and kernel that the roles do not know."""
    _title, versions = SYSTEMS.get(facts.system.id, ("", ()))
    version = facts.system.version
    major = version if facts.system.id == "ubuntu" else version.partition(".")[0]
    if major not in versions:
        known = "; ".join(f"{title} {', '.join(each)}" for title, each in SYSTEMS.values())
        found = facts.system.name or f"{facts.system.id or 'unknown system'} {version}".strip()
        yield _error("system", f"{found} is not in the matrix", f"install one of {known}")
    if facts.system.architecture not in ARCHITECTURES:
        yield _error(
            "architecture",
            f"its architecture is {facts.system.architecture}",
            f"take a host of {' or '.join(ARCHITECTURES)}",
        )
    release = re.match(r"(\d+)\.(\d+)", facts.system.kernel)
    if release and (int(release[1]), int(release[2])) < KERNEL_OLDEST:
        yield _error(
            "kernel",
            f"kernel {facts.system.kernel} is older than {KERNEL_OLDEST[0]}.{KERNEL_OLDEST[1]}, which kube-proxy's "
            "nftables mode needs",
            "start the distribution's newest kernel",
        )
    elif not facts.system.kernel_modules and not facts.system.container:
        yield _error(
            "kernel-modules",
            f"the modules of its running kernel {facts.system.kernel} are gone, as after an update of the kernel",
            "reboot it",
        )


def check_cgroup(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Control groups of version 1, which a newer kubelet refuses."""
    cluster = site.cluster_of(host)
    minor = minor_of(cluster.kubernetes_version)
    variable = (
        "management_cluster_kubelet_configuration"
        if host.kind == MANAGEMENT
        else "tenant_control_plane_kubelet_patches"
    )
    if facts.system.cgroup == 1 and minor and minor >= CGROUP_V1_REFUSED and not cluster.cgroup_v1_allowed:
        yield _error(
            "cgroup",
            f"it has cgroup v1, and kubelet {cluster.kubernetes_version} refuses that",
            f"boot it with systemd.unified_cgroup_hierarchy=1, or set failCgroupV1: false in {variable}",
        )


def check_swap(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Swap that nobody will end, and with which the kubelet does not start."""
    if facts.system.swap and host.swap != "disable" and not site.cluster_of(host).swap_allowed:
        yield _error(
            "swap",
            f"it swaps to {', '.join(facts.system.swap)}, and its kubelet does not start with that",
            "set node_swap: disable",
        )


def check_clock(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """A clock that certificates of other hosts are not yet, or no longer, valid for."""
    ahead = facts.clock.ahead_s
    if not -CLOCK_BEHIND_S <= ahead <= CLOCK_AHEAD_S:
        side = "ahead of" if ahead > 0 else "behind"
        yield _error(
            "clock", f"its clock is {abs(ahead):.0f} s {side} the controller's", "set it, and keep it with NTP"
        )
    elif not facts.clock.synchronised:
        yield _warning("time-sync", "nothing keeps its clock", "start systemd-timesyncd or chrony on it")


def check_size(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Cores and memory below kubeadm's floor for a control plane."""
    if host.kind != MANAGEMENT:
        return
    if facts.system.cores < CONTROL_PLANE_CORES and "NumCPU" not in host.ignored:
        yield _error(
            "cores",
            f"it has {facts.system.cores} core, and a control plane needs {CONTROL_PLANE_CORES}",
            "take a larger host",
        )
    if facts.system.memory_mib < CONTROL_PLANE_MEMORY_MIB and "Mem" not in host.ignored:
        yield _error(
            "memory",
            f"it has {facts.system.memory_mib} MiB of memory, and a control plane needs {CONTROL_PLANE_MEMORY_MIB} MiB",
            "take a larger host",
        )


def check_address(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """An address in the inventory that the host does not have."""
    addresses = [each for each in facts.identity.addresses if not each.startswith("127.")]
    if host.own_address and addresses and host.own_address not in addresses:
        yield _error(
            "address",
            f"management_cluster_address {host.own_address} is none of its addresses",
            f"give one of {', '.join(addresses)}",
        )


def check_ports(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Ports that another program holds."""
    if not site.joined(host):
        ports = {*PORTS[host.kind], *((site.cluster_of(host).api_port,) if host.kind == MANAGEMENT else ())}
        for listener in facts.listeners:
            # A run that was cut off may have left our own HAProxy behind.
            ours = listener.program == "haproxy" and listener.port not in PORTS[host.kind]
            if listener.protocol == "tcp" and listener.port in ports and not ours:
                program = listener.program or "a program"
                yield _error("port", f"port {listener.port} is taken by {program}", f"stop {program} or move its port")
            if listener.protocol == "udp" and listener.port in OVERLAYS.values():
                yield _warning(
                    "vxlan-port",
                    f"UDP port {listener.port} is taken by {listener.program or 'another VXLAN device'}",
                    "remove the other pod network (ip -details link show type vxlan)",
                )
    for listener in facts.listeners:
        if listener.protocol == "tcp" and NODE_PORTS[0] <= listener.port <= NODE_PORTS[1] and listener.program:
            yield _warning(
                "node-port",
                f"{listener.program} listens on {listener.port}, among the node ports {NODE_PORTS[0]}-{NODE_PORTS[1]}",
                f"move {listener.program} to another port",
            )
    first, last = facts.dynamic_ports
    if first <= NODE_PORTS[1]:
        yield _warning(
            "dynamic-ports",
            f"outgoing connections take ports {first}-{last}, and node ports are {NODE_PORTS[0]}-{NODE_PORTS[1]}",
            f"set net.ipv4.ip_local_port_range to {NODE_PORTS[1] + 1} {last}",
        )


def check_dials(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Ways that are shut. Nothing listens yet: a refusal shows that the way is open."""
    others = {other.name: other for other in site.hosts if other.facts or not other.asked}
    yield from _virtual_address(host, facts, site)
    shut = [dial for dial in facts.dials if dial.name in others and dial.answer not in OPEN]
    for place, dials in _by_place(shut).items():
        other = others[dials[0].name]
        if place.silent_datagrams:
            unknown = [dial for dial in dials if not _listens(other, dial.port)]
            if unknown:
                yield _warning(
                    "way-udp",
                    f"cannot tell whether it reaches {_told(unknown)}, nothing came back",
                    "let UDP and ICMP's port unreachable through between the hosts",
                )
            continue
        # A worker will dial its tenant's address, not the management host that stands for it here.
        severity = WARNING if host.kind == WORKER and other.kind == MANAGEMENT else ERROR
        yield Finding(severity, "", "way", f"does not reach {_told(dials)}: {place.reason}", WAY_REMEDY)


@dataclass(frozen=True)
class _Place:
    """What dials have in common that are told together."""

    name: str
    address: str
    protocol: str
    answer: str

    @property
    def silent_datagrams(self) -> bool:
        return self.protocol == "udp" and self.answer == "silent"

    @property
    def reason(self) -> str:
        return "no answer, as when a packet filter drops it" if self.answer == "silent" else self.answer


def _by_place(dials: Iterable[Dial]) -> dict[_Place, list[Dial]]:
    found: dict[_Place, list[Dial]] = defaultdict(list)
    for dial in dials:
        found[_Place(dial.name, dial.address, dial.protocol, dial.answer)].append(dial)
    return found


def _told(dials: Sequence[Dial]) -> str:
    """Where the dials of one place went."""
    ports: dict[str, list[str]] = defaultdict(list)
    for dial in dials:
        ports[dial.purpose].append(str(dial.port))
    told = ", ".join(f"{' and '.join(numbers)} ({purpose})" for purpose, numbers in ports.items())
    return f"{dials[0].name} ({dials[0].address}) on {dials[0].protocol.upper()} port {told}"


def _virtual_address(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """The address that keepalived or kube-vip will hold, held by a stranger; a load balancer's of the user's is not."""
    management = [other for other in site.hosts if other.kind == MANAGEMENT]
    ours = {address for other in management if other.facts for address in other.facts.identity.addresses}
    if not all(other.facts for other in management):
        return  # one that said nothing may have it
    for dial in facts.dials:
        answered = dial.name == VIRTUAL_ADDRESS and dial.answer in OPEN
        if answered and site.cluster_of(host).virtual_address_ours and dial.address not in ours:
            yield _error(
                "virtual-address",
                f"management_cluster_virtual_address {dial.address} answers, and no management host has it",
                "give a free address of the management hosts' network",
            )


def _listens(host: Host, port: int) -> bool:
    listeners = host.facts.listeners if host.facts else ()
    return any(listener.protocol == "udp" and listener.port == port for listener in listeners)


def check_disk(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Too little room, by file system: the needs of the folders on one add up."""
    needs = site.disk_gib.get(host.kind, {})
    for filesystem in facts.filesystems:
        need = sum(needs.get(path, 0) for path in filesystem.paths)
        free = filesystem.free_mib / 1024
        share = 100 * filesystem.free_mib / max(filesystem.size_mib, 1)
        if not site.joined(host):
            if free < need:
                yield _error(
                    "disk",
                    f"{filesystem.mount} has {free:.0f} GiB free, and {', '.join(filesystem.paths)} need {need:g} GiB",
                    "free some, or give them a larger file system",
                )
        elif share < EVICTION_PERCENT:
            yield _warning(
                "disk-eviction",
                f"{filesystem.mount} has {share:.0f} % free, and below {EVICTION_PERCENT} % the kubelet removes images",
                "free some, or give it a larger file system",
            )


def check_routes(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Ranges of the host's cluster that the host already reaches otherwise."""
    cluster = site.cluster_of(host)
    joined = site.joined(host)
    variable = f"{'management_cluster' if host.kind == MANAGEMENT else 'tenant_control_plane'}_{{}}_cidr"
    for kind, cidr in (("pod", cluster.pod_cidr), ("service", cluster.service_cidr)):
        network = _network(cidr)
        # A route to nowhere leads nobody astray: the cluster's own ones, which are narrower, go before it.
        for route in facts.routes if network else ():
            other = _network(route.range)
            if other is None or network is None or not network.overlaps(other) or route.device == NOWHERE:
                continue
            inside = other.subnet_of(network)
            # The cluster's own routes lie within its range.
            if joined and inside:
                continue
            told = f"{cluster.name}'s {kind} CIDR {cidr} overlaps its route {route.range} ({route.device})"
            if inside:
                yield _error("routes", told, f"give {variable.format(kind)} another range")
            else:
                yield _warning(
                    "wide-route",
                    told,
                    f"nothing if nobody has addresses of {cidr}, else give {variable.format(kind)} another range",
                )


def _network(cidr: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(cidr)
    except ValueError:
        return None  # inventory_preflight says it


def check_boot(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Secure Boot, which loads no module that nobody signed."""
    if not host.driver.built:
        return
    if facts.boot.secure_boot == "on" and not facts.boot.key_enrolled:
        yield _error(
            "secure-boot",
            "Secure Boot is on, and the driver's modules would be built on the host and signed by no enrolled key",
            "take Ubuntu's signed modules (nvidia_driver_source: ubuntu), enrol the key of DKMS (mokutil --import "
            "/var/lib/dkms/mok.pub), or turn Secure Boot off",
        )
    elif facts.boot.secure_boot == "unknown":
        yield _warning(
            "secure-boot-unknown",
            "the state of Secure Boot cannot be read",
            "mount efivarfs on /sys/firmware/efi/efivars",
        )


def check_gpu(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Cards against the inventory, what drives them, and other device plugins."""
    if host.gpu_backend != "nvidia":
        if facts.gpu.cards and host.gpu_backend == "none" and host.kind == WORKER:
            yield _warning(
                "cards-undeclared",
                f"it has {len(facts.gpu.cards)} NVIDIA cards, and gpu_backend is none",
                "set gpu_backend: nvidia and nvidia_cards to use them",
            )
        return
    yield from _cards(host, facts)
    yield from _drivers(host, facts)
    for plugin in facts.gpu.device_plugins:
        yield _error(
            "device-plugin",
            f"{plugin} runs on it, and HAMi's would serve the same cards",
            "remove it from its cluster",
        )


def _cards(host: Host, facts: Facts) -> Iterator[Finding]:
    declared = {str(card.get("model", "")): int(str(card.get("count", 0))) for card in host.cards}
    found = facts.gpu.cards
    if not declared:
        yield _error(
            "cards-not-declared",
            "nvidia_cards is not set",
            f"declare what it has: {_listed(facts) or 'no NVIDIA card was found'}",
        )
        return
    wanted = sum(declared.values())
    if len(found) != wanted:
        yield _error(
            "cards-count",
            f"it has {len(found)} NVIDIA cards, and nvidia_cards says {wanted}"
            + (f" (found {_listed(facts)})" if found else ""),
            "correct nvidia_cards, or see why the PCI bus does not show them",
        )
    names = list(facts.gpu.models) or [card.name for card in found if card.name]
    if names and len(found) == wanted:
        for model, count in declared.items():
            matching = sum(same_model(model, name) for name in names)
            if matching == count:
                continue
            told = f"nvidia_cards says {count} of {model}, and {matching} of that were found among {_listed(facts)}"
            if facts.gpu.models:
                yield _error("cards-model", told, "correct nvidia_cards")
            else:
                # pci.ids has names of its own: the H100 NVL is GH100 [H100L 94GB], and mere GH100 in Debian 12.
                yield _warning("cards-model", told, "nothing if pci.ids means the same, else correct nvidia_cards")
    for card in found:
        if card.driver == "vfio-pci":
            yield _error(
                "cards-passed-on",
                f"card {card.address} is held by vfio-pci, for virtual machines",
                "take it out of vfio-pci's configuration and reboot",
            )


def _listed(facts: Facts) -> str:
    names = list(facts.gpu.models) or [card.name or f"device {card.device}" for card in facts.gpu.cards]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def same_model(declared: str, found: str) -> bool:
    """Whether nvidia-smi's name of a card and another name of it, such as that of pci.ids, can mean the same.

    They write a model differently ("NVIDIA H100 80GB HBM3", "GH100 [H100 SXM5 80GB]"); the designation is in both.
    """
    if declared == found:
        return True
    words = _words(declared)
    return bool(words) and words <= _words(found)


def _words(name: str) -> set[str]:
    words = re.findall(r"[a-z0-9]+", name.lower())
    return {
        word for word in words if word not in GENERIC_WORDS and not re.fullmatch(r"(\d+gb|hbm\d.*|sxm\d*|pg\d+)", word)
    }


def _drivers(host: Host, facts: Facts) -> Iterator[Finding]:
    gpu, driver = facts.gpu, host.driver
    loaded = gpu.driver.partition(".")[0]
    if gpu.nouveau:
        if driver.installed and driver.reboot_allowed:
            yield _warning("nouveau", "nouveau drives its cards", "nothing: role nvidia_driver blocks it and reboots")
        else:
            yield _error(
                "nouveau",
                "nouveau drives its cards, and only a reboot ends that",
                "set node_reboot_allowed: true, or blacklist nouveau and reboot it yourself",
            )
    if driver.installed and driver.branch:
        yield from _driver_of_cards(host, facts)
    if driver.source == "preinstalled" and not gpu.driver:
        yield _error(
            "driver-missing",
            "no NVIDIA driver is loaded, and nvidia_driver_source is preinstalled",
            "install one, or let role nvidia_driver do it",
        )
    if driver.installed and gpu.runfile:
        yield _error(
            "driver-runfile",
            "its driver was installed by NVIDIA's .run file, which packages cannot replace",
            "run nvidia-uninstall, or set nvidia_driver_source: preinstalled",
        )
    elif driver.installed and loaded and driver.branch and loaded != driver.branch:
        yield _warning(
            "driver-branch",
            f"driver {gpu.driver} is loaded, and the matrix has branch {driver.branch}",
            "nvidia_driver_drain_confirm: true lets role nvidia_driver drain the worker and replace it",
        )


def _driver_of_cards(host: Host, facts: Facts) -> Iterator[Finding]:
    """Cards that the branch or the wanted kernel modules do not drive, as role nvidia_driver would refuse them."""
    devices = [card.device.removeprefix("0x") for card in facts.gpu.cards]
    try:
        choose_kernel_modules(devices, host.driver.branch, host.driver.kernel_modules)
    except DriverError as error:
        found, _semicolon, remedy = str(error).partition("; ")
        yield _error("driver-cards", found, remedy.rstrip("."))


def check_runtime(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Other container runtimes, and a configuration of containerd that is not ours."""
    for name in facts.runtime.others:
        yield _warning(
            "runtime",
            f"{name} is installed, which brings a containerd or a network of its own",
            f"remove {name}",
        )
    if facts.runtime.containerd_configuration == "other" and not site.joined(host):
        yield _warning(
            "containerd",
            "/etc/containerd/config.toml is not ours, and role node replaces it and keeps it beside as .orig",
            "put what you need of it into a file of your own in /etc/containerd/conf.d",
        )


def check_membership(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """A host that belongs to another cluster. It is never reset here."""
    for name in facts.distributions:
        yield _error("distribution", f"{name} is installed on it", f"remove {name}, or take another host")
    member = facts.membership
    if member is None or site.belongs(host):
        return
    cluster = site.cluster_of(host)
    where = f"the cluster at {member.server}" if member.server else "a cluster (its kubelet.conf names no server)"
    if member.control_plane and host.kind == WORKER:
        yield _error("membership", f"it runs a control plane, of {where}", "take another host, or kubeadm reset it")
    elif host.kind == MANAGEMENT and not member.control_plane:
        yield _error("membership", f"it belongs to {where}, as a worker", "take another host, or kubeadm reset it")
    elif cluster.servers:
        wanted = f"{cluster.name}'s is {', '.join(cluster.servers)}"
        reason = "its certificate authority is another" if member.server in cluster.servers else wanted
        severity = WARNING if host.reset_confirmed else ERROR
        remedy = (
            "nothing, if all that runs on it may be lost: tenant_worker_reset_confirm is set"
            if host.reset_confirmed
            else "take it out of that cluster first; it is not reset by itself"
        )
        yield Finding(severity, "", "membership", f"it belongs to {where}, and {reason}", remedy)
    else:
        yield _warning(
            "membership-unknown",
            f"it belongs to {where}, and the controller has no kubeconfig of {cluster.name} to compare that with",
            "nothing if that is right: stage 5 compares again and refuses another cluster",
        )


def check_kubelet_version(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """A kubelet that would be newer than its API server, which Kubernetes' version skew policy forbids."""
    member = facts.membership
    if member is None or not site.joined(host):
        return
    server, kubelet = minor_of(member.version), minor_of(host.kubernetes_version)
    if server and kubelet and kubelet > server:
        first = (
            "upgrade the management cluster by kubeadm"
            if host.kind == MANAGEMENT
            else "run playbooks/stages/4_tenants.yml, which upgrades the tenant's API server,"
        )
        yield _error(
            "kubelet-version",
            f"its kubelet would become {host.kubernetes_version}, and the API server of {host.cluster} has "
            f"{member.version}",
            f"{first} first, or give node_kubernetes_version a {server[0]}.{server[1]}",
        )


def check_urls(host: Host, facts: Facts, site: Site) -> Iterator[Finding]:
    """Repositories, registries and mirrors that do not answer."""
    return _urls(facts.urls)


def _urls(answers: Iterable[UrlAnswer]) -> Iterator[Finding]:
    for answer in answers:
        # A registry that wants a token says 401 (OCI distribution specification, end-1), and many repositories list
        # no folder. 407 is a proxy's.
        registry = answer.url.endswith("/v2/")
        reached = 0 < answer.status < 500 and answer.status != 407
        if reached and not (registry and answer.status == 404):
            continue
        reason = f"{answer.status} {answer.reason}".strip() if answer.status else answer.reason
        yield _error(
            "url",
            f"{answer.url} gives it {reason}",
            "let it through or set its proxy, correct the address, or name a mirror",
        )


Check = Callable[[Host, Facts, Site], Iterator[Finding]]
CHECKS: Sequence[Check] = (
    check_root,
    check_system,
    check_cgroup,
    check_swap,
    check_clock,
    check_size,
    check_address,
    check_ports,
    check_dials,
    check_disk,
    check_routes,
    check_boot,
    check_gpu,
    check_runtime,
    check_membership,
    check_kubelet_version,
    check_urls,
)


def duplicates(hosts: Iterable[Host]) -> list[Finding]:
    """Names and numbers that two hosts share, as clones of one disk do."""
    found = []
    remedies = {
        "hostname": ("host name", "give every host a name of its own (hostnamectl set-hostname)"),
        "machine_id": ("machine ID", "remove /etc/machine-id there and run systemd-machine-id-setup"),
        "product_uuid": ("product UUID", "give the machine another in its firmware or hypervisor"),
        "mac": ("MAC address", "give its network card an address of its own"),
    }
    known = [(host, host.facts) for host in hosts if host.facts]
    for key, (title, remedy) in remedies.items():
        owners: dict[str, list[str]] = defaultdict(list)
        for host, facts in known:
            value = getattr(facts.identity, key)
            # A container shows its machine's.
            if value and not (key == "product_uuid" and facts.system.container):
                owners[value].append(host.name)
        for value, names in owners.items():
            found += [
                Finding(ERROR, name, key.replace("_", "-"), f"its {title} {value} is also that of {names[0]}", remedy)
                for name in names[1:]
            ]
    return found


def controller(site: Site) -> list[Finding]:
    """What the controller itself does not reach."""
    silent = {host.name for host in site.hosts if host.asked and not host.facts}
    shut = [dial for dial in site.controller_dials if dial.name not in silent and dial.answer not in OPEN]
    found = [
        _error("way", f"does not reach {_told(dials)}: {place.reason}", WAY_REMEDY)
        for place, dials in _by_place(shut).items()
    ]
    return [replace(finding, host=CONTROLLER) for finding in (*found, *_urls(site.controller_urls))]


# The table.


def heading(findings: Sequence[Finding]) -> str:
    """How many there are, in words."""
    errors = sum(finding.severity == ERROR for finding in findings)
    warnings = len(findings) - errors
    parts = [f"{errors} error{'s' * (errors != 1)}"] if errors else []
    parts += [f"{warnings} warning{'s' * (warnings != 1)}"] if warnings else []
    return " and ".join(parts) or "no finding"


def table_of(findings: Sequence[Finding], width: int = 48) -> str:
    """A table for people. Hosts with the same finding share a row; a long cell goes on in the next line."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for finding in findings:
        rows.setdefault((finding.severity, finding.finding, finding.remedy), []).append(finding.host)
    cells = [("severity", "host", "finding", "remedy")]
    cells += [(severity, ", ".join(hosts), found, remedy) for (severity, found, remedy), hosts in rows.items()]
    limits = (8, 24, width, width)
    wrapped = [
        [textwrap.wrap(cell, limit, break_long_words=False, break_on_hyphens=False) for cell, limit in zip(row, limits)]
        for row in cells
    ]
    widths = [max(len(line) for row in wrapped for line in row[column]) for column in range(4)]
    lines = []
    for number, row in enumerate(wrapped):
        height = max(len(cell) for cell in row)
        for index in range(height):
            parts = [cell[index] if index < len(cell) else "" for cell in row]
            lines.append("  ".join(part.ljust(length) for part, length in zip(parts, widths)).rstrip())
        if number == 0:
            lines.append("  ".join("-" * length for length in widths))
    return "\n".join(lines)
