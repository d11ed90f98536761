#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_preflight
short_description: What stands against a production install, on all hosts at once
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Judges what M(tenantry.gpu.host_preflight_info) found on the hosts of an inventory, and dials the management hosts
    from the controller, where it runs.
  - Fails with a table of all findings when one of them is an error. Changes nothing.
  - A host that already belongs to the cluster that the inventory gives it may have what the roles put there.
extends_documentation_fragment:
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
options:
  hosts:
    description: The hosts, in the order in which they are told.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Its name in the inventory.
        type: str
        required: true
      kind:
        description: What it is for.
        type: str
        choices: [management, worker]
        required: true
      cluster:
        description: V(management), or the worker's tenant.
        type: str
        default: management
      address:
        description: Where the others dial it.
        type: str
        required: true
      own_address:
        description: The address that the inventory says it has, where it says one.
        type: str
        default: ""
      gpu_backend:
        description: Where its cards come from.
        type: str
        choices: [nvidia, simulator, none, hami_mock, nvml_mock]
        default: none
      cards:
        description: The cards that the inventory says it has, a list of V(model) and V(count).
        type: list
        elements: dict
        default: []
      driver_source:
        description: How it gets its driver, as in C(nvidia_driver_source).
        type: str
        default: none
      driver_build:
        description: Where its modules are made, as in C(nvidia_driver_build).
        type: str
        default: auto
      driver_kernel_modules:
        description: Which kernel modules drive its cards, as in C(nvidia_driver_kernel_modules).
        type: str
        default: auto
      driver_branch:
        description: Branch of the driver.
        type: str
        default: ""
      reboot_allowed:
        description: Whether the run may reboot it.
        type: bool
        default: false
      reset_confirmed:
        description: Whether the run may take it out of another cluster.
        type: bool
        default: false
      swap:
        description: What role node does with swap, as in C(node_swap).
        type: str
        default: keep
      kubernetes_version:
        description: The version that its kubelet gets, as in C(node_kubernetes_version).
        type: str
        default: ""
      ignored:
        description: Preflight checks of kubeadm that are ignored.
        type: list
        elements: str
        default: []
  answers:
    description: What the hosts said that were asked, those that said nothing included. The others are not judged.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The host's name.
        type: str
        required: true
      answer:
        description: The registered result of M(tenantry.gpu.host_preflight_info), also where it failed.
        type: dict
        default: {}
  clusters:
    description: The clusters that the hosts take part in.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: V(management), or the tenant's name.
        type: str
        required: true
      kubernetes_version:
        description: Its Kubernetes version.
        type: str
        required: true
      pod_cidr:
        description: Its pod range.
        type: str
        default: ""
      service_cidr:
        description: Its service range.
        type: str
        default: ""
      servers:
        description: Addresses of its API server as kubeconfigs name them, where they are known.
        type: list
        elements: str
        default: []
      kubeconfig:
        description: Its kubeconfig on the controller, which says more once it is there.
        type: path
      virtual_address:
        description: Address that moves between the management hosts.
        type: str
        default: ""
      virtual_address_provider:
        description: What holds it.
        type: str
        default: keepalived
      api_port:
        description: Port of its API server, that of the management hosts' HAProxy where there is one.
        type: int
        default: 6443
      cni_provider:
        description: Its pod network.
        type: str
        default: kube_router
      service_type:
        description: How its API server is reached.
        type: str
        default: LoadBalancer
      kubelet_configuration:
        description: Fields of KubeletConfiguration that differ from kubeadm's.
        type: dict
        default: {}
      kubelet_patches:
        description: The same as RFC 6902 patches.
        type: list
        elements: dict
        default: []
  disk_gib:
    description: Free disk in GiB that each folder needs, by kind of host.
    type: dict
    default: {}
  controller_urls:
    description: URLs that the controller itself must be able to get, such as chart repositories.
    type: list
    elements: str
    default: []
  timeout_s:
    description: After how many seconds a dial of the controller counts as silent.
    type: float
    default: 3
"""

EXAMPLES = r"""
- name: Nothing stands against an installation
  tenantry.gpu.host_preflight:
    hosts:
      - {name: management-0, kind: management, address: 127.0.0.1}
    answers:
      - {name: management-0, answer: "{{ hostvars['management-0'].found | default({'msg': 'not asked yet'}) }}"}
    clusters:
      - {name: management, kubernetes_version: 1.36.3, pod_cidr: 10.244.0.0/16, service_cidr: 10.96.0.0/16}
    disk_gib:
      management: {/var/lib/etcd: 10}
  delegate_to: localhost
  register: judged
  failed_when: judged is failed and 'could not be looked at' not in judged.msg
"""

RETURN = r"""
findings:
  description: What was found, warnings alone.
  returned: success
  type: list
  elements: dict
  contains:
    severity:
      description: V(warning).
      type: str
      returned: always
    host:
      description: The host.
      type: str
      returned: always
    check:
      description: Name of the check, as in docs/reference/preflight.md.
      type: str
      returned: always
    finding:
      description: What is wrong.
      type: str
      returned: always
    remedy:
      description: What to do.
      type: str
      returned: always
table:
  description: The findings as a table; empty where there is none.
  returned: success
  type: str
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._host_facts import Dial, Target, UrlAnswer, ask_url, dial
from ..module_utils._host_preflight import ERROR, heading, judge, table_of
from ..module_utils._site import MANAGEMENT, Cluster, Host, Site, cluster_from, host_from


def cluster_of(description: Mapping[str, Any]) -> Cluster:
    """A cluster, also by its kubeconfig once the controller has it."""
    path = Path(description["kubeconfig"] or "/dev/null")
    return cluster_from(description, path.read_text(encoding="utf-8") if path.is_file() else "")


def from_here(
    hosts: Sequence[Host], port: int, urls: Sequence[str], timeout_s: float
) -> tuple[list[Dial], list[UrlAnswer]]:
    """Dial the API port of every management host, and ask for URLs, from the controller."""
    reached = [host for host in hosts if host.kind == MANAGEMENT and not host.unreachable]
    targets = [Target(host.name, host.address, port, "tcp", "the Kubernetes API") for host in reached]
    with ThreadPoolExecutor() as pool:
        dials = pool.map(lambda target: dial(target, timeout_s), targets)
        answers = pool.map(lambda url: ask_url(url, timeout_s), urls)
        return list(dials), list(answers)


def main() -> None:
    """Entry point."""
    needed = {"type": "str", "required": True}
    empty = {"type": "str", "default": ""}
    no = {"type": "bool", "default": False}
    texts = {"type": "list", "elements": "str", "default": []}
    dictionaries = {"type": "list", "elements": "dict", "default": []}
    host = {
        "name": needed,
        "kind": {"type": "str", "choices": ["management", "worker"], "required": True},
        "cluster": {"type": "str", "default": "management"},
        "address": needed,
        "own_address": empty,
        "gpu_backend": {
            "type": "str",
            "choices": ["nvidia", "simulator", "none", "hami_mock", "nvml_mock"],
            "default": "none",
        },
        "cards": dictionaries,
        "driver_source": {"type": "str", "default": "none"},
        "driver_build": {"type": "str", "default": "auto"},
        "driver_kernel_modules": {"type": "str", "default": "auto"},
        "driver_branch": empty,
        "reboot_allowed": no,
        "reset_confirmed": no,
        "swap": {"type": "str", "default": "keep"},
        "kubernetes_version": empty,
        "ignored": texts,
    }
    cluster = {
        "name": needed,
        "kubernetes_version": needed,
        "pod_cidr": empty,
        "service_cidr": empty,
        "servers": texts,
        "kubeconfig": {"type": "path"},
        "virtual_address": empty,
        "virtual_address_provider": {"type": "str", "default": "keepalived"},
        "api_port": {"type": "int", "default": 6443},
        "cni_provider": {"type": "str", "default": "kube_router"},
        "service_type": {"type": "str", "default": "LoadBalancer"},
        "kubelet_configuration": {"type": "dict", "default": {}},
        "kubelet_patches": dictionaries,
    }
    answer = {"name": needed, "answer": {"type": "dict", "default": {}}}
    module = AnsibleModule(
        argument_spec={
            "answers": {"type": "list", "elements": "dict", "required": True, "options": answer},
            "hosts": {"type": "list", "elements": "dict", "required": True, "options": host},
            "clusters": {"type": "list", "elements": "dict", "required": True, "options": cluster},
            "disk_gib": {"type": "dict", "default": {}},
            "controller_urls": texts,
            "timeout_s": {"type": "float", "default": 3},
        },
        supports_check_mode=True,
    )
    answers = {each["name"]: each["answer"] for each in module.params["answers"]}
    hosts = [host_from(each, answers.get(each["name"])) for each in module.params["hosts"]]
    clusters = {each["name"]: cluster_of(each) for each in module.params["clusters"]}
    port = clusters[MANAGEMENT].api_port if MANAGEMENT in clusters else 6443
    dials, urls = from_here(hosts, port, module.params["controller_urls"], module.params["timeout_s"])
    site = Site(
        hosts=hosts,
        clusters=clusters,
        disk_gib=module.params["disk_gib"],
        controller_dials=dials,
        controller_urls=urls,
    )
    findings = judge(site)
    title = f"Preflight has {heading(findings)}"
    if any(finding.severity == ERROR for finding in findings):
        module.fail_json(msg=f"{title}, and nothing was changed:\n{table_of(findings)}")
    table = f"{title}:\n{table_of(findings)}" if findings else ""
    module.exit_json(findings=[asdict(finding) for finding in findings], table=table)


if __name__ == "__main__":
    main()
