# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hosts and clusters of an inventory, as preflight judges them, and who dials whom among them. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._host_facts import Dial, Facts, Membership, Target, UrlAnswer, authority_of, facts_of

MANAGEMENT, WORKER = "management", "worker"
NODE_PORTS = (30000, 32767)
# Where role management_cluster's HAProxy listens, whose clients are all users of the API.
HAPROXY_PORT = 8443
# UDP ports of VXLAN, by pod network; the others of ours need none.
OVERLAYS = {"calico": 4789}


@dataclass(frozen=True)
class Cluster:
    """A cluster that hosts take part in: the management cluster's name is ``management``, a tenant's its own.

    ``servers`` are the API servers by which a kubelet of it may know it; empty while none is known. ``authority`` is
    the SHA-256 of its certificate authority where the controller has its kubeconfig.
    """

    name: str
    kubernetes_version: str
    pod_cidr: str = ""
    service_cidr: str = ""
    servers: Sequence[str] = ()
    authority: str = ""
    cni_provider: str = "kube_router"
    service_type: str = "LoadBalancer"
    virtual_address: str = ""
    virtual_address_ours: bool = True
    api_port: int = 6443
    cgroup_v1_allowed: bool = False
    swap_allowed: bool = False


@dataclass(frozen=True)
class Driver:
    """How a worker gets its driver: nvidia_driver's source and build, and the branch."""

    source: str = "none"
    build: str = "auto"
    kernel_modules: str = "auto"
    branch: str = ""
    reboot_allowed: bool = False

    @property
    def installed(self) -> bool:
        """Whether role nvidia_driver installs it."""
        return self.source in ("ubuntu", "repository")

    @property
    def built(self) -> bool:
        """Whether its modules are built on the host: Ubuntu's are precompiled where nothing else is said."""
        return self.installed and (self.build == "dkms" or (self.build == "auto" and self.source == "repository"))


@dataclass(frozen=True)
class Host:
    """A host of the inventory, and what it said of itself; ``trouble`` says why it did not.

    One that was not ``asked`` (a run with a limit) is only dialled by others.
    """

    name: str
    kind: str
    cluster: str
    address: str
    facts: Facts | None = None
    trouble: str = ""
    unreachable: bool = False
    own_address: str = ""
    gpu_backend: str = "none"
    cards: Sequence[Mapping[str, object]] = ()
    driver: Driver = field(default_factory=Driver)
    reset_confirmed: bool = False
    swap: str = "keep"
    ignored: Sequence[str] = ()
    asked: bool = True
    kubernetes_version: str = ""


@dataclass(frozen=True)
class Site:
    """Everything that is judged. ``disk_gib`` is what a folder needs, by kind of host and folder."""

    hosts: Sequence[Host]
    clusters: Mapping[str, Cluster]
    disk_gib: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    controller_dials: Sequence[Dial] = ()
    controller_urls: Sequence[UrlAnswer] = ()

    def cluster_of(self, host: Host) -> Cluster:
        """The cluster of a host, an empty one where the inventory names none (inventory_preflight says so)."""
        return self.clusters.get(host.cluster, Cluster(host.cluster, ""))

    def joined(self, host: Host) -> bool:
        """Whether the host already belongs to the inventory's own cluster, as far as the controller can tell."""
        return self.belongs(host) or self.perhaps(host)

    def belongs(self, host: Host) -> bool:
        """Whether the host's kubelet names a server, and where both are known an authority, of its cluster."""
        member, cluster = _member(host), self.cluster_of(host)
        if member is None or member.server not in cluster.servers:
            return False
        return not cluster.authority or not member.authority or member.authority == cluster.authority

    def perhaps(self, host: Host) -> bool:
        """Whether the host belongs to some cluster, and nothing is known of its own one to compare that with."""
        return _member(host) is not None and not self.cluster_of(host).servers


def _member(host: Host) -> Membership | None:
    """A host's membership, if it is one of its kind."""
    member = host.facts.membership if host.facts else None
    return member if member and member.control_plane == (host.kind == MANAGEMENT) else None


# The inventory.

# Fields of a host's and a cluster's description, and the variables that hold them.
HOST_VARIABLES = {
    "own_address": "management_cluster_address",
    "ansible_host": "ansible_host",
    "address": "preflight_address",
    "tenant": "tenant_worker_tenant",
    "gpu_backend": "gpu_backend",
    "cards": "nvidia_cards",
    "driver_source": "nvidia_driver_source",
    "driver_build": "nvidia_driver_build",
    "driver_kernel_modules": "nvidia_driver_kernel_modules",
    "driver_branch": "nvidia_driver_branch",
    "reboot_allowed": "node_reboot_allowed",
    "swap": "node_swap",
    "kubernetes_version": "node_kubernetes_version",
    "reset_confirmed": "tenant_worker_reset_confirm",
}
IGNORED_VARIABLES = {
    MANAGEMENT: "management_cluster_ignore_preflight_errors",
    WORKER: "tenant_worker_ignore_preflight_errors",
}
MANAGEMENT_VARIABLES = {
    "kubernetes_version": "management_cluster_kubernetes_version",
    "pod_cidr": "management_cluster_pod_cidr",
    "service_cidr": "management_cluster_service_cidr",
    "endpoint": "management_cluster_endpoint",
    "virtual_address": "management_cluster_virtual_address",
    "virtual_address_provider": "management_cluster_virtual_address_provider",
    "haproxy_port": "management_cluster_haproxy_port",
    "kubeconfig": "management_cluster_kubeconfig",
    "kubelet_configuration": "management_cluster_kubelet_configuration",
    "cni_provider": "cni_provider",
}
TENANT_VARIABLES = {
    "kubernetes_version": "tenant_control_plane_kubernetes_version",
    "pod_cidr": "tenant_control_plane_pod_cidr",
    "service_cidr": "tenant_control_plane_service_cidr",
    "address": "tenant_control_plane_address",
    "service_type": "tenant_control_plane_service_type",
    "kubeconfig": "tenant_control_plane_kubeconfig",
    "kubelet_patches": "tenant_control_plane_kubelet_patches",
    "cni_provider": "tenant_control_plane_cni_provider",
}
Variables = Mapping[str, Any]
VIRTUAL_ADDRESS = "the virtual address"


def describe(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Variables], defaults: Variables) -> Variables:
    """The hosts and clusters of an inventory as plain data, which a module takes as ``hosts`` and ``clusters``.

    ``defaults`` are ``host`` and ``cluster``, fields of those that do not say otherwise, ``management``, of the
    management cluster, and ``state_dir``, the controller's folder with ``kubeconfigs``.
    """
    management = groups.get("management", ())
    named = [*((name, MANAGEMENT) for name in management), *((name, WORKER) for name in groups.get("workers", ()))]
    hosts = [_described(name, kind, hostvars[name], defaults["host"]) for name, kind in named]
    clusters = []
    if management:
        variables = hostvars[management[0]]
        found = _picked(variables, MANAGEMENT_VARIABLES)
        servers = [f"{host['own_address']}:6443" for host in hosts if host.get("own_address")]
        endpoint, port = found.pop("endpoint", ""), found.pop("haproxy_port", HAPROXY_PORT)
        servers += [endpoint] if endpoint else []
        if found.get("virtual_address"):
            balanced = found.get("virtual_address_provider", "keepalived") == "keepalived"
            found["api_port"] = port if balanced else 6443
            servers.append(f"{found['virtual_address']}:{found['api_port']}")
        clusters.append(_cluster(MANAGEMENT, {**defaults["management"], **found}, servers, defaults))
    for name in groups.get("tenants", ()):
        found = _picked(hostvars[name], TENANT_VARIABLES)
        address = found.pop("address", "")
        clusters.append(_cluster(name, found, [f"{address}:6443"] if address else [], defaults))
    return {"hosts": hosts, "clusters": clusters}


def _picked(variables: Variables, names: Mapping[str, str]) -> dict[str, Any]:
    return {key: variables[name] for key, name in names.items() if name in variables}


def _described(name: str, kind: str, variables: Variables, defaults: Variables) -> dict[str, Any]:
    found = {**defaults, **_picked(variables, HOST_VARIABLES)}
    tenant, ansible_host = str(found.pop("tenant", "")), str(found.pop("ansible_host", ""))
    if kind == WORKER:
        found.pop("own_address", None)
    address = found.get("address") or found.get("own_address") or ansible_host or name
    return {
        **found,
        "name": name,
        "kind": kind,
        "cluster": MANAGEMENT if kind == MANAGEMENT else tenant,
        "address": address,
        "ignored": list(variables.get(IGNORED_VARIABLES[kind], ())),
    }


def _cluster(name: str, found: Variables, servers: Sequence[str], defaults: Variables) -> dict[str, Any]:
    return {
        "kubeconfig": f"{defaults['state_dir']}/kubeconfigs/{name}.conf",
        **defaults["cluster"],
        **found,
        "name": name,
        "servers": [f"https://{server}" for server in servers],
    }


def host_from(description: Variables, answer: Variables | None = None) -> Host:
    """A host from its description, and from the registered result of its module."""
    asked, answer = answer is not None, answer or {}
    return Host(
        name=description["name"],
        kind=description["kind"],
        cluster=description["cluster"],
        address=description["address"],
        facts=facts_of(answer["facts"]) if "facts" in answer else None,
        trouble=str(answer.get("msg", "")),
        unreachable=bool(answer.get("unreachable", False)),
        own_address=description.get("own_address") or "",
        gpu_backend=description.get("gpu_backend") or "none",
        cards=description.get("cards") or (),
        driver=Driver(
            description.get("driver_source") or "none",
            build=description.get("driver_build") or "auto",
            kernel_modules=description.get("driver_kernel_modules") or "auto",
            branch=str(description.get("driver_branch") or ""),
            reboot_allowed=bool(description.get("reboot_allowed")),
        ),
        reset_confirmed=bool(description.get("reset_confirmed")),
        swap=description.get("swap") or "keep",
        ignored=description.get("ignored") or (),
        asked=asked,
        kubernetes_version=str(description.get("kubernetes_version") or ""),
    )


def cluster_from(description: Variables, kubeconfig: str = "") -> Cluster:
    """A cluster from its description, and from its kubeconfig once there is one."""
    patches = description.get("kubelet_patches") or ()
    patched = {str(patch.get("path", "")).lstrip("/"): patch.get("value") for patch in patches}
    configuration = {**(description.get("kubelet_configuration") or {}), **patched}
    named = re.findall(r"^\s*server:\s*[\"']?([^\s\"']+)", kubeconfig, re.MULTILINE)
    return Cluster(
        name=description["name"],
        kubernetes_version=description["kubernetes_version"],
        pod_cidr=description.get("pod_cidr") or "",
        service_cidr=description.get("service_cidr") or "",
        servers=[*description.get("servers", ()), *named],
        authority=authority_of(kubeconfig),
        cni_provider=description.get("cni_provider") or "kube_router",
        service_type=description.get("service_type") or "LoadBalancer",
        virtual_address=description.get("virtual_address") or "",
        virtual_address_ours=(description.get("virtual_address_provider") or "keepalived")
        in ("keepalived", "kube_vip"),
        api_port=description.get("api_port") or 6443,
        cgroup_v1_allowed=configuration.get("failCgroupV1") is False,
        swap_allowed=configuration.get("failSwapOn") is False,
    )


# Who dials whom.


def targets_of(host: Host, site: Site, peers: int) -> list[Target]:
    """What a host will dial once all stands, as far as something can answer today.

    A tenant's address answers only once its control plane is there. A worker dials the management hosts in its place,
    which hold that address. Of its peers a host dials only the next few of its cluster: all of them together are
    still dialled.
    """
    management = [other for other in site.hosts if other.kind == MANAGEMENT and other.name != host.name]
    cluster = site.cluster_of(host)
    targets = []
    if host.kind == MANAGEMENT:
        for other in management:
            targets += [
                *(_target(other, port, "the Kubernetes API") for port in sorted({6443, cluster.api_port})),
                _target(other, 2379, "etcd's clients"),
                _target(other, 2380, "etcd's members"),
                _target(other, 10250, "the kubelet's API"),
                _target(other, 7946, "MetalLB's members"),
                _target(other, 7946, "MetalLB's members", "udp"),
            ]
        if cluster.virtual_address:
            targets.append(Target(VIRTUAL_ADDRESS, cluster.virtual_address, 6443, "tcp", "whether somebody has it"))
    else:
        ports = NODE_PORTS if cluster.service_type == "NodePort" else (6443, 8132)
        purpose = f"{cluster.name}'s API and tunnel, which the management hosts will serve"
        targets += [_target(other, port, purpose) for other in management for port in ports]
    neighbours = _next(host, [other for other in site.hosts if other.cluster == host.cluster], peers)
    for other in neighbours:
        if host.kind == WORKER:
            targets.append(_target(other, 10250, "the kubelet's API, through the tunnel's agent"))
        if cluster.cni_provider in OVERLAYS:
            targets.append(_target(other, OVERLAYS[cluster.cni_provider], "the pod network's VXLAN", "udp"))
            targets.append(_target(other, 5473, "Typha"))
        else:
            targets.append(_target(other, 179, "the pod network's BGP"))
    return targets


def _target(host: Host, port: int, purpose: str, protocol: str = "tcp") -> Target:
    return Target(host.name, host.address, port, protocol, purpose)


def _next(host: Host, cluster: Sequence[Host], number: int) -> list[Host]:
    """The next few hosts after this one, in a ring."""
    place = next(index for index, other in enumerate(cluster) if other.name == host.name)
    ring = [*cluster[place + 1 :], *cluster[:place]]
    return ring[:number]
