# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A fleet's answers are those of place(), pod after pod, whatever was remembered in between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils._capacity import SELECTOR_MISMATCH, Fleet, Host, Landing
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import Card, cards_from_profiles
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    Node,
    PlacementError,
    PodRequest,
    Quota,
    Refusal,
    Request,
    Rules,
    Usage,
    Version,
    add_usage,
    place,
    usage_of,
)

GPU_POLICIES = st.sampled_from(("binpack", "spread", "mutex", "topology-aware", "numa", "numa,binpack"))
# Round amounts, so that nodes become alike and cards full.
REQUESTS = st.builds(
    Request,
    count=st.integers(0, 3),
    memory_mib=st.sampled_from((0, 4000, 8000, 12000)),
    memory_percent=st.sampled_from((None, 25, 50, 100)),
    cores=st.sampled_from((0, 25, 50, 100)),
)
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "hami.io/gpu-scheduler-policy": GPU_POLICIES,
        "hami.io/node-scheduler-policy": st.sampled_from(("binpack", "spread")),
        "nvidia.com/numa-bind": st.just("true"),
        "nvidia.com/use-gpuuuid": st.sampled_from(("GPU-n0-0", "GPU-n1-0, GPU-n2-1")),
        "nvidia.com/nouse-gpuuuid": st.sampled_from(("GPU-n0-0", "GPU-n3-1")),
        "nvidia.com/use-gputype": st.sampled_from(("L4", "T4")),
    },
)
PODS = st.builds(
    PodRequest,
    st.lists(REQUESTS, max_size=1).map(tuple),
    st.lists(REQUESTS, min_size=1, max_size=2).map(tuple),
    ANNOTATIONS,
).filter(lambda pod: pod.asks_cards)


@st.composite
def nodes(draw):
    made = []
    for number in range(draw(st.integers(1, 5))):
        name = f"n{number}"
        kind = draw(st.sampled_from(("NVIDIA-L4", "NVIDIA-T4")))
        cards = tuple(
            Card(f"GPU-{name}-{index}", index, draw(st.integers(1, 3)), 24000, 100, kind, index % 2)
            for index in range(draw(st.integers(0, 3)))
        )
        cordoned = frozenset(card.uuid for card in cards if draw(st.integers(0, 9)) == 0)
        scores = {cards[0].uuid: {cards[-1].uuid: 3}} if cards and draw(st.booleans()) else {}
        usage = {card.uuid: Usage(1, 4000, 25) for card in cards if draw(st.booleans())}
        made.append(Node(name, cards, usage, cordoned, scores))
    return made


RULES = Rules()
QUOTAS = st.one_of(st.none(), st.builds(Quota, st.sampled_from((None, 20000)), st.sampled_from((None, 120))))


def after(node, usage):
    return replace(node, usage=add_usage([node.usage, usage]))


@settings(deadline=None)
@given(
    nodes(),
    st.lists(PODS, max_size=12),
    QUOTAS,
    st.sampled_from(("binpack", "spread")),
    st.sampled_from(Version),
    st.data(),
)
def test_a_fleet_decides_as_place_does(nodes_, pods, quota, node_policy, version, data):
    rules = Rules(version, node_policy)
    fleet = Fleet((Host(node) for node in nodes_), rules, quota)
    now = {node.name: node for node in nodes_}
    landed = []
    for pod in pods:
        expected = place(pod, list(now.values()), rules, quota)
        if data.draw(st.booleans(), label="goes on as a copy"):
            fleet = fleet.copy()
        landing = fleet.place(pod)
        if isinstance(expected, Refusal):
            assert landing == expected
            continue
        assert isinstance(landing, Landing)
        assert (landing.node, landing.allocation) == (expected.node, expected.allocation)
        assert (landing.ties, landing.tie_count) == (expected.ties[:5], len(expected.ties))
        before = now[landing.node], quota
        usage = usage_of(expected.written, len(pod.init), version=rules.version)
        now[landing.node] = after(now[landing.node], usage)
        if quota:
            quota = replace(quota, used=add_usage([{"": quota.used}, *({"": taken} for taken in usage.values())])[""])
            quota = replace(quota, used=replace(quota.used, slots=0))
            assert fleet.quota == quota
        landed.append(landing)
        if data.draw(st.integers(0, 3), label="is taken away again") == 0:
            fleet.release(landing)
            now[landing.node], quota = before
    for name, node in now.items():
        assert fleet.host(name).node.usage == {**{card.uuid: Usage() for card in node.cards}, **node.usage}


def l4(name, count=1, **host):
    return Host(Node(name, tuple(cards_from_profiles(name, [{"profile": "l4", "count": count}]))), **host)


def wanting(memory_mib=1000, cores=10, count=1, **annotations):
    return PodRequest((), (Request(count, memory_mib, None, cores),), annotations)


def test_nodes_that_kube_scheduler_leaves_out_are_named_with_the_reason():
    fleet = Fleet([l4("a", closed="unschedulable"), l4("b", labels={"zone": "x"}), l4("c"), Host(Node("d"))], RULES)
    assert fleet.place(wanting(), {"zone": "x"}).node == "b"
    refused = fleet.place(wanting(30000), {"zone": "x"})
    assert refused.failed == {
        "a": "unschedulable",
        "b": "1/1 CardInsufficientMemory",
        "c": SELECTOR_MISMATCH,
        "d": SELECTOR_MISMATCH,
    }
    assert fleet.place(wanting(30000)).failed["d"] == "node unregistered"


def test_of_equal_nodes_the_first_by_name_is_taken_and_the_others_are_told():
    fleet = Fleet([l4(f"n{number}") for number in range(8)], RULES)
    landing = fleet.place(wanting())
    assert (landing.node, landing.ties, landing.tie_count) == ("n0", ("n0", "n1", "n2", "n3", "n4"), 8)


def test_a_copy_goes_its_own_way():
    fleet = Fleet([l4("a")], RULES, Quota(memory_mib=24000))
    other = fleet.copy()
    assert other.place(wanting(20000)).node == "a"
    assert isinstance(other.place(wanting(20000)), Refusal)
    assert fleet.quota.used == Usage()
    assert fleet.place(wanting(20000)).node == "a"


def test_a_host_can_be_added_and_changed():
    fleet = Fleet([l4("a")], RULES)
    fleet.place(wanting(20000))
    assert isinstance(fleet.place(wanting(20000)), Refusal)
    assert fleet.with_hosts([l4("b")]).place(wanting(20000)).node == "b"
    host = fleet.host("a")
    more = l4("a", 2).node.cards
    wider = fleet.with_hosts([replace(host, node=replace(host.node, cards=more))])
    assert wider.place(wanting(20000)).allocation[0][0].uuid == more[1].uuid
    assert isinstance(fleet.place(wanting(20000)), Refusal)


def test_a_raised_quota_lets_pods_in():
    fleet = Fleet([l4("a")], RULES, Quota(memory_mib=5000))
    assert fleet.place(wanting(6000)).failed == {"a": "1/1 ResourceQuotaNotFit"}
    assert fleet.with_quota(Quota(memory_mib=6000)).place(wanting(6000)).node == "a"


def test_weights_that_cannot_be_read_are_told():
    with pytest.raises(PlacementError, match="at least one weight"):
        Fleet([l4("a")], RULES).place(wanting(**{"hami.io/device-scoring-weights": "slot=0,core=0,memory=0"}))
