# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils._devices import pod_state
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Quota, Usage, Version
from ansible_collections.tenantry.gpu.plugins.module_utils._snapshot import (
    SnapshotError,
    declared_hosts,
    hosts_of,
    quota_of,
)

CARD = '{"id":"GPU-%s","count":10,"devmem":24576,"devcore":100,"type":"NVIDIA-L4","mode":"hami-core","health":true}'


def node(name="n1", register=f"[{CARD % 1}]", slots="10", labels=None, spec=None, **annotations):
    found = {f"hami.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    if register is not None:
        found["hami.io/node-nvidia-register"] = register
    return {
        "metadata": {"name": name, "annotations": found, "labels": labels},
        "spec": spec or {},
        "status": {"allocatable": {"nvidia.com/gpu": slots}},
    }


def pod(*given, **more):
    return pod_state(raw_pod(*given, **more))


def raw_pod(name="p", shares="GPU-1,NVIDIA,2000,30:;", on="n1", phase="Running", namespace="team", init=0, ended=()):
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {"hami.io/vgpu-node": on, "hami.io/vgpu-devices-allocated": shares},
        },
        "spec": {"initContainers": [{"name": f"i{number}"} for number in range(init)]},
        "status": {
            "phase": phase,
            "initContainerStatuses": [{"state": {"terminated": {"exitCode": code}}} for code in ended],
        },
    }


def test_a_host_has_cards_usage_cordons_and_labels():
    nodes = [node(labels={"gpu": "on"}, device_cordon="GPU-1")]
    (host,), problems = hosts_of(nodes, [pod(), pod("other", on="n2")])
    assert (host.name, host.labels, host.closed, problems) == ("n1", {"gpu": "on"}, "", [])
    assert host.node.usage == {"GPU-1": Usage(1, 2000, 30)}
    assert host.node.cordoned == {"GPU-1"}


def test_a_pod_that_has_ended_takes_nothing():
    assert pod(phase="Succeeded") is None


def test_init_containers_count_until_they_have_succeeded():
    shares = "GPU-1,NVIDIA,5000,50:;GPU-1,NVIDIA,2000,20:;"

    def usage(**more):
        (host,), _problems = hosts_of(
            [node()], [pod(shares=shares, init=1, **more)], more.pop("version", Version.V2_10)
        )
        return host.node.usage["GPU-1"]

    assert usage() == usage(ended=[1]) == Usage(1, 5000, 50)
    assert usage(ended=[0]) == Usage(1, 2000, 20)
    (host,), _problems = hosts_of([node()], [pod(shares=shares, init=1)], Version.V2_9)
    assert host.node.usage["GPU-1"] == Usage(2, 7000, 70)


@pytest.mark.parametrize(
    ("spec", "closed"),
    [
        ({"unschedulable": True}, "node is unschedulable"),
        (
            {
                "taints": [
                    {"key": "a", "effect": "PreferNoSchedule"},
                    {"key": "k", "value": "v", "effect": "NoSchedule"},
                ]
            },
            "node has untolerated taint k=v:NoSchedule",
        ),
        ({"taints": [{"key": "gone", "effect": "NoExecute"}]}, "node has untolerated taint gone:NoExecute"),
        ({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}, ""),
    ],
)
def test_nodes_that_take_no_pods(spec, closed):
    (host,), _problems = hosts_of([node(spec=spec)], [])
    assert host.closed == closed


@pytest.mark.parametrize(
    ("nodes", "pods", "problem"),
    [
        ([node(register="[{]")], [], "node n1: register '[{]' is not JSON"),
        ([node(register=f"[{CARD % 1},{CARD % 1}]")], [], "node n1: card 'GPU-1' stands twice"),
        ([node(node_nvidia_score="{")], [], "node n1: pair scores '{' is not JSON"),
        ([node(slots="0")], [], "node n1: declares 1 cards, but no nvidia.com/gpu is allocatable on it."),
        ([node(slots="many")], [], "node n1: declares 1 cards, but no nvidia.com/gpu is allocatable on it."),
        ([node()], [pod("odd", "GPU-1,NVIDIA,much,30:;")], "pod team/odd: memory 'much' in"),
        ([node()], [pod(shares="GPU-2,NVIDIA,1,1:;")], "node n1: pods have shares of card GPU-2, which the node does"),
        ([node()], [pod(shares="GPU-1,NVIDIA,30000,30:;")], "node n1: more is allocated of card GPU-1 than it has."),
    ],
)
def test_what_cannot_be_read_is_a_problem(nodes, pods, problem):
    _hosts, (found,) = hosts_of(nodes, pods)
    assert found.startswith(problem)


@given(st.text(), st.text(), st.text(), st.text())
def test_no_text_breaks_a_snapshot(register, cordon, score, shares):
    nodes = [node(register=register, device_cordon=cordon, node_nvidia_score=score)]
    _hosts, problems = hosts_of(nodes, [pod(shares=shares)])
    assert all(problem.startswith(("node n1: ", "pod team/p: ")) for problem in problems)


def quota(name="q", **hard):
    return {
        "metadata": {"name": name},
        "spec": {"hard": {f"limits.nvidia.com/{key}": text for key, text in hard.items()}},
    }


def test_a_quota_counts_the_namespace_s_pods_on_all_nodes():
    pods = [pod(), pod("b", "GPU-9,NVIDIA,1000,5:;", on="n2"), pod("c", namespace="other")]
    found, problems = quota_of([quota(gpumem="40k"), quota(gpucores="150")], pods, "team")
    assert (found, problems) == (Quota(40000, 150, Usage(0, 3000, 35)), [])
    assert quota_of([quota(), {"metadata": {"name": "empty"}, "spec": {}}], pods, "team") == (None, [])


@pytest.mark.parametrize(
    ("quotas", "memory_mib", "problem"),
    [
        ([quota(gpumem="x")], None, "ResourceQuota team/q: limits.nvidia.com/gpumem: 'x' is no Kubernetes quantity."),
        ([quota(gpumem="500m")], None, "ResourceQuota team/q: limits.nvidia.com/gpumem 500m is no whole number"),
        (
            [quota(gpumem="5k"), quota("r", gpumem="4k")],
            4000,
            "ResourceQuota team/r: limits.nvidia.com/gpumem stands in",
        ),
    ],
)
def test_a_quota_that_hami_reads_otherwise_is_a_problem(quotas, memory_mib, problem):
    found, (told,) = quota_of(quotas, [], "team")
    assert (found.memory_mib if found else None) == memory_mib
    assert told.startswith(problem)


def test_nodes_are_declared_by_profile_or_as_hami_device_info_gives_them():
    seen = {
        "name": "b",
        "allocatable_slots": 10,
        "cards": [
            {
                "uuid": "GPU-1",
                "index": 0,
                "type": "NVIDIA-L4",
                "slots": 10,
                "memory_mib": 24576,
                "cores": 100,
                "numa": -1,
                "mode": "hami-core",
                "healthy": True,
                "cordoned": True,
                "allocated": {"slots": 1, "memory_mib": 2000, "cores": 30},
                "free": {"slots": 9, "memory_mib": 22576, "cores": 70},
                "shares": [],
            }
        ],
    }
    a, b, gone = declared_hosts(
        [
            {"name": "a", "cards": [{"profile": "l4", "count": "2"}], "labels": {"zone": "x"}},
            seen,
            {**seen, "name": "c", "allocatable_slots": 0},
        ]
    )
    assert (len(a.node.cards), a.labels) == (2, {"zone": "x"})
    assert b.node.usage == {"GPU-1": Usage(1, 2000, 30)}
    assert b.node.cordoned == {"GPU-1"}
    assert gone.node.cards == ()


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("w0", "'w0' is no list of nodes"),
        ([{"cards": []}], "is no node; give each a name and cards"),
        ([{"name": "w0", "cards": "l4"}], "node w0: cards 'l4' is no list of cards"),
        ([{"name": "w0", "labels": "x"}], "node w0: labels 'x' is no dictionary"),
        ([{"name": "w0", "cards": [{"profile": "voodoo"}]}], "node w0: card profile 'voodoo' is unknown"),
        ([{"name": "w0"}, {"name": "w0"}], "node w0 stands twice"),
        ([{"name": "w0", "cards": [{"uuid": "a"}, {"profile": "l4"}]}], "node w0: mixes cards with and without uuid"),
        (
            [{"name": "w0", "cards": [{"uuid": "a"}, {"uuid": "a"}]}],
            "node w0: card uuid 'a' is no text, or stands twice",
        ),
        ([{"name": "w0", "cards": [{"uuid": "a", "slots": "ten"}]}], "node w0: slots 'ten' of a card is no number"),
        ([{"name": "w0", "cards": [{"uuid": "a", "allocated": 3}]}], "node w0: allocated 3 of card a is no dictionary"),
    ],
)
def test_declarations_that_cannot_be_understood_are_named(nodes, message):
    with pytest.raises(SnapshotError, match=message):
        declared_hosts(nodes)
