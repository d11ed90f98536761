#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_preflight_info
short_description: What a host is, before Kubernetes and a GPU driver come to it
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Reads distribution, kernel, control groups, swap, clock, names, routes, listening ports, file systems, Secure Boot,
    cards, driver, container runtimes and membership in a cluster from C(/proc), C(/sys), C(/etc) and C(/var), without
    running a program.
  - Dials the addresses and asks the URLs that it is given, all at the same time. Nothing is sent over TCP, an empty
    datagram over UDP.
  - Judges nothing; M(tenantry.gpu.host_preflight) does, over all hosts at once.
requirements:
  - Python 3.9 or newer on the host
  - root, for what only root may read (product UUID, programs behind ports, firmware variables)
extends_documentation_fragment:
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
options:
  controller_time_s:
    description:
      - The controller's clock when the task began, in seconds since 1970, to compare the host's with.
      - V(0) compares nothing.
    type: float
    default: 0
  paths:
    description: Folders whose file systems are looked at, whether they exist yet or not.
    type: list
    elements: str
    default: []
  ports:
    description: Ports, or ranges such as V(30000-32767), on which listeners are looked for.
    type: list
    elements: str
    default: []
  targets:
    description: What the host will have to dial, as P(tenantry.gpu.preflight_site#filter) gives it.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Whose address it is.
        type: str
        required: true
      address:
        description: The address, or a name that the host can resolve.
        type: str
        required: true
      port:
        description: The port.
        type: int
        required: true
      protocol:
        description: How it is dialled.
        type: str
        choices: [tcp, udp]
        default: tcp
      purpose:
        description: What it is dialled for; it comes back with the answer.
        type: str
        default: ""
  urls:
    description: URLs that the host must be able to get, through the proxy of its environment where it names one.
    type: list
    elements: str
    default: []
  timeout_s:
    description: After how many seconds a dial or a URL counts as silent.
    type: float
    default: 3
"""

EXAMPLES = r"""
- name: What the host is, and whether it can dial the management host
  tenantry.gpu.host_preflight_info:
    paths: [/var/lib/containerd, /var/lib/kubelet]
    ports: ["10250", 30000-32767]
    targets:
      - name: management-0
        address: "{{ management_address | default('127.0.0.1') }}"
        port: 6443
        purpose: the Kubernetes API
    urls: "{{ registries | default([]) }}"
  register: found
"""

RETURN = r"""
facts:
  description: What was found, as M(tenantry.gpu.host_preflight) takes it.
  returned: success
  type: dict
  contains:
    root:
      description: Whether the module ran as root; without it several of the others are empty.
      type: bool
      returned: always
    system:
      description: Distribution, kernel, architecture, control groups (1 or 2), cores, memory in MiB, swap devices.
      type: dict
      returned: always
    identity:
      description: Host name, machine ID, product UUID, addresses, MAC address of the card with the default route.
      type: dict
      returned: always
    clock:
      description: Seconds that the host is ahead of the controller, and whether something keeps its clock.
      type: dict
      returned: always
    routes:
      description: IPv4 routes except the default one.
      type: list
      elements: dict
      returned: always
    listeners:
      description: The asked ports on which something listens, and the program.
      type: list
      elements: dict
      returned: always
    dynamic_ports:
      description: First and last port of outgoing connections.
      type: list
      elements: int
      returned: always
    filesystems:
      description: The file systems of the asked folders, size and free space in MiB.
      type: list
      elements: dict
      returned: always
    boot:
      description: Secure Boot (V(on), V(off) or V(unknown)), and whether a key with which the host signs is enrolled.
      type: dict
      returned: always
    gpu:
      description: Cards, the loaded driver and its names for them, nouveau, device plugins that are not HAMi's.
      type: dict
      returned: always
    runtime:
      description: Container runtimes besides containerd, and whose configuration containerd has.
      type: dict
      returned: always
    membership:
      description: The cluster of the host's kubelet, or nothing.
      type: dict
      returned: always
    distributions:
      description: Other Kubernetes distributions on the host, such as k3s.
      type: list
      elements: str
      returned: always
    dials:
      description: >-
        The targets with their answer, V(open), V(refused) (the way is open and nothing listens), V(silent), or the
        reason.
      type: list
      elements: dict
      returned: always
    urls:
      description: The URLs with their status, or V(0) and the reason.
      type: list
      elements: dict
      returned: always
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._host_facts import Asked, Target, collect


def port_range(text: str) -> tuple[int, int]:
    """A port, or two with a dash between; raises ValueError where it is neither."""
    first, _dash, last = text.partition("-")
    return int(first), int(last or first)


def main() -> None:
    """Entry point."""
    target = {
        "name": {"type": "str", "required": True},
        "address": {"type": "str", "required": True},
        "port": {"type": "int", "required": True},
        "protocol": {"type": "str", "choices": ["tcp", "udp"], "default": "tcp"},
        "purpose": {"type": "str", "default": ""},
    }
    module = AnsibleModule(
        argument_spec={
            "controller_time_s": {"type": "float", "default": 0},
            "paths": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "str", "default": []},
            "targets": {"type": "list", "elements": "dict", "default": [], "options": target},
            "urls": {"type": "list", "elements": "str", "default": []},
            "timeout_s": {"type": "float", "default": 3},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        ports = [port_range(port) for port in params["ports"]]
    except ValueError as error:
        module.fail_json(msg=f"ports: {error}; give numbers, or ranges such as 30000-32767.")
    asked = Asked(
        controller_time_s=params["controller_time_s"],
        paths=params["paths"],
        ports=ports,
        targets=[Target(**each) for each in params["targets"]],
        urls=params["urls"],
        timeout_s=params["timeout_s"],
    )
    module.exit_json(facts=asdict(collect(asked)))


if __name__ == "__main__":
    main()
