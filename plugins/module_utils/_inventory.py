# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What can be wrong with an inventory and with the machine of a lab, told before anything is changed.

Pure functions; each gives a list of findings. A finding is one sentence that says what is wrong, where,
and what to do.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from ._hami import HamiFormatError, cards_from_profiles

# RFC 1123, section 2.1, and RFC 1035, section 2.3.4, as Kubernetes checks the name of a namespace.
DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
VERSION = re.compile(r"v?(?P<major>\d+)\.(?P<minor>\d+)\.(?P<patch>\d+)")

# Kamaji 26.8.2-edge refuses a newer minor (internal/webhook/handlers/tcp_version.go, KubeadmVersion) and
# expects 1.33 or newer of its surroundings (docs/content/getting-started/kamaji-generic.md).
KUBERNETES_OLDEST = (1, 33)
KUBERNETES_NEWEST = (1, 36)
# containerd's RELEASES.md, "Kubernetes Support": the oldest version of each of its lines; newer lines go with all.
CONTAINERD_OLDEST: Mapping[tuple[int, int], Sequence[tuple[int, int, int]]] = {
    (1, 33): ((1, 7, 24), (2, 0, 4), (2, 1, 0)),
    (1, 34): ((1, 7, 24), (2, 0, 4), (2, 1, 0)),  # no row of its own was at hand
    (1, 35): ((1, 7, 28), (2, 1, 5)),
    (1, 36): ((2, 2, 0),),
}
# HAMi's README, "Prerequisites".
HAMI_DRIVER_OLDEST = 440
# The service nvidia-cdi-refresh, by which the list of cards stays true, came with it.
TOOLKIT_OLDEST = (1, 18)
# Kubernetes' version skew policy: a kubelet may be three minors older than its API server, and never newer.
KUBELET_SKEW = 3

GIB = 1024**3
# A machine sold with 4 GiB shows a little less.
MEMORY_TOLERANCE = 0.93

# The registry's container would have the name of this host's.
RESERVED_HOSTS = ("registry",)


@dataclass(frozen=True)
class Range:
    """A range of addresses: whose, for what, and the variable that sets it ("" where none does)."""

    owner: str
    purpose: str
    cidr: str
    variable: str = ""

    def network(self) -> ipaddress.IPv4Network:
        """The range as a network; raises ValueError where the text is none."""
        return ipaddress.IPv4Network(self.cidr)


@dataclass(frozen=True)
class Cluster:
    """The management cluster or a tenant's."""

    name: str
    kubernetes_version: str


@dataclass(frozen=True)
class Worker:
    """A worker, the tenant that it names, and its declared cards."""

    name: str
    tenant: str
    kubernetes_version: str = ""
    cards: Sequence[Mapping[str, object]] = field(default=())


def check_names(lab_name: str, groups: Mapping[str, Sequence[str]], existing: bool = False) -> list[str]:
    """Names that are no DNS label, that the lab needs itself, or that stand in two groups; no management host.

    ``existing`` says that the management cluster is there already, and no host of the inventory belongs to it.
    """
    named = [("lab_name", lab_name)] if lab_name else []
    named += [(f"group {group}", name) for group, names in groups.items() for name in names]
    findings = [
        f"{name}: the name ({where}) is no DNS label; give it at most 63 of a-z, 0-9 and -, "
        f"a letter or digit first and last."
        for where, name in named
        if not DNS_LABEL.fullmatch(name)
    ]
    counts = Counter(name for names in groups.values() for name in names)
    for name in (name for name, count in counts.items() if count > 1):
        where = " and ".join(group for group, names in groups.items() if name in names)
        findings.append(f"{name}: the name stands twice, in {where}; give every host a name of its own.")
    findings += [
        f"{name}: the lab's own container has this name; rename the host."
        for name in RESERVED_HOSTS
        if lab_name and name in counts
    ]
    if not groups.get("management") and not existing:
        findings.append("inventory: the group management has no host; add one.")
    return findings


def check_ranges(ranges: Sequence[Range]) -> list[str]:
    """Ranges that cannot be read, or overlap."""
    findings = []
    readable = []
    for one in ranges:
        try:
            readable.append((one, one.network()))
        except ValueError as error:
            findings.append(
                f"{one.owner}: {one.purpose} {one.cidr} is no IPv4 range ({error}); "
                f"give {one.variable} one like 10.32.0.0/16."
            )
    for (first, first_network), (second, second_network) in combinations(readable, 2):
        if first_network.overlaps(second_network):
            findings.append(_overlap(first, second))
    return findings


def _overlap(first: Range, second: Range) -> str:
    # The one that can be changed is the one to name; of two, the later.
    if not second.variable:
        first, second = second, first
    other = f"{first.owner}'s"
    if first.purpose != second.purpose:
        other += f" {first.purpose}"
    if first.cidr != second.cidr:
        other += f" {first.cidr}"
    return f"{second.owner}: {second.purpose} {second.cidr} overlaps {other}; give {second.variable} another range."


def check_host_routes(ranges: Iterable[Range], routes: Iterable[tuple[str, str]]) -> list[str]:
    """Ranges that overlap a route of this machine; a route is a range and a device, the default route is none."""
    findings = []
    networks = [(ipaddress.IPv4Network(destination), device) for destination, device in routes]
    for one in ranges:
        try:
            network = one.network()
        except ValueError:
            continue  # check_ranges says it
        findings += [
            f"{one.owner}: {one.purpose} {one.cidr} overlaps this machine's route {route} ({device}); "
            f"give {one.variable} another range."
            for route, device in networks
            if network.overlaps(route)
        ]
    return findings


def check_versions(clusters: Sequence[Cluster], workers: Sequence[Worker]) -> list[str]:
    """Kubernetes versions that Kamaji does not run, and kubelets too far from their API server."""
    findings = []
    minors: dict[str, tuple[int, int]] = {}
    allowed = f"{_text(KUBERNETES_OLDEST)} to {_text(KUBERNETES_NEWEST)}"
    for cluster in clusters:
        minor = minor_of(cluster.kubernetes_version)
        if minor is None:
            findings.append(_no_version(cluster.name, cluster.kubernetes_version))
        elif not KUBERNETES_OLDEST <= minor <= KUBERNETES_NEWEST:
            findings.append(
                f"{cluster.name}: Kubernetes {cluster.kubernetes_version} is outside the range that Kamaji runs, "
                f"{allowed}; give it a version of that range."
            )
        else:
            minors[cluster.name] = minor
    for worker in (worker for worker in workers if worker.kubernetes_version):
        kubelet = minor_of(worker.kubernetes_version)
        server = minors.get(worker.tenant)
        if kubelet is None:
            findings.append(_no_version(worker.name, worker.kubernetes_version))
        elif server and not (server[0], server[1] - KUBELET_SKEW) <= kubelet <= server:
            findings.append(
                f"{worker.name}: kubelet {worker.kubernetes_version} does not go with {worker.tenant}'s Kubernetes "
                f"{_text(server)}; give it {_text((server[0], server[1] - KUBELET_SKEW))} to {_text(server)}."
            )
    return findings


def check_matrix(versions: Mapping[str, str], kubernetes: Iterable[str]) -> list[str]:
    """Versions of the matrix that contradict each other; ``kubernetes`` are those that the clusters have."""
    findings = []
    containerd = versions.get("containerd", "")
    for minor in sorted({minor for minor in map(minor_of, kubernetes) if minor}):
        oldest = CONTAINERD_OLDEST.get(minor, ())
        if containerd and oldest and not _suits(containerd, oldest):
            allowed = " or ".join(".".join(map(str, each)) for each in oldest)
            findings.append(
                f"tenantry_versions: containerd {containerd} does not go with Kubernetes {_text(minor)}; "
                f"give {allowed}, or a newer one of that line or after it."
            )
    branch = versions.get("nvidia_driver_branch", "")
    if branch and (not branch.isdigit() or int(branch) < HAMI_DRIVER_OLDEST):
        findings.append(
            f"tenantry_versions: nvidia_driver_branch {branch} does not go with HAMi {versions.get('hami', '')}; "
            f"give a branch from {HAMI_DRIVER_OLDEST} on, such as 580."
        )
    toolkit = versions.get("nvidia_container_toolkit", "")
    if toolkit and (minor_of(toolkit) or (0, 0)) < TOOLKIT_OLDEST:
        findings.append(
            f"tenantry_versions: nvidia_container_toolkit {toolkit} does not keep the list of cards up to date; "
            f"give {_text(TOOLKIT_OLDEST)}.0 or newer."
        )
    return findings


def _suits(version: str, oldest: Sequence[tuple[int, int, int]]) -> bool:
    match = VERSION.fullmatch(version)
    if not match:
        return False
    found = (int(match["major"]), int(match["minor"]), int(match["patch"]))
    same_line = [floor for floor in oldest if floor[:2] == found[:2]]
    return found >= same_line[0] if same_line else found[:2] > oldest[-1][:2]


def check_control_planes(hosts: Sequence[str], addresses: Mapping[str, str] | None, virtual_address: str) -> list[str]:
    """A number of control planes that no majority can be had of, addresses that are missing or not shared.

    Without ``addresses`` nothing is known of them, and nothing said.
    """
    findings = []
    if hosts and len(hosts) not in (1, 3):
        findings.append(
            f"inventory: the group management has {len(hosts)} hosts; give it one or three, "
            f"because etcd with two members stops when either is lost."
        )
    findings += [
        f"{host}: management_cluster_address is not set; give the address under which its API server is reached."
        for host in hosts
        if addresses is not None and not addresses.get(host)
    ]
    if len(hosts) > 1 and not virtual_address:
        findings.append(
            "inventory: management_cluster_virtual_address is not set, and several control planes need an address that "
            "survives each of them; give a free address of their network."
        )
    return findings


@dataclass(frozen=True)
class Address:
    """An address of the inventory: whose it is, and the variable that sets it."""

    owner: str
    variable: str
    address: str


def check_addresses(addresses: Sequence[Address], pool: Sequence[str], ranges: Sequence[Range]) -> list[str]:
    """Addresses that are none, stand twice, or lie in a range of pods, of services, or of the load balancer's pool.

    ``pool`` are the load balancer's ranges, each a CIDR or two addresses with a dash. A tenant's address has to lie in
    it, any other must not.
    """
    findings = []
    owners: dict[ipaddress.IPv4Address, Address] = {}
    networks = [(one, network) for one in ranges for network in _networks(one.cidr)]
    pools = [network for text in pool for network in _networks(text)]
    findings += [
        f"load_balancer_addresses: {text} is no range; give a CIDR, or two addresses with a dash between."
        for text in pool
        if not _networks(text)
    ]
    findings += [
        f"load_balancer_addresses: {text} overlaps {one.owner}'s {one.purpose} {one.cidr}; give another range."
        for text in pool
        for one, other in networks
        if any(network.overlaps(other) for network in _networks(text))
    ]
    for one in addresses:
        try:
            address = ipaddress.IPv4Address(one.address)
        except ValueError:
            findings.append(f"{one.owner}: {one.variable} {one.address} is no IPv4 address; give one like 192.0.2.11.")
            continue
        if address in owners:
            findings.append(
                f"{one.owner}: {one.variable} {address} is also {owners[address].owner}'s; give each its own address."
            )
        owners.setdefault(address, one)
        findings += [
            f"{one.owner}: {one.variable} {address} lies in {other.owner}'s {other.purpose} {other.cidr}; "
            f"give {other.variable} another range."
            for other, network in networks
            if address in network
        ]
        pooled = any(address in network for network in pools)
        if one.variable == TENANT_ADDRESS and pools and not pooled:
            findings.append(
                f"{one.owner}: {one.variable} {address} is not in load_balancer_addresses; give one of those."
            )
        if one.variable != TENANT_ADDRESS and pooled:
            findings.append(
                f"{one.owner}: {one.variable} {address} lies in load_balancer_addresses, which tenants get; "
                f"give the pool a range without it."
            )
    return findings


TENANT_ADDRESS = "tenant_control_plane_address"


def _networks(text: str) -> list[ipaddress.IPv4Network]:
    """The networks of a CIDR, or of two addresses with a dash; none where it is neither."""
    first, dash, last = text.partition("-")
    try:
        if dash:
            ends = ipaddress.IPv4Address(first.strip()), ipaddress.IPv4Address(last.strip())
            return list(ipaddress.summarize_address_range(*ends))
        return [ipaddress.IPv4Network(text)]
    except ValueError:
        return []


def check_declared_cards(worker: str, gpu_backend: str, cards: Sequence[Mapping[str, object]]) -> list[str]:
    """Real cards that are not declared, or not as a model and a count."""
    example = 'give a list like [{model: "NVIDIA H100 80GB HBM3", count: 8}]'
    if gpu_backend == "nvidia" and not cards:
        return [f"{worker}: gpu_backend is nvidia and nvidia_cards is not set; {example}, or set gpu_backend: none."]
    return [
        f"{worker}: nvidia_cards has {dict(card)}, which is no model and count; {example}."
        for card in cards
        if not (card.get("model") and isinstance(card.get("count"), int) and card["count"])
    ]


def check_lab_versions(
    built: str, built_only: bool, clusters: Sequence[Cluster], workers: Iterable[Worker]
) -> list[str]:
    """Versions that a lab's components do not have.

    ``built`` is the Kubernetes of its hosts; ``built_only`` says that control planes have no other either, since no
    image comes from a registry.
    """
    findings = []
    for cluster in clusters if built_only else ():
        minor = minor_of(cluster.kubernetes_version)
        # Others are check_versions' findings.
        runs = minor is not None and KUBERNETES_OLDEST <= minor <= KUBERNETES_NEWEST
        if runs and cluster.kubernetes_version.lstrip("v") != built:
            findings.append(
                f"{cluster.name}: Kubernetes {cluster.kubernetes_version} is not built here, only {built} is; give "
                f"tenant_control_plane_kubernetes_version {built}, or components_source upstream."
            )
    findings += [
        f"{worker.name}: node_kubernetes_version is {worker.kubernetes_version}, and the lab's hosts have {built}; "
        f"take it out."
        for worker in workers
        if worker.kubernetes_version and worker.kubernetes_version.lstrip("v") != built
    ]
    return findings


def minor_of(version: str) -> tuple[int, int] | None:
    match = VERSION.fullmatch(version)
    return (int(match["major"]), int(match["minor"])) if match else None


def _text(minor: tuple[int, int]) -> str:
    return f"{minor[0]}.{minor[1]}"


def _no_version(owner: str, version: str) -> str:
    return f"{owner}: {version!r} is no Kubernetes version; give one like 1.36.3."


def check_workers(tenants: Sequence[str], workers: Iterable[Worker]) -> list[str]:
    """Workers of tenants that do not exist, and cards that nobody can make."""
    findings = []
    known = ", ".join(tenants) or "no tenant (the group tenants is empty)"
    for worker in workers:
        if not worker.tenant:
            findings.append(f"{worker.name}: tenant_worker_tenant is not set; give one of {known}.")
        elif worker.tenant not in tenants:
            findings.append(
                f"{worker.name}: tenant_worker_tenant names {worker.tenant}, and there is no such tenant; "
                f"give one of {known}."
            )
        try:
            cards_from_profiles(worker.name, worker.cards)
        except HamiFormatError as error:
            findings.append(str(error))
    return findings


def check_engine(engine: str, usable: bool, installable: bool, root: bool) -> list[str]:
    """No container engine that answers, and none that the lab can install itself."""
    if engine == "podman" and not root:
        return [
            "lab_engine: podman run by this user cannot run a lab, whose hosts need the machine's devices and "
            "cgroups; run it as root, or install docker and give lab_engine docker."
        ]
    if usable or (installable and engine == "podman"):
        return []
    return [
        f"lab_engine: {engine} cannot be used on this machine; install podman 4.3 or newer, or docker, "
        f"and make sure that this user may run it ({engine} ps)."
    ]


def check_room(path: str, free_bytes: int, need_gib: float, purpose: str) -> list[str]:
    """Too little free disk under a path."""
    if free_bytes >= need_gib * GIB:
        return []
    return [
        f"{path}: {free_bytes / GIB:.1f} GiB of disk are free, and {purpose} needs {need_gib:g} GiB; "
        f"free some, or give XDG_CACHE_HOME a folder on a larger disk."
    ]


def check_memory(total_bytes: int, need_gib: float) -> list[str]:
    """Too little memory for a lab."""
    if total_bytes >= need_gib * GIB * MEMORY_TOLERANCE:
        return []
    return [
        f"memory: this machine has {total_bytes / GIB:.1f} GiB, and the lab needs {need_gib:g} GiB; "
        f"give it more, or take another machine."
    ]
