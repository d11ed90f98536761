#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inventory_preflight
short_description: What is wrong with an inventory and with a lab's machine, all at once
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Looks at names, addresses and their ranges, versions, control planes, workers and cards of the whole inventory, and
    where it is a lab's, also at this machine's routes, container engine, disk and memory. Touches no other host.
  - Fails with every finding, each a sentence that says what to do. Changes nothing.
extends_documentation_fragment:
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
options:
  management:
    description: The management cluster.
    type: dict
    required: true
    suboptions:
      hosts:
        description: Names of its hosts.
        type: list
        elements: str
        default: []
      addresses:
        description: The hosts' addresses, by name. They are not judged where this is left out.
        type: dict
      node_versions:
        description: Versions of the hosts' kubelets, by name, where they are not the cluster's.
        type: dict
        default: {}
      virtual_address:
        description: The address that moves between them.
        type: str
        default: ""
      existing:
        description: Whether the cluster is there already, so that it needs no hosts of the inventory.
        type: bool
        default: false
      kubernetes_version:
        description: Its Kubernetes version.
        type: str
        required: true
      pod_cidr:
        description: Its pod range.
        type: str
        required: true
      service_cidr:
        description: Its service range.
        type: str
        required: true
  tenants:
    description: The tenants.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Its name.
        type: str
        required: true
      kubernetes_version:
        description: Kubernetes version of its control plane; the management cluster's where it is not set.
        type: str
      pod_cidr:
        description: Its pod range.
        type: str
      service_cidr:
        description: Its service range.
        type: str
      address:
        description: Address of its API server, where the inventory gives it one.
        type: str
        default: ""
  workers:
    description: The workers.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Its name.
        type: str
        required: true
      tenant:
        description: The tenant whose worker it is.
        type: str
        default: ""
      kubernetes_version:
        description: Version of its kubelet, where it is not its tenant's.
        type: str
        default: ""
      address:
        description: The address by which Ansible and the others reach it, where the inventory gives one.
        type: str
        default: ""
      cards:
        description: Its simulated cards, as P(tenantry.gpu.gpu_simulator#role) takes them.
        type: list
        elements: dict
        default: []
      gpu_backend:
        description: Where its cards come from.
        type: str
        default: none
      nvidia_cards:
        description: Its real cards, a list of C(model) and C(count).
        type: list
        elements: dict
        default: []
  load_balancer_addresses:
    description: The pool of addresses of the tenants' API servers, CIDRs or two addresses with a dash.
    type: list
    elements: str
    default: []
  versions:
    description: The version matrix, C(tenantry_versions).
    type: dict
    default: {}
  lab:
    description: The lab, where the inventory is one's.
    type: dict
    suboptions:
      name:
        description: Its name.
        type: str
        required: true
      subnet:
        description: Its network.
        type: str
        required: true
      engine:
        description: The container engine's program.
        type: str
        required: true
      cache_dir:
        description: Folder of the components and images.
        type: path
        required: true
      components_dir:
        description: Folder with one folder for each component that may have to be built. Empty where none is built.
        type: str
        default: ""
      kubernetes_version:
        description: Kubernetes version of its hosts. Empty where it is not known.
        type: str
        default: ""
      built_only:
        description: Whether control planes have no other version either, since no image comes from a registry.
        type: bool
        default: false
      memory_gib:
        description: Memory that the lab needs, in GiB.
        type: float
        default: 4
      disk_gib:
        description: Free disk that it needs, in GiB.
        type: float
        default: 6
      build_disk_gib:
        description: Free disk that it needs when components have to be built, in GiB.
        type: float
        default: 25
"""

EXAMPLES = r"""
- name: The inventory makes sense
  tenantry.gpu.inventory_preflight:
    management:
      hosts: [management-0]
      kubernetes_version: 1.36.3
      pod_cidr: 10.244.0.0/16
      service_cidr: 10.96.0.0/16
    tenants:
      - {name: tenant-a, pod_cidr: 10.32.0.0/16, service_cidr: 10.112.0.0/16}
    workers:
      - {name: a-worker-0, tenant: tenant-a, cards: [{profile: a100-80g, count: 1}]}
"""

RETURN = r"""#"""

import ipaddress
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._inventory import (
    TENANT_ADDRESS,
    Address,
    Cluster,
    Range,
    Worker,
    check_addresses,
    check_control_planes,
    check_declared_cards,
    check_engine,
    check_host_routes,
    check_lab_versions,
    check_matrix,
    check_memory,
    check_names,
    check_ranges,
    check_room,
    check_versions,
    check_workers,
)

ENGINE_STORAGE = {"podman": "/var/lib/containers", "docker": "/var/lib/docker"}
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# The devices that engines give to their networks: the lab's own bridge is no collision.
BRIDGE = re.compile(r"(br-|cni-podman|podman|docker)\S*")


def ranges_of(parameters: dict[str, Any]) -> list[Range]:
    """Every range that the inventory names."""
    management = parameters["management"]
    ranges = [Range("lab", "network", parameters["lab"]["subnet"], "lab_subnet")] if parameters["lab"] else []
    for kind in ("pod", "service"):
        ranges.append(
            Range("management", f"{kind} CIDR", management[f"{kind}_cidr"], f"management_cluster_{kind}_cidr")
        )
        ranges += [
            Range(tenant["name"], f"{kind} CIDR", tenant[f"{kind}_cidr"], f"tenant_control_plane_{kind}_cidr")
            for tenant in parameters["tenants"]
            if tenant[f"{kind}_cidr"]
        ]
    return ranges


def addresses_of(parameters: dict[str, Any]) -> list[Address]:
    """Every address that the inventory gives; a worker may be named by a host name instead."""
    management = parameters["management"]
    found = [
        Address(host, "management_cluster_address", address)
        for host, address in (management["addresses"] or {}).items()
        if address
    ]
    if management["virtual_address"]:
        found.append(Address("management", "management_cluster_virtual_address", management["virtual_address"]))
    found += [
        Address(worker["name"], "ansible_host", worker["address"])
        for worker in parameters["workers"]
        if re.fullmatch(r"[0-9.]+", worker["address"])
    ]
    return found + [
        Address(tenant["name"], TENANT_ADDRESS, tenant["address"])
        for tenant in parameters["tenants"]
        if tenant["address"]
    ]


def check_inventory(parameters: dict[str, Any]) -> list[str]:
    """Findings that follow from the inventory alone."""
    management, tenants, lab = parameters["management"], parameters["tenants"], parameters["lab"]
    workers = [
        Worker(worker["name"], worker["tenant"], worker["kubernetes_version"], worker["cards"])
        for worker in parameters["workers"]
    ]
    groups = {
        "management": management["hosts"],
        "tenants": [tenant["name"] for tenant in tenants],
        "workers": [worker.name for worker in workers],
    }
    # What role node installs, and every tenant runs, where nothing else is said.
    standard = parameters["versions"].get("kubernetes") or management["kubernetes_version"]
    clusters = [Cluster("management", management["kubernetes_version"])]
    clusters += [Cluster(tenant["name"], tenant["kubernetes_version"] or standard) for tenant in tenants]
    kubelets = [
        Worker(name, "management", management["node_versions"].get(name, standard)) for name in groups["management"]
    ]
    kubelets += [replace(worker, kubernetes_version=worker.kubernetes_version or standard) for worker in workers]
    built = lab["kubernetes_version"] if lab else ""
    ranges = ranges_of(parameters)
    # A lab's addresses follow from its network, whose overlaps check_ranges tells once.
    others = [] if lab else ranges
    return [
        *check_names(lab["name"] if lab else "", groups, management["existing"]),
        *check_control_planes(groups["management"], management["addresses"], management["virtual_address"]),
        *check_ranges(ranges),
        *check_addresses(addresses_of(parameters), parameters["load_balancer_addresses"], others),
        *check_versions(clusters, kubelets),
        *check_matrix(parameters["versions"], [cluster.kubernetes_version for cluster in clusters]),
        *(check_lab_versions(built, lab["built_only"], clusters, workers) if built else ()),
        *check_workers(groups["tenants"], workers),
        *(
            finding
            for worker in parameters["workers"]
            for finding in check_declared_cards(worker["name"], worker["gpu_backend"], worker["nvidia_cards"])
        ),
    ]


def check_machine(module: AnsibleModule) -> list[str]:
    """Findings about the machine that a lab is to run on."""
    lab = module.params["lab"]
    root = os.geteuid() == 0
    installable = root and os.path.exists("/etc/debian_version") and shutil.which("apt-get") is not None
    usable = shutil.which(lab["engine"]) is not None and module.run_command([lab["engine"], "ps", "--quiet"])[0] == 0
    building = components_missing(lab["components_dir"], lab["cache_dir"])
    need_gib, purpose = (lab["build_disk_gib"], "building the components") if building else (lab["disk_gib"], "a lab")
    storage = ENGINE_STORAGE.get(lab["engine"], "")
    return [
        *check_host_routes(ranges_of(module.params), host_routes(module, lab["subnet"])),
        *check_engine(lab["engine"], usable, installable, root),
        *check_room(lab["cache_dir"], free_bytes(lab["cache_dir"]), need_gib, purpose),
        *(check_room(storage, free_bytes(storage), lab["disk_gib"], "a lab") if os.path.isdir(storage) else ()),
        *check_memory(memory_bytes(), lab["memory_gib"]),
    ]


def host_routes(module: AnsibleModule, subnet: str) -> list[tuple[str, str]]:
    """This machine's routes as range and device, without the default route and the lab's own bridge."""
    ip = module.get_bin_path("ip")
    if not ip:
        module.warn("The program ip is missing, so the ranges were not compared with this machine's routes.")
        return []
    answer = module.run_command([ip, "-json", "-4", "route", "show", "table", "main"], check_rc=True)[1]
    return parse_routes(answer, subnet)


def parse_routes(answer: str, subnet: str) -> list[tuple[str, str]]:
    """Read the answer of ``ip -json route``."""
    routes = []
    for route in json.loads(answer or "[]"):
        destination, device = route["dst"], route.get("dev", route.get("type", "no device"))
        own = destination == subnet and BRIDGE.fullmatch(device)
        if destination != "default" and not own:
            routes.append((str(ipaddress.IPv4Network(destination)), device))
    return routes


def components_missing(components_dir: str, cache_dir: str) -> bool:
    """Whether a component of a folder of components has no build in the cache."""
    if not components_dir or not os.path.isdir(components_dir):
        return False
    built = Path(cache_dir, "components")
    names = [entry.name for entry in os.scandir(components_dir) if entry.is_dir()]
    return any(not list(built.glob(f"{name}-*")) for name in names)


def free_bytes(path: str) -> int:
    """Free disk at a path, or where it will be made."""
    existing = Path(path).absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def memory_bytes() -> int:
    """This machine's memory, or what its control group leaves of it."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in MEMORY_LIMITS:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            sizes.append(int(text))
    return min(sizes)


def main() -> None:
    text = {"type": "str"}
    needed = {"type": "str", "required": True}
    optional = {"type": "str", "default": ""}
    cards = {"type": "list", "elements": "dict", "default": []}
    management = {
        "hosts": {"type": "list", "elements": "str", "default": []},
        "addresses": {"type": "dict"},
        "node_versions": {"type": "dict", "default": {}},
        "virtual_address": optional,
        "existing": {"type": "bool", "default": False},
        "kubernetes_version": needed,
        "pod_cidr": needed,
        "service_cidr": needed,
    }
    tenant = {"name": needed, "kubernetes_version": text, "pod_cidr": text, "service_cidr": text, "address": optional}
    worker = {
        "name": needed,
        "tenant": optional,
        "kubernetes_version": optional,
        "address": optional,
        "cards": cards,
        "gpu_backend": {"type": "str", "default": "none"},
        "nvidia_cards": cards,
    }
    lab = {
        "name": needed,
        "subnet": needed,
        "engine": needed,
        "cache_dir": {"type": "path", "required": True},
        "components_dir": optional,
        "kubernetes_version": optional,
        "built_only": {"type": "bool", "default": False},
        "memory_gib": {"type": "float", "default": 4},
        "disk_gib": {"type": "float", "default": 6},
        "build_disk_gib": {"type": "float", "default": 25},
    }
    module = AnsibleModule(
        argument_spec={
            "management": {"type": "dict", "required": True, "options": management},
            "tenants": {"type": "list", "elements": "dict", "required": True, "options": tenant},
            "workers": {"type": "list", "elements": "dict", "required": True, "options": worker},
            "load_balancer_addresses": {"type": "list", "elements": "str", "default": []},
            "versions": {"type": "dict", "default": {}},
            "lab": {"type": "dict", "options": lab},
        },
        supports_check_mode=True,
    )
    findings = check_inventory(module.params)
    if module.params["lab"]:
        findings += check_machine(module)
    if findings:
        heading = "Preflight has 1 finding" if len(findings) == 1 else f"Preflight has {len(findings)} findings"
        lines = "\n".join(f"- {finding}" for finding in findings)
        module.fail_json(msg=f"{heading}, and nothing was changed:\n{lines}")
    module.exit_json()


if __name__ == "__main__":
    main()
