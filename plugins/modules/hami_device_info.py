#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: hami_device_info
short_description: Reads the cards that HAMi knows, who has shares of them, and the nodes' locks
version_added: "0.1.0"
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - Reads the cards of every node, the shares that pods have of them and the locks of the nodes, from annotations.
  - Needs the rights to list nodes and pods.
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
options:
  nodes:
    description: Names of the nodes to read; all if not given.
    type: list
    elements: str
  label_selector:
    description: Labels of the nodes to read, for example V(gpu=on).
    type: str
  wait_for_slots:
    description:
      - Number of allocatable slots to wait for on each node, by node name. A node is ready when as many are allocatable
        and its register carries cards with as many healthy slots. Nodes that are not named are not waited for.
    type: dict
  wait_for_scheduler:
    description:
      - Whether to wait, too, until HAMi's scheduler names every healthy card of the nodes of O(wait_for_slots) in its
        metrics. Pods that it has to judge before that are refused, and not looked at again for minutes.
      - Needs the right to get V(services/proxy) in O(scheduler_namespace).
    type: bool
    default: false
  scheduler_namespace:
    description: Namespace of HAMi's scheduler.
    type: str
    default: hami-system
  scheduler_service:
    description: Service of HAMi's scheduler.
    type: str
    default: hami-scheduler
  wait_timeout_s:
    description: How long to wait, in seconds.
    type: int
    default: 60
seealso:
  - module: tenantry.gpu.gpu_scheduling_verify
"""

EXAMPLES = r"""
- name: Cards of tenant-a and who uses them
  tenantry.gpu.hami_device_info:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
  register: tenant_devices

- name: Free memory of each card
  ansible.builtin.debug:
    msg: "{{ item.uuid }}: {{ item.free.memory_mib }} MiB"
  loop: "{{ tenant_devices.nodes | map(attribute='cards') | flatten }}"

- name: The ten slots of a-worker-0 are registered
  tenantry.gpu.hami_device_info:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    wait_for_slots: {a-worker-0: 10}
"""

RETURN = r"""
nodes:
  description: The nodes that declare cards or offer slots, by name.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the node.
      type: str
      sample: a-worker-0
    allocatable_slots:
      description: Slots that kubelet offers (allocatable V(nvidia.com/gpu)).
      type: int
      sample: 10
    handshake:
      description: HAMi's handshake annotation. Empty if the scheduler never wrote one.
      type: str
      sample: Requesting_2026-11-30 04:05:06
    error:
      description: Why an annotation of the node cannot be read. Empty if all can.
      type: str
      sample: ""
    lock:
      description: The lock of the node. Null if it is not locked.
      type: dict
      sample: {taken_at: "2026-11-30T04:05:06+00:00", age_s: 2, namespace: team, pod: train}
    cards:
      description: The cards that the node declares.
      type: list
      elements: dict
      contains:
        uuid:
          description: UUID of the card.
          type: str
          sample: GPU-6d0c1c9b-6a53-5c6e-9d7f-0d7b1f0f6b0e
        index:
          description: Index on its node.
          type: int
          sample: 0
        type:
          description: Type as the device plugin declares it.
          type: str
          sample: NVIDIA-NVIDIA A100-SXM4-80GB
        slots:
          description: Number of containers that may share it.
          type: int
          sample: 10
        memory_mib:
          description: Memory, in MiB.
          type: int
          sample: 81920
        cores:
          description: Compute, in percent.
          type: int
          sample: 100
        numa:
          description: NUMA node.
          type: int
          sample: 0
        mode:
          description: How it is shared.
          type: str
          sample: hami-core
        healthy:
          description: Whether it is healthy.
          type: bool
          sample: true
        cordoned:
          description: Whether new pods are kept off it.
          type: bool
          sample: false
        allocated:
          description: What its shares take.
          type: dict
          sample: {memory_mib: 20000, cores: 30, slots: 1}
        free:
          description: What is left of it.
          type: dict
          sample: {memory_mib: 61920, cores: 70, slots: 9}
        shares:
          description: Who has which share of it.
          type: list
          elements: dict
          sample: [{namespace: team, pod: train, container: 0, memory_mib: 20000, cores: 30}]
totals:
  description: Sums over all cards, healthy or not.
  returned: success
  type: dict
  sample:
    nodes: 1
    cards: 1
    memory_mib: 81920
    cores: 100
    slots: 10
    allocatable_slots: 10
    allocated: {memory_mib: 20000, cores: 30, slots: 1}
unreadable_pods:
  description: Pods whose allocation cannot be read, and why.
  returned: success
  type: list
  elements: str
  sample: []
"""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import Cluster, ClusterError, connect, new_module
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_CORDON,
    NODE_HANDSHAKE,
    NODE_LOCK,
    NODE_REGISTER,
    POD_ALLOCATED,
    POD_NODE,
    RESOURCE_COUNT,
    HamiFormatError,
    parse_allocation,
    parse_cordon,
    parse_lock,
    parse_register,
)

Object = dict[str, Any]

POLL_S = 0.5
OPTIONS: dict[str, Any] = {
    "nodes": {"type": "list", "elements": "str"},
    "label_selector": {"type": "str"},
    "wait_for_slots": {"type": "dict"},
    "wait_for_scheduler": {"type": "bool", "default": False},
    "scheduler_namespace": {"type": "str", "default": "hami-system"},
    "scheduler_service": {"type": "str", "default": "hami-scheduler"},
    "wait_timeout_s": {"type": "int", "default": 60},
}


def annotations_of(thing: Mapping[str, Any]) -> dict[str, str]:
    return thing["metadata"].get("annotations") or {}


def describe_node(node: Object, now: datetime) -> Object:
    """A node's cards, lock and slots, without shares. What cannot be read is named under ``error``."""
    found = annotations_of(node)
    allocatable = str(((node.get("status") or {}).get("allocatable") or {}).get(RESOURCE_COUNT, "0"))
    described: Object = {
        "name": node["metadata"]["name"],
        "allocatable_slots": int(allocatable) if allocatable.isdigit() else 0,
        "handshake": found.get(NODE_HANDSHAKE, ""),
        "error": "",
        "lock": None,
        "cards": [],
    }
    try:
        cordoned = parse_cordon(found.get(NODE_CORDON, ""))
        for card in parse_register(found[NODE_REGISTER]) if found.get(NODE_REGISTER) else []:
            described["cards"].append({**vars(card), "cordoned": card.uuid in cordoned, "shares": []})
        if found.get(NODE_LOCK):
            lock = parse_lock(found[NODE_LOCK])
            described["lock"] = {
                "taken_at": lock.taken_at.isoformat(),
                "age_s": int((now - lock.taken_at).total_seconds()),
                "namespace": lock.namespace,
                "pod": lock.pod,
            }
    except HamiFormatError as error:
        described["error"] = str(error)
    return described


def add_shares(nodes: Iterable[Object], pods: Iterable[Object]) -> list[str]:
    """Enter every living pod's shares into the cards' lists; gives the pods whose allocation cannot be read."""
    cards = {(node["name"], card["uuid"]): card for node in nodes for card in node["cards"]}
    unreadable = []
    for pod in pods:
        found, metadata = annotations_of(pod), pod["metadata"]
        # HAMi frees a card when its pod ends; a pod that is being deleted still counts.
        if not found.get(POD_ALLOCATED) or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        try:
            allocation = parse_allocation(found[POD_ALLOCATED])
        except HamiFormatError as error:
            unreadable.append(f"{metadata['namespace']}/{metadata['name']}: {error}")
            continue
        for position, container in enumerate(allocation):
            for share in container:
                card = cards.get((found.get(POD_NODE), share.uuid))
                if card is not None:
                    card["shares"].append(
                        {
                            "namespace": metadata["namespace"],
                            "pod": metadata["name"],
                            "container": position,
                            "memory_mib": share.memory_mib,
                            "cores": share.cores,
                        }
                    )
    return unreadable


def add_sums(nodes: Iterable[Object]) -> Object:
    """Enter what is allocated and free into every card; gives the totals."""
    totals: Object = {"nodes": 0, "cards": 0, "memory_mib": 0, "cores": 0, "slots": 0, "allocatable_slots": 0}
    allocated = {"memory_mib": 0, "cores": 0, "slots": 0}
    for node in nodes:
        totals["nodes"] += 1
        totals["allocatable_slots"] += node["allocatable_slots"]
        for card in node["cards"]:
            taken = {key: sum(share[key] for share in card["shares"]) for key in ("memory_mib", "cores")}
            card["allocated"] = {**taken, "slots": len(card["shares"])}
            card["free"] = {key: card[key] - card["allocated"][key] for key in allocated}
            totals["cards"] += 1
            for key, amount in card["allocated"].items():
                totals[key] += card[key]
                allocated[key] += amount
    return {**totals, "allocated": allocated}


def not_ready(nodes: Iterable[Object], wanted: Mapping[str, Any]) -> list[str]:
    """What is still missing of the slots that are waited for."""
    found = {node["name"]: node for node in nodes}
    missing = []
    for name, slots in wanted.items():
        node = found.get(name)
        declared = sum(card["slots"] for card in node["cards"] if card["healthy"]) if node else 0
        offered = node["allocatable_slots"] if node else 0
        if offered != int(slots) or declared != int(slots):
            missing.append(f"{name} declares {declared} and offers {offered} of {slots} slots")
    return missing


class Reader:
    """Reads nodes and pods of one cluster."""

    def __init__(self, cluster: Cluster, params: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._names = set(params["nodes"] or ())
        service = f"{params['scheduler_namespace']}/services/{params['scheduler_service']}:monitor"
        self._metrics = f"/api/v1/namespaces/{service}/proxy/metrics"
        self._wait_for_scheduler = params["wait_for_scheduler"]
        self._query = {"labelSelector": params["label_selector"]} if params["label_selector"] else {}

    def nodes(self) -> list[Object]:
        now = datetime.now(timezone.utc)
        described = [
            describe_node(node, now)
            for node in self._cluster.list("/api/v1/nodes", **self._query)
            if not self._names or node["metadata"]["name"] in self._names
        ]
        told = ("cards", "allocatable_slots", "error", "lock")
        return [node for node in described if any(node[key] for key in told)]

    def unknown_to_scheduler(self, nodes: Iterable[Object], wanted: Mapping[str, Any]) -> list[str]:
        """What is still missing of the cards that HAMi's scheduler is to name in its metrics."""
        if not self._wait_for_scheduler:
            return []
        try:
            metrics = self._cluster.text(self._metrics)
        except ClusterError as error:
            return [f"HAMi's scheduler does not answer ({error})"]
        cards = [card for node in nodes if node["name"] in wanted for card in node["cards"] if card["healthy"]]
        return [f"HAMi's scheduler does not know card {card['uuid']}" for card in cards if card["uuid"] not in metrics]

    def pods(self) -> Iterable[Object]:
        return self._cluster.list("/api/v1/pods")


def read(reader: Reader, wanted: Mapping[str, Any], timeout_s: float) -> Object:
    """Read all, once the wanted slots are there. Raises ClusterError when they are not in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        nodes = reader.nodes()
        missing = not_ready(nodes, wanted) or reader.unknown_to_scheduler(nodes, wanted)
        if not missing:
            break
        if time.monotonic() > deadline:
            raise ClusterError(f"The cards were not registered within {timeout_s:g} s: {'; '.join(missing)}.")
        time.sleep(POLL_S)
    unreadable = add_shares(nodes, reader.pods())
    return {"nodes": nodes, "totals": add_sums(nodes), "unreadable_pods": unreadable}


def main() -> None:
    module = new_module(OPTIONS)
    params = module.params
    try:
        result = read(Reader(connect(module), params), params["wait_for_slots"] or {}, params["wait_timeout_s"])
    except ClusterError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
