# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Quota, Usage, Version
from ansible_collections.tenantry.gpu.plugins.module_utils._snapshot import SnapshotError, declared_hosts
from ansible_collections.tenantry.gpu.plugins.modules import gpu_capacity_plan as module

CARD = '[{"id":"GPU-1","count":10,"devmem":24576,"devcore":100,"type":"NVIDIA-L4","mode":"hami-core","health":true}]'
NODE = {
    "metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": CARD}},
    "status": {"allocatable": {"nvidia.com/gpu": "10"}},
}
POD = {
    "metadata": {
        "name": "p",
        "namespace": "team",
        "annotations": {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,20000,30:;"},
    },
    "status": {"phase": "Running"},
}
QUOTA = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "22000"}}}
PARAMS = {name: option.get("default") for name, option in module.OPTIONS.items()}


class FakeCluster:
    def __init__(self, nodes=(NODE,), pods=(POD, {"metadata": {"name": "plain"}}), quotas=(QUOTA,)):
        self.things = {
            "/api/v1/nodes": nodes,
            "/api/v1/pods": pods,
            "/api/v1/namespaces/team/resourcequotas": quotas,
        }

    def list(self, path, **query):
        return iter(self.things[path])


def planned(cluster, declared=(), **params):
    params = {**PARAMS, "namespace": "team", **params}
    state = module.State(declared_hosts(list(declared)))
    state.read(cluster, params["namespace"], Version(params["hami_version"]), params["tolerated_taints"])
    return module.plan(params, state)


def case(**asked):
    return {"name": "x", "replicas": 1, **asked}


def test_a_cluster_s_state_counts():
    result = planned(FakeCluster(), cases=[case(memory_mib=1000, cores=10)])
    assert result["fits"]
    assert result["cases"][0]["how_many_more"] == 1
    assert result["totals"]["allocated_before"] == {"slots": 1, "memory_mib": 20000, "cores": 30}
    assert (result["as_expected"], result["problems"]) == (None, [])


def test_the_namespace_s_quota_counts_unless_another_is_given():
    asked = [case(memory_mib=3000, cores=10)]
    assert planned(FakeCluster(), cases=asked)["cases"][0]["why"] == "exceeding resource quota"
    assert planned(FakeCluster(), cases=asked, quota={"memory_mib": 23000, "cores": None})["fits"]
    assert planned(FakeCluster(quotas=()), cases=asked)["fits"]


def test_what_the_namespace_has_taken_counts_on_any_quota():
    state = module.State([])
    state.read(FakeCluster(), "team", Version.V2_10, [])
    assert module.quota_from_options({"quota": {"cores": 50}}, state.quota) == Quota(None, 50, Usage(0, 20000, 30))


def test_declared_nodes_come_beside_those_of_the_cluster():
    more = {"name": "n2", "cards": [{"profile": "l4"}]}
    result = planned(FakeCluster(quotas=()), [more], cases=[case(memory_mib=20000)])
    assert result["cases"][0]["pods"][0]["node"] == "n2"
    with pytest.raises(SnapshotError, match="node n1 is in the cluster already; give the declared one another name"):
        planned(FakeCluster(), [{**more, "name": "n1"}], cases=[case(cards=1)])


def test_taints_count_unless_they_are_tolerated():
    tainted = {**NODE, "spec": {"taints": [{"key": "fake", "effect": "NoSchedule"}]}}
    asked = [case(memory_mib=1000, cores=10)]
    assert planned(FakeCluster([tainted]), cases=asked)["cases"][0]["failed"] == {
        "n1": "node has untolerated taint fake:NoSchedule"
    }
    assert planned(FakeCluster([tainted]), cases=asked, tolerated_taints=["fake"])["fits"]
    assert planned(FakeCluster([tainted]), cases=asked, tolerated_taints=["*"])["fits"]


def test_a_cluster_without_cards_is_a_problem_and_no_error():
    result = planned(FakeCluster(nodes=(), pods=(), quotas=()), cases=[case(cards=1)])
    assert result["problems"] == ["No node of the cluster has cards that HAMi knows; is HAMi's device plugin running?"]
    assert result["cases"][0]["why"] == "there is no node"
