# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Single rules with answers worked out by hand, and what must hold for any input.

The decisions that HAMi itself made are replayed in tests/unit/bench/test_replay.py.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    Card,
    Share,
    cards_from_profiles,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    Node,
    Placement,
    PlacementError,
    PodRequest,
    Refusal,
    Request,
    Rules,
    Usage,
    add_usage,
    mutate,
    parse_quantity,
    parse_weights,
    place,
    reason_names,
    refusal_messages,
    success_message,
    usage_of,
)

# --- what must hold for any input ---

REQUESTS = st.builds(
    Request,
    count=st.integers(0, 4),
    memory_mib=st.integers(0, 30000),
    memory_percent=st.one_of(st.none(), st.integers(1, 100)),
    cores=st.integers(0, 120),
)
POLICIES = st.sampled_from(("binpack", "spread", "mutex", "topology-aware", "numa", "numa,binpack", "nonsense"))
MARKS = st.fixed_dictionaries(
    {"hami.io/gpu-scheduler-policy": POLICIES},
    optional={"nvidia.com/numa-bind": st.just("true"), "hami.io/node-scheduler-policy": POLICIES},
)
PODS = st.builds(
    PodRequest,
    st.lists(REQUESTS, max_size=2).map(tuple),
    st.lists(REQUESTS, min_size=1, max_size=3).map(tuple),
    MARKS,
)


@st.composite
def clusters(draw):
    nodes = []
    for number in range(draw(st.integers(1, 3))):
        cards = tuple(
            Card(f"GPU-{number}-{index}", index, draw(st.integers(1, 4)), 24576, 100, "NVIDIA-L4", index % 2)
            for index in range(draw(st.integers(0, 4)))
        )
        nodes.append(Node(f"n{number}", cards))
    return nodes


@given(clusters(), st.lists(PODS, max_size=6))
def test_no_card_is_ever_given_beyond_what_it_has(nodes, pods):
    taken = {node.name: [] for node in nodes}
    for pod in (pod for pod in pods if pod.asks_cards):
        now = [Node(node.name, node.cards, add_usage(taken[node.name])) for node in nodes]
        decision = place(pod, now)
        if isinstance(decision, Refusal):
            assert set(decision.failed) == {node.name for node in nodes}
            continue
        for asked, shares in zip(pod.all, decision.allocation):
            assert len({share.uuid for share in shares}) == len(shares) == asked.count
        taken[decision.node].append(usage_of(decision.allocation, len(pod.init)))
    for node in nodes:
        used = add_usage(taken[node.name])
        for card in node.cards:
            usage = used.get(card.uuid, Usage())
            assert usage.slots <= card.slots
            assert usage.memory_mib <= card.memory_mib
            assert usage.cores <= card.cores


@given(clusters(), PODS.filter(lambda pod: pod.asks_cards))
def test_the_order_of_the_nodes_does_not_matter(nodes, pod):
    assert place(pod, nodes) == place(pod, nodes[::-1])


# --- single rules ---

A100 = Node("a", tuple(cards_from_profiles("a", [{"profile": "a100-80g"}])))
L4 = Node("b", tuple(cards_from_profiles("b", [{"profile": "l4", "count": 2}])))


def pod(limits, annotations=None, **spec):
    container = {"name": "c", "resources": {"limits": limits}}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [container], **spec}}


def wanting(memory_mib=1000, cores=10, count=1, **annotations):
    return PodRequest((), (Request(count, memory_mib, None, cores),), annotations)


def test_three_shares_go_on_one_card_and_the_fourth_finds_no_cores():
    request, node = wanting(3000, 30), A100
    for _nth in range(3):
        decision = place(request, [node])
        assert isinstance(decision, Placement)
        node = Node("a", A100.cards, add_usage([node.usage, usage_of(decision.written, 0)]))
    assert place(request, [node]) == Refusal({"a": "1/1 CardInsufficientCore"})
    assert place(wanting(80000, 10), [node]) == Refusal({"a": "1/1 CardInsufficientMemory"})


def test_the_messages_are_those_of_hami_s_events():
    refusal = place(wanting(30000), [L4, Node("c")])
    assert refusal.failed == {"b": "2/2 CardInsufficientMemory", "c": "node unregistered"}
    assert refusal_messages(refusal.failed, 2) == (
        "1 nodes CardInsufficientMemory(b)",
        "no available node, 2 nodes do not meet",
    )
    found = place(wanting(), [A100, Node("c")])
    assert success_message(found, 2) == "find fit node(a), 1 nodes not fit, 1 nodes fit(a:0.00)"
    assert reason_names("1/2 CardCordoned, 1/2 CardNotHealth") == ("CardCordoned", "CardNotHealth")
    assert reason_names("NodeInsufficientDevice") == ()


def test_more_cards_than_a_node_has():
    assert place(wanting(count=3), [L4]) == Refusal({"b": "NodeInsufficientDevice"})


def test_a_container_without_cards_has_no_entry_in_what_is_written():
    request = PodRequest((), (Request(), Request(1, 1000, None, 10), Request()))
    decision = place(request, [A100])
    share = Share(A100.cards[0].uuid, "NVIDIA", 1000, 10)
    assert decision.allocation == ((), (share,), ())
    assert decision.written == ((share,),)


def test_linked_cards_go_together_and_a_lone_one_is_the_worst_linked():
    cards = tuple(cards_from_profiles("t", [{"profile": "h100", "count": 3}]))
    first, second, third = (card.uuid for card in cards)
    scores = {first: {second: 1, third: 9}, second: {first: 1, third: 1}, third: {first: 9, second: 1}}
    node = Node("t", cards, pair_scores=scores)
    pair = place(wanting(count=2, **{"hami.io/gpu-scheduler-policy": "topology-aware"}), [node])
    assert {share.uuid for share in pair.allocation[0]} == {first, third}
    lone = place(wanting(count=1, **{"hami.io/gpu-scheduler-policy": "topology-aware"}), [node])
    assert lone.allocation[0][0].uuid == second


def test_a_card_in_mig_mode_takes_nothing():
    node = Node("m", (Card("GPU-m", 0, 7, 40960, 100, "NVIDIA-A100", mode="mig"),))
    assert place(wanting(), [node]) == Refusal({"m": "1/1 CardMigTopologyInfeasible"})


def test_weights_turn_the_order_of_cards():
    usage = {L4.cards[0].uuid: Usage(1, 20000, 0), L4.cards[1].uuid: Usage(2, 1000, 0)}
    node = Node("b", L4.cards, usage)
    chosen = [
        place(wanting(**{"hami.io/device-scoring-weights": weights}), [node]).allocation[0][0].uuid
        for weights in ("slot=0,core=0,memory=1", "slot=1,core=0,memory=0")
    ]
    assert chosen == [L4.cards[1].uuid, L4.cards[0].uuid]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slot=1", "expected slot, core, and memory weights"),
        ("slot,core=1,memory=1", "expected key=value entries"),
        ("slot=1,slot=1,memory=1", 'duplicate "slot" weight'),
        ("slot=x,core=1,memory=1", '"slot" weight must be an integer'),
        ("slot=-1,core=1,memory=1", '"slot" weight must not be negative'),
        ("slots=1,core=1,memory=1", 'unknown weight "slots"'),
        ("slot=0,core=0,memory=0", "at least one weight must be positive"),
    ],
)
def test_weights_that_cannot_be_read_are_named(text, message):
    with pytest.raises(PlacementError) as caught:
        parse_weights(text)
    assert str(caught.value) == f'invalid hami.io/device-scoring-weights annotation "{text}": {message}'


@pytest.mark.parametrize(
    ("text", "value"),
    [("8k", 8000), ("3Gi", 3 * 1024**3), ("500m", 0.5), ("1e3", 1000), ("1E", 10**18), (7, 7), ("+.5", 0.5)],
)
def test_quantities(text, value):
    assert float(parse_quantity(text)) == value


@pytest.mark.parametrize("text", ["", "k", "1kk", "1 k", "0x1", "1e"])
def test_a_text_that_is_no_quantity_is_named(text):
    with pytest.raises(PlacementError, match="is no Kubernetes quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        ({}, Request()),
        ({"nvidia.com/gpu": "1"}, Request(1, 0, 100, 0)),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30"}, Request(1, 3000, None, 30)),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3Gi"}, Request()),
        ({"nvidia.com/gpu": "0"}, Request()),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, Request(1, 0, 50, 0)),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "0"}, Request(1, 0, 100, 0)),
    ],
)
def test_what_limits_ask_for(limits, request_):
    assert Request.of({"resources": {"limits": limits}}) == request_


def test_the_configuration_s_defaults_fill_in():
    rules = Rules(default_memory_mib=5000, default_cores=20)
    assert Request.of({"resources": {"limits": {"nvidia.com/gpu": 2}}}, rules) == Request(2, 5000, None, 20)


def test_the_webhook_sets_runtime_class_and_environment():
    rules = Rules(runtime_class="nvidia", core_policy="force", overwrite_env=True)
    spec = mutate(pod({"nvidia.com/gpumem": 1000, "nvidia.com/priority": 1}), rules).pod["spec"]
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["containers"][0]["env"] == [
        {"name": "CUDA_TASK_PRIORITY", "value": "1"},
        {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"},
    ]
    (other,) = mutate(pod({}), rules).pod["spec"]["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"} in other["env"]


def test_the_webhook_leaves_what_it_was_given():
    given_ = pod({"nvidia.com/gpu": "1"})
    before = json.dumps(given_)
    assert mutate(given_).pod != given_
    assert json.dumps(given_) == before


def test_a_pod_without_containers_is_denied():
    verdict = mutate({"metadata": {}, "spec": {}})
    assert (verdict.allowed, verdict.message, verdict.code) == (False, "pod has no containers", 403)


def test_the_default_scheduler_is_kept_where_it_is_not_to_be_overwritten():
    named = pod({"nvidia.com/gpu": "1"}, schedulerName="default-scheduler")
    assert mutate(named).pod["spec"]["schedulerName"] == "hami-scheduler"
    kept = mutate(named, Rules(overwrite_default_scheduler=False))
    assert kept.pod["spec"]["schedulerName"] == "default-scheduler"


def test_an_init_container_s_share_counts_until_it_is_over():
    written = ((Share("u", "NVIDIA", 5000, 50),), (Share("u", "NVIDIA", 2000, 20),), (Share("u", "NVIDIA", 1000, 10),))
    assert usage_of(written, 1) == {"u": Usage(2, 5000, 50)}
    assert usage_of(written, 1, init_finished=True) == {"u": Usage(2, 3000, 30)}
