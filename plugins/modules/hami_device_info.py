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
  - Reads the cards of every node, the shares that pods have of them and the locks of the nodes, from annotations,
    and counts them as HAMi's scheduler does.
  - Names what contradicts itself, such as a card that is given away above its capacity or a lock without a holder.
  - Works with HAMi 2.6 to 2.10. What an older one left is named.
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
notes:
  - C(docs/reference/rights/hami_device_info.yml) is the smallest ClusterRole that it works with.
  - The pods of all namespaces are read, page by page, also where only some are asked for, so that the sums are true.
options:
  nodes:
    description: Names of the nodes to return; all if not given.
    type: list
    elements: str
  label_selector:
    description: Labels of the nodes to return, for example V(gpu=on).
    type: str
  namespaces:
    description: Namespaces whose shares and pods to return; all if not given. Sums count those of all namespaces.
    type: list
    elements: str
  states:
    description:
      - Cards to return, those in any of these states; all if not given. Nodes that have none are left out then.
      - V(healthy) and V(unhealthy) as the node declares it, V(cordoned) if new pods are kept off the card,
        V(idle) if nobody has a share of it, V(shared) if somebody has, V(full) if it has no slot, memory or cores left.
    type: list
    elements: str
    choices: [healthy, unhealthy, cordoned, idle, shared, full]
  pods:
    description:
      - V(all) reads every pod that has not ended, as HAMi itself does.
      - V(labelled) reads those alone that HAMi labelled with C(hami.io/vgpu-node) when it gave them cards. This is
        faster where most pods use no card, and finds no pod that escaped HAMi and no forged allocation without label.
    type: str
    choices: [all, labelled]
    default: all
  stuck_after_s:
    description:
      - Age in seconds from which a lock, or an allocation that is not finished, counts as a contradiction.
    type: int
    default: 60
  scheduler_name:
    description: Name of HAMi's scheduler in pods. An allocation on a pod of another scheduler counts as forged.
    type: str
    default: hami-scheduler
  hami_version:
    description:
      - Whose way of counting init containers is used, V(2.9) for it and older ones, which add them up with the others.
      - If not given, it is read off the image of HAMi's scheduler, and V(2.10) where that does not tell.
    type: str
    choices: ["2.9", "2.10"]
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

- name: Cards on which nothing more fits, and who in the team's namespace uses them
  tenantry.gpu.hami_device_info:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    states: [full]
    namespaces: [team]

- name: Nothing contradicts itself
  ansible.builtin.assert:
    that: tenant_devices.contradictions | length == 0
    fail_msg: "{{ tenant_devices.contradictions | map(attribute='message') | join(' ') }}"

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
    capacity:
      description: Sums over all cards of the node.
      type: dict
      sample: {slots: 10, memory_mib: 81920, cores: 100}
    allocated:
      description: What is taken of all cards of the node.
      type: dict
      sample: {slots: 1, memory_mib: 20000, cores: 30}
    free:
      description: What is left of all cards of the node.
      type: dict
      sample: {slots: 9, memory_mib: 61920, cores: 70}
    handshake:
      description:
        - HAMi's handshake, V(requesting), V(reported) or V(deleted), and when, by the clock and in the time zone of who
          wrote it. Null if there is none. Since 2.8 it says nothing of whether the node lives.
      type: dict
      sample: {state: requesting, at: "2026-11-30 04:05:06"}
    error:
      description: Why annotations of the node cannot be read. Empty if all can.
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
          description:
            - What its shares take, as HAMi counts it. With 2.10 a pod takes the sum of its containers or the most that
              one of its init containers needs, whichever is more, so that this may be less than the sum of the shares.
          type: dict
          sample: {memory_mib: 20000, cores: 30, slots: 1}
        free:
          description: What is left of it. Negative if it is given away above its capacity.
          type: dict
          sample: {memory_mib: 61920, cores: 70, slots: 9}
        shares:
          description: Who has which share of it. The container is empty where the allocation does not tell.
          type: list
          elements: dict
          sample: [{namespace: team, pod: train, container: main, init: false, memory_mib: 20000, cores: 30}]
totals:
  description: Sums over the nodes and cards that are returned, healthy or not.
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
    free: {memory_mib: 61920, cores: 70, slots: 9}
contradictions:
  description:
    - What cannot both be right, of the nodes and namespaces that are returned. Empty in a cluster that is well.
  returned: success
  type: list
  elements: dict
  contains:
    kind:
      description:
        - V(overallocated), a card that is given away above its capacity.
        - V(lock_without_holder), a lock whose pod is gone or has ended; V(lock_held_long), one older than
          O(stuck_after_s) whose pod lives.
        - V(register_without_allocatable), cards whose slots kubelet does not offer; V(allocatable_without_register),
          slots of a node that declares no card to HAMi.
        - V(never_allocated), a pod that runs on a node and got no card, or whose allocation was not finished within
          O(stuck_after_s); V(never_bound), one that HAMi gave shares and that was not bound within that time.
        - V(forged_allocation), an allocation that HAMi's scheduler did not make, or not on this node or this card.
        - V(unhealthy_card_shared), V(duplicate_card), V(card_without_capacity), a card that is unhealthy and has
          shares, that two nodes declare, that has no slots or no memory.
        - V(unreadable), an annotation that is in no format of HAMi; V(old_hami), one of a HAMi before 2.6.
      type: str
      sample: lock_without_holder
    message:
      description: One sentence that says what and where.
      type: str
      sample: a-worker-0 has been locked for 312 s for team/train, which is gone or has ended.
    node:
      description: Name of the node. Empty if it concerns none.
      type: str
      sample: a-worker-0
    card:
      description: UUID of the card. Empty if it concerns none.
      type: str
      sample: ""
    namespace:
      description: Namespace of the pod. Empty if it concerns none.
      type: str
      sample: team
    pod:
      description: Name of the pod. Empty if it concerns none.
      type: str
      sample: train
hami:
  description: Whether HAMi is there.
  returned: success
  type: dict
  contains:
    nodes:
      description: Number of nodes that declare cards to HAMi.
      type: int
      sample: 1
    scheduler_found:
      description: Whether a pod of HAMi's scheduler was seen. Null if not looked for, with O(pods=labelled).
      type: bool
      sample: true
    version:
      description: Its version, as the image of its scheduler tells it. Empty if it does not.
      type: str
      sample: "2.10"
    before_2_6:
      description: Names of the nodes with annotations that only a HAMi before 2.6 writes.
      type: list
      elements: str
      sample: []
"""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import Cluster, ClusterError, connect, new_module
from ansible_collections.tenantry.gpu.plugins.module_utils._devices import (
    LOCK_WITHOUT_HOLDER,
    OLD_HAMI,
    STATES,
    Judge,
    NodeState,
    PodState,
    describe_node,
    describe_totals,
    enter_shares,
    node_state,
    pod_state,
    scheduler_version,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import POD_NODE, SCHEDULER_NAME

Object = dict[str, Any]

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
LIVING = "status.phase!=Succeeded,status.phase!=Failed"
LAST_THAT_ADDS_UP = (2, 9)
POLL_S = 0.5
OPTIONS: dict[str, Any] = {
    "nodes": {"type": "list", "elements": "str"},
    "label_selector": {"type": "str"},
    "namespaces": {"type": "list", "elements": "str"},
    "states": {"type": "list", "elements": "str", "choices": list(STATES)},
    "pods": {"type": "str", "choices": ["all", "labelled"], "default": "all"},
    "stuck_after_s": {"type": "int", "default": 60},
    "scheduler_name": {"type": "str", "default": SCHEDULER_NAME},
    "hami_version": {"type": "str", "choices": ["2.9", "2.10"]},
    "wait_for_slots": {"type": "dict"},
    "wait_for_scheduler": {"type": "bool", "default": False},
    "scheduler_namespace": {"type": "str", "default": "hami-system"},
    "scheduler_service": {"type": "str", "default": "hami-scheduler"},
    "wait_timeout_s": {"type": "int", "default": 60},
}


def awaited_slots(params: Mapping[str, Any]) -> dict[str, int]:
    """The slots that are waited for, by node name. Raises ClusterError where one is no number."""
    try:
        return {name: int(slots) for name, slots in (params["wait_for_slots"] or {}).items()}
    except (TypeError, ValueError) as error:
        raise ClusterError(f"wait_for_slots: give the number of slots for each node name ({error}).") from error


def not_ready(nodes: Mapping[str, NodeState], wanted: Mapping[str, int]) -> list[str]:
    """What is still missing of the slots that are waited for."""
    missing = []
    for name, slots in wanted.items():
        node = nodes.get(name) or NodeState(name)
        declared = sum(state.card.slots for state in node.cards if state.card.healthy)
        if node.allocatable_slots != slots or declared != slots:
            missing.append(f"{name} declares {declared} and offers {node.allocatable_slots} of {slots} slots")
    return missing


class Reader:
    """Reads nodes and pods of one cluster, of each only what concerns cards."""

    def __init__(self, cluster: Cluster, params: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._params = params
        service = f"{params['scheduler_namespace']}/services/{params['scheduler_service']}:monitor"
        self._metrics = f"/api/v1/namespaces/{service}/proxy/metrics"
        # Of the scheduler's pod, as scheduler_version gives it.
        self.version: tuple[int, int] | None = None

    def nodes(self) -> dict[str, NodeState]:
        return {node["metadata"]["name"]: node_state(node) for node in self._cluster.list(NODES)}

    def chosen(self, nodes: Iterable[str]) -> set[str]:
        """Those of the nodes that the options ask for."""
        chosen = set(nodes)
        if self._params["nodes"]:
            chosen &= set(self._params["nodes"])
        if self._params["label_selector"]:
            labelled = self._cluster.list(NODES, labelSelector=self._params["label_selector"])
            chosen &= {node["metadata"]["name"] for node in labelled}
        return chosen

    def pods(self, holders: set[tuple[str, str]]) -> tuple[list[PodState], frozenset[tuple[str, str]]]:
        """The pods that have to do with cards, and which of ``holders`` are there and have not ended."""
        query = {"fieldSelector": LIVING}
        if self._params["pods"] == "labelled":
            query["labelSelector"] = POD_NODE
        found, living = [], set()
        for pod in self._cluster.list(PODS, **query):
            metadata = pod["metadata"]
            if (metadata["namespace"], metadata["name"]) in holders:
                living.add((metadata["namespace"], metadata["name"]))
            self.version = self.version or scheduler_version(pod)
            state = pod_state(pod)
            if state:
                found.append(state)
        return found, frozenset(living)

    def unknown_to_scheduler(self, nodes: Mapping[str, NodeState], wanted: Mapping[str, int]) -> list[str]:
        """What is still missing of the cards that HAMi's scheduler is to name in its metrics."""
        if not self._params["wait_for_scheduler"]:
            return []
        try:
            metrics = self._cluster.text(self._metrics)
        except ClusterError as error:
            return [f"HAMi's scheduler does not answer ({error})"]
        awaited = [nodes[name] for name in wanted if name in nodes]
        cards = [state.card for node in awaited for state in node.cards if state.card.healthy]
        return [f"HAMi's scheduler does not know card {card.uuid}" for card in cards if card.uuid not in metrics]

    def still_locked(self, node: NodeState) -> bool:
        """Whether a node is still locked as it was when it was read; its holder may have ended since."""
        try:
            now = node_state(self._cluster.get(f"{NODES}/{node.name}"))
        except ClusterError as error:
            if error.status != 404:
                raise
            return False
        return now.lock == node.lock


def wait(reader: Reader, wanted: Mapping[str, int], timeout_s: float) -> dict[str, NodeState]:
    """The nodes, once the wanted slots are there. Raises ClusterError when they are not in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        nodes = reader.nodes()
        missing = not_ready(nodes, wanted) or reader.unknown_to_scheduler(nodes, wanted)
        if not missing:
            return nodes
        if time.monotonic() > deadline:
            raise ClusterError(f"The cards were not registered within {timeout_s:g} s: {'; '.join(missing)}.")
        time.sleep(POLL_S)


def read(reader: Reader, params: Mapping[str, Any]) -> Object:
    """Read all, and give what the options ask for. Raises ClusterError."""
    nodes = wait(reader, awaited_slots(params), params["wait_timeout_s"])
    chosen = reader.chosen(nodes)
    holders = {(node.lock.namespace, node.lock.pod) for node in nodes.values() if node.lock}
    pods, living = reader.pods(holders)
    enter_shares(nodes.values(), pods, adds_up(reader.version, params["hami_version"]))
    now = datetime.now(timezone.utc)
    judge = Judge(nodes, living, now, params["stuck_after_s"], params["scheduler_name"])
    # A pod may name a node that does not exist, which is in no choice.
    every = not (params["nodes"] or params["label_selector"])
    namespaces, states = frozenset(params["namespaces"] or ()), set(params["states"] or ())
    described = []
    for name, node in nodes.items():
        cards = [card for card in node.cards if not states or card.states & states]
        if name in chosen and node.concerns_cards and (cards or not states):
            described.append(describe_node(node, cards, namespaces, now))
    return {
        "nodes": described,
        "totals": describe_totals(described),
        "contradictions": [
            vars(each)
            for each in judge.all(pods)
            if (every or each.node in chosen)
            and (not namespaces or each.namespace in ("", *namespaces))
            and (each.kind != LOCK_WITHOUT_HOLDER or reader.still_locked(nodes[each.node]))
        ],
        "hami": {
            "nodes": sum(1 for node in nodes.values() if node.cards),
            # Where only pods with shares are read, the scheduler's is not among them.
            "scheduler_found": bool(reader.version) if params["pods"] == "all" else None,
            "version": ".".join(map(str, reader.version)) if reader.version and any(reader.version) else "",
            "before_2_6": sorted(node.name for node in nodes.values() if node.old),
        },
    }


def adds_up(found: tuple[int, int] | None, told: str | None) -> bool:
    """Whether this HAMi counts init containers as all others, by its version as found or told."""
    version = tuple(map(int, told.split("."))) if told else found
    return bool(version) and (0, 0) < version <= LAST_THAT_ADDS_UP


def warnings_of(result: Object) -> list[str]:
    """What a reader of the result has to know first: that HAMi is absent, or too old."""
    hami = result["hami"]
    found = []
    if not hami["nodes"]:
        scheduler = " and no pod of its scheduler runs" if hami["scheduler_found"] is False else ""
        found.append(
            f"No node declares a card to HAMi{scheduler}: install HAMi, or see why its device plugin registers none."
        )
    found += [each["message"] for each in result["contradictions"] if each["kind"] == OLD_HAMI]
    return found


def main() -> None:
    module = new_module(OPTIONS)
    try:
        result = read(Reader(connect(module), module.params), module.params)
    except ClusterError as error:
        module.fail_json(msg=str(error))
    for warning in warnings_of(result):
        module.warn(warning)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
