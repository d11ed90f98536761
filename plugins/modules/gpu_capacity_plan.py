#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_capacity_plan
short_description: Says where GPU pods would land, which would be refused and why, and what would let them in
version_added: "0.1.0"
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - Takes the same cases as M(tenantry.gpu.gpu_scheduling_verify) and creates nothing. HAMi's own rules, its webhook's
    first and then its scheduler's, are applied to a cluster as it is now, to nodes that are only declared, or to both.
  - For every case it says whether its pods would fit, on which cards, and how many more would. For a case that does not
    fit it gives HAMi's reasons for each node and the smallest changes with which it does, each of them found by
    placing it.
  - Considered are the cards and what pods have of them, health, cordons, slots, memory and compute, types and UUIDs,
    NUMA nodes, policies and their weights, links between cards, init and several containers, the webhook's defaults,
    exclusive rule and denials, the namespace's ResourceQuotas with V(limits.nvidia.com/gpumem) and
    V(limits.nvidia.com/gpucores); of the nodes also their labels, their taints and whether they are unschedulable.
  - Not considered are CPU, memory and other resources of the nodes, affinity and spread constraints, preemption,
    volumes, the other limits of ResourceQuotas, admission by anybody else than HAMi, node locks, MIG (a card in that
    mode takes nothing), and what happens between now and the real pods.
  - Where several nodes are equally good, HAMi takes any of them; the plan takes the first by name, and tells how many
    there are.
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
  - tenantry.gpu.cases
options:
  from_cluster:
    description:
      - Whether to plan on a cluster's nodes as they are now. If not, no cluster is asked, and O(nodes) are all that
        there are.
    type: bool
    default: true
  nodes:
    description:
      - Nodes that are not there (yet), beside those of the cluster.
    type: list
    elements: dict
    suboptions:
      name:
        description: Name of the node. None of the cluster's nodes may have it.
        type: str
        required: true
      cards:
        description:
          - The cards of the node, each with a V(profile) (V(a100-40g), V(a100-80g), V(h100), V(h200), V(b200), V(l4),
            V(l40s), V(t4), V(rtx-4090)) or V(type) and V(memory_mib), and if wanted V(count), V(cores), V(slots),
            V(numa), V(mode) and V(healthy).
        type: list
        elements: dict
        required: true
      labels:
        description: Labels of the node, for O(cases[].node_selector).
        type: dict
  tolerated_taints:
    description:
      - Keys of taints that do not keep the pods off a node; V(*) is any. Cases have no tolerations of their own, so
        every other taint with the effect V(NoSchedule) or V(NoExecute) does, for example
        C(node.kubernetes.io/not-ready).
    type: list
    elements: str
    default: []
  namespace:
    description: The namespace of the pods; its ResourceQuotas count.
    type: str
    default: default
  quota:
    description: A quota of the namespace, instead of its ResourceQuotas.
    type: dict
    suboptions:
      memory_mib:
        description: Memory of all cards together, in MiB (V(limits.nvidia.com/gpumem)).
        type: int
      cores:
        description: Compute of all cards together, in percent of one card (V(limits.nvidia.com/gpucores)).
        type: int
  hami_version:
    description: Whose rules count.
    type: str
    choices: ["2.9", "2.10"]
    default: "2.10"
  node_policy:
    description: HAMi's policy for nodes (chart V(scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy)).
    type: str
    choices: [binpack, spread]
    default: binpack
  card_policy:
    description: HAMi's policy for the cards of a node (chart V(scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy)).
    type: str
    default: spread
  default_cards:
    description: Number of cards for a pod that asks for memory or compute alone; V(0) is none.
    type: int
    default: 1
  default_memory_mib:
    description: Memory for a pod that does not say how much, in MiB; V(0) is all of a card.
    type: int
    default: 0
  default_cores:
    description: Compute for a pod that does not say how much, in percent of a card.
    type: int
    default: 0
  scheduler_name:
    description: Name of HAMi's scheduler in pods.
    type: str
    default: hami-scheduler
  suggest_changes:
    description: Whether to look for changes with which the cases that do not fit would. That places them some hundred
      times.
    type: bool
    default: true
  count_up_to:
    description: How far to count how many more pods of each case would fit; V(0) does not count.
    type: int
    default: 1000
  on_mismatch:
    description: Whether a case that would come out otherwise than O(cases[].expect) says fails the task, or is only
      reported.
    type: str
    choices: [fail, report]
    default: report
notes:
  - C(docs/reference/rights/gpu_capacity_plan.yml) is the smallest ClusterRole with which the module works. With
    O(from_cluster=false) it needs no cluster.
seealso:
  - module: tenantry.gpu.gpu_scheduling_verify
  - module: tenantry.gpu.hami_device_info
  - plugin: tenantry.gpu.capacity_plan
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Would a team's jobs fit into a node that is not bought yet?
  tenantry.gpu.gpu_capacity_plan:
    from_cluster: false
    nodes:
      - name: w0
        cards: [{profile: a100-80g, count: 2}]
    cases:
      - name: notebooks
        replicas: 6
        memory_mib: 20000
        cores: 30
      - name: training
        cards: 2
        memory_mib: 60000
        cores: 50
  register: team_plan

- name: The plan in words
  ansible.builtin.debug:
    msg: "{{ team_plan.cases | map(attribute='verdict') }}"

- name: How many more notebooks does tenant-a take as it is now?
  tenantry.gpu.gpu_capacity_plan:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    cases:
      - {name: notebook, memory_mib: 20000, cores: 30}
  register: room

- name: The same with one more node
  tenantry.gpu.gpu_capacity_plan:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    nodes:
      - name: a-worker-1
        cards: [{profile: l4, count: 4}]
    cases:
      - {name: notebook, memory_mib: 20000, cores: 30}

- name: What the verification is going to expect holds by the rules alone
  tenantry.gpu.gpu_capacity_plan:
    from_cluster: false
    on_mismatch: fail
    nodes:
      - name: a-worker-0
        cards: [{profile: a100-80g}]
    cases:
      - name: share-three
        replicas: 3
        memory_mib: 20000
        cores: 30
        expect: {outcome: placed, spread: one_card}
      - name: core-exhausted
        memory_mib: 1000
        cores: 30
        while_running: [share-three]
        expect: {outcome: refused, reason: CardInsufficientCore}
      - name: freed
        cores: 100
        after: [share-three]
        expect: {outcome: placed}
"""

RETURN = r"""
fits:
  description: Whether the pods of all cases would be placed.
  returned: success, or failure because of O(on_mismatch)
  type: bool
  sample: false
as_expected:
  description: Whether all cases that have O(cases[].expect) would come out like that. Null if none has.
  returned: success, or failure because of O(on_mismatch)
  type: bool
  sample: true
cases:
  description: The cases in their order.
  returned: success, or failure because of O(on_mismatch)
  type: list
  elements: dict
  contains:
    name:
      description: Name of the case.
      type: str
      sample: core-exhausted
    fits:
      description: Whether all its pods would be placed.
      type: bool
      sample: false
    verdict:
      description: What would become of it, and the smallest change with which it would fit, in one or two sentences.
      type: str
      sample: >-
        core-exhausted: 1 pod refused: CardInsufficientCore on 1 node.
        It would fit with 20 cores fewer (10 instead of 30).
    placed:
      description: Number of pods that would be placed.
      type: int
      sample: 0
    not_placed:
      description: Number of pods that would not.
      type: int
      sample: 1
    why:
      description:
        - Why not, with the number of nodes for each of HAMi's reasons, or the webhook's words. Empty if all are.
      type: str
      sample: CardInsufficientCore on 1 node
    reasons:
      description: The number of nodes for each reason.
      type: dict
      sample: {CardInsufficientCore: 1}
    failed:
      description: The reason of each node, with the number of its cards for each of HAMi's.
      type: dict
      sample: {a-worker-0: 1/1 CardInsufficientCore}
    changes:
      description: Changes with each of which all pods of the case would be placed, the smallest first.
      type: list
      elements: dict
      contains:
        change:
          description: Its kind, V(policy), V(filter), V(memory), V(cores), V(cards), V(replicas), V(mark) (on a node or
            card), V(quota) or V(hardware).
          type: str
          sample: cores
        sentence:
          description: The change in words.
          type: str
          sample: 20 cores fewer (10 instead of 30).
    how_many_more:
      description:
        - How many more pods of the case would fit once all cases are placed, counted up to O(count_up_to). Null where
          HAMi would give them no card.
      type: int
      sample: 0
    expected:
      description: What is expected, in words. Null if nothing is.
      type: str
      sample: 1 pod refused with CardInsufficientCore
    as_expected:
      description: Whether it would come out as expected. Null if nothing is.
      type: bool
      sample: true
    pods:
      description: The pods of the case.
      type: list
      elements: dict
      contains:
        name:
          description: Name of the pod.
          type: str
          sample: share-three-0
        outcome:
          description:
            - V(placed), V(refused) by the scheduler, V(denied) by the webhook, or V(without_card), a pod that HAMi
              would let run without any.
          type: str
          sample: placed
        node:
          description: The node that it would be placed on. Empty if none.
          type: str
          sample: a-worker-0
        containers:
          description: The cards of each container and what it would have of them, init containers first.
          type: list
          elements: list
          sample: [[{uuid: GPU-d03f886b-1098-57c4-b967-802154236b7a, index: 0, memory_mib: 20000, cores: 30}]]
        tie_count:
          description: How many nodes would be equally good.
          type: int
          sample: 1
        ties:
          description: The first five of them by name.
          type: list
          elements: str
          sample: [a-worker-0]
totals:
  description: Sums over all cards that HAMi knows, with what is taken of them before the plan and after it.
  returned: success, or failure because of O(on_mismatch)
  type: dict
  sample:
    nodes: 1
    cards: 1
    slots: 10
    memory_mib: 81920
    cores: 100
    allocated_before: {slots: 0, memory_mib: 0, cores: 0}
    allocated_after: {slots: 3, memory_mib: 60000, cores: 90}
problems:
  description:
    - What could not be read of the cluster and was left out, or contradicts itself, each in a sentence that names the
      node or pod.
  returned: success, or failure because of O(on_mismatch)
  type: list
  elements: str
  sample: []
"""

from collections.abc import Mapping
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._capacity import Host
from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import Cluster, ClusterError, connect, new_module
from ansible_collections.tenantry.gpu.plugins.module_utils._devices import pod_state
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Quota, Version
from ansible_collections.tenantry.gpu.plugins.module_utils._plan_report import (
    PLAN_OPTIONS,
    cases_from_options,
    make_plan,
    quota_from_options,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import CaseError
from ansible_collections.tenantry.gpu.plugins.module_utils._snapshot import (
    SnapshotError,
    declared_hosts,
    hosts_of,
    quota_of,
)

OPTIONS: dict[str, Any] = {
    **PLAN_OPTIONS,
    "from_cluster": {"type": "bool", "default": True},
    "nodes": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "cards": {"type": "list", "elements": "dict", "required": True},
            "labels": {"type": "dict"},
        },
    },
    "tolerated_taints": {"type": "list", "elements": "str", "default": []},
    "on_mismatch": {"type": "str", "choices": ["fail", "report"], "default": "report"},
}


class State:
    """What a plan begins with: hosts, the namespace's quota, and what of it could not be read."""

    def __init__(self, declared: list[Host]) -> None:
        self.hosts = declared
        self.quota: Quota | None = None
        self.problems: list[str] = []

    def read(self, cluster: Cluster, namespace: str, version: Version, tolerated: list[str]) -> None:
        """Add a cluster as it is now. Raises ClusterError and SnapshotError."""
        # Of thousands of pods only what they say of cards is kept.
        pods = [pod for pod in map(pod_state, cluster.list("/api/v1/pods")) if pod]
        hosts, problems = hosts_of(cluster.list("/api/v1/nodes"), pods, version, tolerated)
        quotas = cluster.list(f"/api/v1/namespaces/{namespace}/resourcequotas")
        self.quota, more = quota_of(quotas, pods, namespace, version)
        twice = {host.name for host in hosts} & {host.name for host in self.hosts}
        if twice:
            raise SnapshotError(f"node {min(twice)} is in the cluster already; give the declared one another name.")
        if not any(host.node.cards for host in hosts):
            more.append("No node of the cluster has cards that HAMi knows; is HAMi's device plugin running?")
        self.hosts = [*hosts, *self.hosts]
        self.problems = [*problems, *more]


def plan(params: Mapping[str, Any], state: State) -> dict[str, Any]:
    """The module's result. Raises CaseError."""
    quota = quota_from_options(params, state.quota)
    result = make_plan(state.hosts, cases_from_options(params), params, quota)
    return {**result, "problems": state.problems}


def main() -> None:
    module = new_module(OPTIONS)
    params = module.params
    try:
        cases_from_options(params)
        if not params["from_cluster"] and not params["nodes"]:
            raise SnapshotError("There is nothing to plan on; give nodes, or from_cluster: true.")
        state = State(declared_hosts(params["nodes"] or []))
        if params["from_cluster"]:
            version, tolerated = Version(params["hami_version"]), params["tolerated_taints"]
            state.read(connect(module), params["namespace"], version, tolerated)
        result = plan(params, state)
    except (CaseError, ClusterError, SnapshotError) as error:
        module.fail_json(msg=str(error))
    if result["as_expected"] is False and params["on_mismatch"] == "fail":
        wrong = [case for case in result["cases"] if case["as_expected"] is False]
        module.fail_json(msg=" ".join(f"{case['verdict']} Expected: {case['expected']}." for case in wrong), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
