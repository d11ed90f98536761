# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Single rules with answers worked out by hand, and what must hold for any input.

The decisions that HAMi itself made are replayed in tests/unit/bench/test_replay.py.
"""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    Card,
    Share,
    cards_from_profiles,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    Fit,
    Node,
    Placement,
    PlacementError,
    PodRequest,
    Quota,
    Refusal,
    Request,
    Rules,
    Usage,
    Version,
    add_usage,
    answered_reasons,
    fit_node,
    mutate,
    parse_quantity,
    parse_weights,
    place,
    reason_names,
    refusal_messages,
    success_message,
    usage_of,
)

V2_9, V2_10 = Version.V2_9, Version.V2_10
RULES = {version: Rules(version=version) for version in Version}

# --- cases with answers worked out by hand ---

L4_MIB = 24576
GPU_POLICY, NODE_POLICY = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"
USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, NOUSE_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
NUMA_BIND = {"nvidia.com/numa-bind": "true"}


def cards(number=1, *, numa=(0, 0, 0, 0), **values):
    """Cards u0, u1, ...: L4s of 24576 MiB, 10 slots and 100 cores unless the values say otherwise."""
    given_ = {"slots": 10, "memory_mib": L4_MIB, "cores": 100, "type": "NVIDIA-NVIDIA L4", **values}
    return tuple(Card(f"u{index}", index, numa=numa[index], **given_) for index in range(number))


def asks(*containers, init=(), **annotations):
    """A pod of containers, each (count, memory in MiB, cores)."""
    requests = [tuple(Request(count, mib, None, cores) for count, mib, cores in each) for each in (init, containers)]
    return PodRequest(*requests, annotations)


def judged(pod, node, version, quota=None):
    fit = fit_node(pod, node, RULES[version], quota)
    if isinstance(fit, str):
        return fit
    return [[(share.uuid, share.memory_mib, share.cores) for share in shares] for shares in fit.allocation]


BUSY = {"u0": Usage(1, 10000, 30)}
SHARE = (1, 1000, 10)
FULL = {"u0": Usage(1, L4_MIB, 0)}
FREE_CORES = {"u0": Usage(1, 1000, 0)}
BINPACK = {GPU_POLICY: "binpack"}


@pytest.mark.parametrize(
    ("node_cards", "usage", "pod", "answer", "answer_2_9"),
    [
        # Which card: the last one of those that are as good as each other.
        pytest.param(cards(2), {}, asks(SHARE), [[("u1", 1000, 10)]], None, id="the last of equal cards"),
        pytest.param(cards(2), {"u1": BUSY["u0"]}, asks(SHARE), [[("u0", 1000, 10)]], None, id="spread: the emptiest"),
        pytest.param(
            cards(2),
            BUSY,
            asks(SHARE, **BINPACK),
            [[("u0", 1000, 10)]],
            None,
            id="binpack: the fullest",
        ),
        pytest.param(
            cards(2),
            FULL,
            asks(SHARE, **BINPACK),
            [[("u1", 1000, 10)]],
            None,
            id="binpack: it must fit",
        ),
        # u0: 10 * (1/10 + 30/100 + 10000/24576) = 8.07; u1 with 2 slots: 10 * (1/2 + 0 + 1000/24576) = 5.41
        pytest.param(
            (*cards(1), Card("u1", 1, 2, L4_MIB, 100, "NVIDIA-NVIDIA L4")),
            {**BUSY, "u1": Usage(1, 1000, 0)},
            asks(SHARE),
            [[("u1", 1000, 10)]],
            None,
            id="slots, cores and memory weigh the same",
        ),
        pytest.param(
            cards(2, numa=(1, 0)), {}, asks(SHARE), [[("u0", 1000, 10)]], None, id="equal cards: the higher NUMA node"
        ),
        pytest.param(
            cards(2, numa=(1, 0)),
            BUSY,
            asks(SHARE),
            [[("u1", 1000, 10)]],
            [[("u0", 1000, 10)]],
            id="2.9 puts NUMA nodes before how full a card is",
        ),
        pytest.param(
            cards(2, numa=(1, 0)),
            BUSY,
            asks(SHARE, **{GPU_POLICY: "numa"}),
            [[("u0", 1000, 10)]],
            None,
            id="numa: the higher NUMA node, however full",
        ),
        pytest.param(
            cards(3, numa=(1, 1, 0)),
            BUSY,
            asks(SHARE, **{GPU_POLICY: "numa,binpack"}),
            [[("u0", 1000, 10)]],
            [[("u1", 1000, 10)]],
            id="a chain: the second word decides among equals; 2.9 knows no chains and spreads",
        ),
        pytest.param(
            cards(2),
            BUSY,
            asks(SHARE, **{GPU_POLICY: "nonsense"}),
            [[("u1", 1000, 10)]],
            None,
            id="any other word is spread",
        ),
        # What fits on a card.
        pytest.param(cards(), {}, asks((1, L4_MIB, 100)), [[("u0", L4_MIB, 100)]], None, id="all of a card"),
        pytest.param(cards(), {}, asks((1, L4_MIB + 1, 0)), "1/1 CardInsufficientMemory", None, id="memory"),
        pytest.param(cards(), BUSY, asks((1, 14576, 70)), [[("u0", 14576, 70)]], None, id="all that is left"),
        pytest.param(cards(), BUSY, asks((1, 14577, 71)), "1/1 CardInsufficientMemory", None, id="memory before cores"),
        pytest.param(cards(), BUSY, asks((1, 14576, 71)), "1/1 CardInsufficientCore", None, id="cores"),
        pytest.param(cards(slots=1), BUSY, asks(SHARE), "1/1 CardTimeSlicingExhausted", None, id="slots"),
        pytest.param(cards(slots=0), {}, asks(SHARE), "1/1 CardTimeSlicingExhausted", None, id="a card without slots"),
        pytest.param(cards(), {}, asks((1, 1000, 120)), [[("u0", 1000, 100)]], None, id="120 cores: 100"),
        pytest.param(cards(cores=60), {}, asks((1, 1000, 70)), "1/1 CardInsufficientCore", None, id="60 cores"),
        pytest.param(
            cards(),
            FREE_CORES,
            asks((1, 1000, 100)),
            "1/1 ExclusiveDeviceAllocateConflict",
            None,
            id="100 cores want a card alone, though all cores are free",
        ),
        pytest.param(
            cards(cores=200),
            FREE_CORES,
            asks((1, 1000, 100)),
            [[("u0", 1000, 100)]],
            None,
            id="unless the card has more than 100",
        ),
        pytest.param(
            cards(),
            {"u0": Usage(1, 1000, 100)},
            asks((1, 1000, 0)),
            "1/1 CardComputeUnitsExhausted",
            None,
            id="no cores wanted and none left",
        ),
        pytest.param(
            cards(cores=0), FREE_CORES, asks((1, 1000, 0)), [[("u0", 1000, 0)]], None, id="a card without cores"
        ),
        pytest.param(cards(healthy=False), {}, asks(SHARE), "1/1 CardNotHealth", None, id="health"),
        pytest.param(
            cards(mode="mig"),
            {},
            asks(SHARE),
            "1/1 CardMigTopologyInfeasible",
            "1/1 CardNotFoundCustomFilterRule",
            id="a card in MIG mode takes nothing",
        ),
        # Several cards in one container.
        pytest.param(
            cards(2),
            {},
            asks((2, 1000, 10)),
            [[("u1", 1000, 10), ("u0", 1000, 10)]],
            None,
            id="two cards, each with all that is asked",
        ),
        pytest.param(cards(2), {}, asks((3, 1000, 10)), "NodeInsufficientDevice", None, id="more cards than there are"),
        pytest.param(
            cards(2),
            FULL,
            asks((2, 1000, 10)),
            "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
            None,
            id="one of two is full",
        ),
        pytest.param(
            cards(4, numa=(0, 0, 1, 1)),
            {},
            asks((2, 1000, 10), **NUMA_BIND),
            [[("u3", 1000, 10), ("u2", 1000, 10)]],
            None,
            id="numa-bind: from one NUMA node",
        ),
        pytest.param(
            cards(4, numa=(0, 0, 1, 1)),
            {},
            asks((3, 1000, 10), **NUMA_BIND),
            "2/4 AllocatedCardsInsufficientRequest, 2/4 NumaNotFit",
            "1/4 AllocatedCardsInsufficientRequest, 1/4 NumaNotFit",
            id="numa-bind: no NUMA node has three; 2.9 counts one for any number",
        ),
        pytest.param(
            cards(3),
            {},
            asks((2, 1000, 10), **{GPU_POLICY: "topology-aware"}),
            [[("u2", 1000, 10), ("u1", 1000, 10)]],
            [[]],
            id="topology-aware on cards without links: 2.9 lets the pod through without cards",
        ),
        pytest.param(
            cards(2),
            BUSY,
            asks((2, 1000, 10), **{GPU_POLICY: "mutex"}),
            "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict",
            [[("u1", 1000, 10), ("u0", 1000, 10)]],
            id="mutex: only cards that nobody has; unknown to 2.9",
        ),
        # Several containers.
        pytest.param(
            cards(),
            {},
            asks((1, 20000, 50), (1, 4576, 50)),
            [[("u0", 20000, 50)], [("u0", 4576, 50)]],
            None,
            id="the second container gets what the first left",
        ),
        pytest.param(
            cards(), {}, asks((1, 20000, 50), (1, 4577, 50)), "1/1 CardInsufficientMemory", None, id="or does not"
        ),
        pytest.param(
            cards(),
            {},
            asks((1, 20000, 90), init=[(1, L4_MIB, 100)]),
            [[("u0", L4_MIB, 100)], [("u0", 20000, 90)]],
            "1/1 CardInsufficientMemory",
            id="an init container is over when the others begin; 2.9 adds it up",
        ),
        pytest.param(
            cards(),
            {},
            asks((0, 0, 0), SHARE, (0, 0, 0), init=[(0, 0, 0)]),
            [[], [], [("u0", 1000, 10)], []],
            None,
            id="containers without cards",
        ),
        # Which cards a pod wants.
        pytest.param(cards(), {}, asks(SHARE, **{USE_TYPE: "A100"}), "1/1 CardTypeMismatch", None, id="another type"),
        pytest.param(
            cards(),
            {},
            asks(SHARE, **{USE_TYPE: "A100,l4"}),
            [[("u0", 1000, 10)]],
            None,
            id="one of two types",
        ),
        pytest.param(
            cards(),
            {},
            asks(SHARE, **{USE_TYPE: "A100, L4"}),
            [[("u0", 1000, 10)]],
            [[("u0", 1000, 10)]],
            id="a space is part of the name for 2.9, and here also of the card's",
        ),
        pytest.param(
            cards(),
            {},
            asks(SHARE, **{USE_TYPE: "A100, NVIDIA-NVIDIA"}),
            [[("u0", 1000, 10)]],
            "1/1 CardTypeMismatch",
            id="but not always",
        ),
        pytest.param(cards(), {}, asks(SHARE, **{USE_TYPE: ""}), [[("u0", 1000, 10)]], None, id="no type at all"),
        pytest.param(
            cards(),
            {},
            asks(SHARE, **{USE_TYPE: "A100,"}),
            "1/1 CardTypeMismatch",
            [[("u0", 1000, 10)]],
            id="an empty entry is part of every name for 2.9",
        ),
        pytest.param(cards(), {}, asks(SHARE, **{NOUSE_TYPE: "l4"}), "1/1 CardTypeMismatch", None, id="not this type"),
        pytest.param(
            cards(),
            {},
            asks(SHARE, **{NOUSE_TYPE: ""}),
            [[("u0", 1000, 10)]],
            "1/1 CardTypeMismatch",
            id="2.9: not the empty type is none at all",
        ),
        pytest.param(cards(2), {}, asks(SHARE, **{USE_UUID: "u0"}), [[("u0", 1000, 10)]], None, id="this card"),
        pytest.param(cards(2), {}, asks(SHARE, **{NOUSE_UUID: "u1"}), [[("u0", 1000, 10)]], None, id="not this card"),
        pytest.param(
            cards(2),
            {},
            asks((2, 1000, 10), **{USE_UUID: "u0, u1"}),
            [[("u1", 1000, 10), ("u0", 1000, 10)]],
            "1/2 AllocatedCardsInsufficientRequest, 1/2 CardUuidMismatch",
            id="a space makes it another card for 2.9",
        ),
        pytest.param(
            cards(),
            {},
            asks(SHARE, **{USE_UUID: ""}),
            [[("u0", 1000, 10)]],
            "1/1 CardUuidMismatch",
            id="2.9: only the card without a name",
        ),
        pytest.param(
            cards(),
            {},
            asks(SHARE, **{USE_UUID: "u0", NOUSE_UUID: "u0"}),
            "1/1 CardUuidMismatch",
            [[("u0", 1000, 10)]],
            id="this card and not this card",
        ),
        pytest.param(
            cards(), {}, asks(SHARE, **{"nvidia.com/vgpu-mode": "mig"}), "1/1 CardTypeMismatch", None, id="another mode"
        ),
        pytest.param(
            cards(type="Nvidia L4"),
            {},
            asks(SHARE),
            [[("u0", 1000, 10)]],
            "",
            id="a type in other letters is no NVIDIA card to 2.9, which has no reason either",
        ),
        pytest.param(cards(type="MI300"), {}, asks(SHARE), "NodeInsufficientDevice", "", id="no NVIDIA card"),
        pytest.param((), {}, asks(SHARE), "node unregistered", None, id="no cards"),
    ],
)
@pytest.mark.parametrize("version", Version)
def test_case_worked_out_by_hand(version, node_cards, usage, pod, answer, answer_2_9):
    expected = answer if version is V2_10 or answer_2_9 is None else answer_2_9
    assert judged(pod, Node("n", node_cards, usage), version) == expected


def test_2_9_does_not_know_cordons():
    node = Node("n", cards(2), cordoned=frozenset(["u1"]))
    assert judged(asks((2, 1000, 10)), node, V2_10) == "1/2 AllocatedCardsInsufficientRequest, 1/2 CardCordoned"
    assert judged(asks(SHARE), node, V2_9) == [[("u1", 1000, 10)]]


@pytest.mark.parametrize(
    ("quota", "pod", "answer", "answer_2_9"),
    [
        (Quota(3000), asks((1, 3000, 0)), [[("u0", 3000, 0)]], None),
        (Quota(3000), asks((1, 3001, 0)), "1/1 ResourceQuotaNotFit", None),
        (Quota(3000, used=Usage(0, 1000, 0)), asks((1, 2001, 0)), "1/1 ResourceQuotaNotFit", None),
        (Quota(None, 50), asks((1, 3000, 50)), [[("u0", 3000, 50)]], None),
        (Quota(3000), asks((1, 2000, 0), (1, 2000, 0)), "1/1 ResourceQuotaNotFit", None),
        # The larger counts, not the sum; for 2.9 the sum.
        (
            Quota(3000),
            asks((1, 2000, 0), init=[(1, 3000, 0)]),
            [[("u0", 3000, 0)], [("u0", 2000, 0)]],
            "1/1 ResourceQuotaNotFit",
        ),
        # Nothing at all; for 2.9 as much as one likes.
        (Quota(0), asks((1, 1, 0)), "1/1 ResourceQuotaNotFit", [[("u0", 1, 0)]]),
    ],
)
@pytest.mark.parametrize("version", Version)
def test_quota_worked_out_by_hand(version, quota, pod, answer, answer_2_9):
    expected = answer if version is V2_10 or answer_2_9 is None else answer_2_9
    assert judged(pod, Node("n", cards()), version, quota) == expected


# a: 10 * (1/20 + 30/200 + 10000/49152) = 4.03, b: 0
FULLER, EMPTY = Node("a", cards(2), BUSY), Node("b", cards(2))


@pytest.mark.parametrize("version", Version)
@pytest.mark.parametrize(
    ("policy", "rules", "node"),
    [
        ({}, "binpack", "a"),
        ({}, "spread", "b"),
        ({NODE_POLICY: "spread"}, "binpack", "b"),
        ({NODE_POLICY: "binpack"}, "spread", "a"),
        ({NODE_POLICY: "nonsense"}, "spread", "a"),
    ],
)
def test_the_node_is_the_fullest_or_the_emptiest(version, policy, rules, node):
    decision = place(asks(SHARE, **policy), [FULLER, EMPTY], Rules(version=version, node_policy=rules))
    assert (decision.node, decision.ties) == (node, (node,))
    assert {name: round(score, 2) for name, score in decision.scores.items()} == {"a": 4.03, "b": 0.0}


def test_2_9_answers_one_word_for_any_reason():
    failed = {"a": "1/1 CardInsufficientCore", "b": "node unregistered", "c": "NodeInsufficientDevice"}
    assert answered_reasons(failed, V2_10) == failed
    assert answered_reasons(failed, V2_9) == {"a": "NodeUnfitPod", "b": "node unregistered", "c": "NodeUnfitPod"}


def test_2_10_accounts_for_fewer_cards_than_it_gives_where_an_init_container_has_none():
    """Its first entry is taken for the init container's, which has none: of two shares the larger counts."""
    pod = asks((1, 10000, 40), (1, 10000, 40), init=[(0, 0, 0)])
    fit = fit_node(pod, Node("n", cards()))
    assert usage_of(fit.written, 1) == {"u0": Usage(1, 10000, 40)}
    again = fit_node(pod, Node("n", cards(), usage_of(fit.written, 1)))
    assert "CardInsufficientMemory" in again
    second = fit_node(asks((1, 14576, 60)), Node("n", cards(), usage_of(fit.written, 1)))
    assert second.allocation == ((Share("u0", "NVIDIA", 14576, 60),),)  # 34576 of 24576 MiB are given away now
    assert usage_of(fit_node(pod, Node("n", cards()), RULES[V2_9]).written, 1, version=V2_9) == {
        "u0": Usage(2, 20000, 80)
    }


# --- what must hold for any input ---

POLICIES = st.sampled_from(("binpack", "spread", "mutex", "topology-aware", "numa", "numa,binpack", "nonsense"))
MARKS = st.fixed_dictionaries(
    {GPU_POLICY: POLICIES}, optional={"nvidia.com/numa-bind": st.just("true"), NODE_POLICY: POLICIES}
)
VERSIONS = st.sampled_from(Version)


def requests(count):
    """What containers ask for that the webhook and the API let pass."""
    memory, percent = st.integers(1, 30000), st.integers(1, 100)
    amounts = st.one_of(st.tuples(memory, st.none()), st.tuples(st.just(0), percent), st.tuples(memory, percent))
    return st.builds(lambda n, amount, cores: Request(n, *amount, cores), count, amounts, st.integers(0, 120))


def pods(containers, init=None):
    return st.builds(PodRequest, st.just(()) if init is None else init, containers, MARKS)


def some(request, most):
    return st.lists(request, max_size=most).map(tuple)


ANY = st.one_of(requests(st.integers(1, 4)), st.just(Request()))
PODS = pods(some(ANY, 3), some(ANY, 2)).filter(lambda pod: pod.asks_cards)
ONE_CONTAINER = pods(st.tuples(requests(st.integers(1, 4))))
SINGLE_CARDS = pods(st.lists(requests(st.just(1)), min_size=1, max_size=3).map(tuple))


@st.composite
def clusters(draw, taken=False):
    """Up to three nodes of up to four cards; with some of each card taken, if wanted."""
    nodes = []
    for number in range(draw(st.integers(1, 3))):
        usage, own = {}, []
        for index in range(draw(st.integers(0, 4))):
            memory_mib = draw(st.sampled_from((24576, 15360)))
            card = Card(
                f"GPU-{number}-{index}", index, draw(st.integers(1, 4)), memory_mib, 100, "NVIDIA-L4", index % 2
            )
            own.append(card)
            if taken:
                amounts = (st.integers(0, most) for most in (card.slots, memory_mib, 100))
                usage[card.uuid] = draw(st.builds(Usage, *amounts))
        nodes.append(Node(f"n{number}", tuple(own), usage))
    return nodes


@given(clusters(), st.lists(PODS, max_size=6), VERSIONS)
def test_no_card_is_ever_given_beyond_what_it_has(nodes, pods, version):
    taken = {node.name: [] for node in nodes}
    for pod in pods:
        now = [Node(node.name, node.cards, add_usage(taken[node.name])) for node in nodes]
        decision = place(pod, now, RULES[version])
        if isinstance(decision, Refusal):
            assert set(decision.failed) == {node.name for node in nodes}
            continue
        for asked, shares in zip(pod.all, decision.allocation):
            assert len({share.uuid for share in shares}) == len(shares)
            assert len(shares) == asked.count or unlinked(pod, version)
        taken[decision.node].append(usage_of(decision.allocation, len(pod.init), version=version))
    for node in nodes:
        used = add_usage(taken[node.name])
        for card in node.cards:
            usage = used.get(card.uuid, Usage())
            assert usage.slots <= card.slots
            assert usage.memory_mib <= card.memory_mib
            assert usage.cores <= card.cores


def unlinked(pod, version):
    """2.9 lets a pod through without cards, see the table."""
    return version is V2_9 and pod.annotations[GPU_POLICY] == "topology-aware"


@given(clusters(taken=True), PODS, VERSIONS)
def test_the_order_of_the_nodes_does_not_matter(nodes, pod, version):
    assert place(pod, nodes, RULES[version]) == place(pod, nodes[::-1], RULES[version])


def shuffled(data, nodes):
    return [Node(node.name, tuple(data.draw(st.permutations(node.cards))), node.usage) for node in nodes]


@given(clusters(taken=True), ONE_CONTAINER, VERSIONS, st.data())
def test_the_order_of_a_node_s_cards_does_not_decide_whether_one_container_fits(nodes, pod, version, data):
    """With several containers it may: the first takes one of equally good cards, and the other may be too small."""
    first, second = (place(pod, each, RULES[version]) for each in (nodes, shuffled(data, nodes)))
    assert type(first) is type(second)
    if not binds_linked(pod):
        assert first.failed == second.failed


def binds_linked(pod):
    """topology-aware with numa-bind: only the cards of the NUMA node that is looked at last count."""
    return pod.annotations[GPU_POLICY] == "topology-aware" and "nvidia.com/numa-bind" in pod.annotations


@given(clusters(taken=True), SINGLE_CARDS, VERSIONS, st.data())
def test_nobody_is_refused_while_an_empty_card_would_do(nodes, pod, version, data):
    """Containers of one card each, but for topology-aware with numa-bind."""
    node = data.draw(st.sampled_from(nodes))
    empty = Card("GPU-empty", 9, 4, 24576, 100, "NVIDIA-L4", data.draw(st.integers(0, 1)))
    alone = fit_node(pod, Node(node.name, (empty,)), RULES[version])
    place_ = data.draw(st.integers(0, len(node.cards)))
    more = Node(node.name, (*node.cards[:place_], empty, *node.cards[place_:]), node.usage)
    others = [each for each in nodes if each.name != node.name]
    if isinstance(alone, Fit) and not binds_linked(pod):
        assert isinstance(place(pod, [*others, more], RULES[version]), Placement)


@given(clusters(taken=True), ONE_CONTAINER, VERSIONS, st.data())
def test_another_card_never_turns_a_fit_into_a_refusal(nodes, pod, version, data):
    """For one container without a quota, and not topology-aware with numa-bind."""
    node = data.draw(st.sampled_from(nodes))
    card = data.draw(
        st.builds(
            Card,
            st.just("GPU-more"),
            st.just(9),
            st.integers(0, 4),
            st.sampled_from((24576, 15360)),
            st.sampled_from((100, 0)),
            st.sampled_from(("NVIDIA-L4", "NVIDIA-T4")),
            st.integers(0, 2),
            st.just("hami-core"),
            st.booleans(),
        )
    )
    more = Node(node.name, (*node.cards, card), node.usage)
    if isinstance(fit_node(pod, node, RULES[version]), Fit) and not binds_linked(pod):
        assert isinstance(fit_node(pod, more, RULES[version]), Fit)


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
    [
        ("8k", 8000),
        ("3Gi", 3 * 1024**3),
        ("500m", 0.5),
        ("1e3", 1000),
        ("1E", 10**18),
        ("1e999999999", 2**63 - 1),
        ("-99E", 1 - 2**63),
        (7, 7),
        ("+.5", 0.5),
    ],
)
def test_quantities(text, value):
    assert parse_quantity(text) == Decimal(str(value))


@pytest.mark.parametrize("text", ["", "k", "1kk", "1 k", "0x1", "1e", "1e9999999999999999999"])
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
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1e999999999"}, Request()),
        ({"nvidia.com/gpu": "0"}, Request()),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, Request(1, 0, 50, 0)),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "0"}, Request(1, 0, 100, 0)),
    ],
)
def test_what_limits_ask_for(limits, request_):
    assert Request.of({"resources": {"limits": limits}}) == request_


@pytest.mark.parametrize(
    ("limits", "request_", "memory_mib"),
    [
        # 2^31 - 1 is the most; beyond it 2^32 is taken away until it fits.
        ({"nvidia.com/gpumem": "3Gi"}, Request(1, 3 * 2**30 - 2**32, None, 0), 0),
        ({"nvidia.com/gpumem": "4Gi"}, Request(1, 0, None, 0), 0),
        ({"nvidia.com/gpumem": "5Gi"}, Request(1, 2**30, None, 0), 2**30),
        ({"nvidia.com/gpumem": "1e999999999"}, Request(1, 0, 100, 0), 81920),
        ({"nvidia.com/gpumem-percentage": "0"}, Request(1, 0, 0, 0), 0),
        ({"nvidia.com/gpumem-percentage": "101"}, Request(1, 0, 100, 0), 81920),
        ({"nvidia.com/gpumem-percentage": "120"}, Request(1, 0, 120, 0), 98304),
        # 81920 * 30000 - 2^32 = -1837367296, a hundredth of it
        ({"nvidia.com/gpumem-percentage": "30000"}, Request(1, 0, 30000, 0), -18373672),
        ({"nvidia.com/gpumem": "1000", "nvidia.com/gpumem-percentage": "0"}, Request(1, 1000, 0, 0), 1000),
    ],
)
def test_what_limits_ask_for_in_2_9(limits, request_, memory_mib):
    asked = Request.of({"resources": {"limits": {"nvidia.com/gpu": "1", **limits}}}, RULES[V2_9])
    assert (asked, asked.memory_of(A100.cards[0])) == (request_, memory_mib)


def test_negative_memory_makes_room_for_others_in_2_9():
    written = ((Share("u0", "NVIDIA", -18373672, 0),), (Share("u0", "NVIDIA", 20000, 0),))
    assert usage_of(written, 0, version=V2_9) == {"u0": Usage(2, -18353672, 0)}


WHOLE = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}


@pytest.mark.parametrize(
    ("made", "answer", "answer_2_9"),
    [
        pytest.param(
            pod(
                {"nvidia.com/gpu": "1"},
                initContainers=[{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            ),
            ("hami-scheduler", [WHOLE, WHOLE]),
            ("hami-scheduler", [{"nvidia.com/gpu": "1"}, WHOLE]),
            id="2.9 leaves init containers alone",
        ),
        pytest.param(
            {
                "spec": {
                    "containers": [
                        {
                            "name": "c",
                            "resources": {"limits": {"nvidia.com/gpu": "1"}},
                            "securityContext": {"privileged": True},
                        }
                    ]
                }
            },
            "container c is privileged",
            (None, [{"nvidia.com/gpu": "1"}]),
            id="2.9 leaves privileged containers alone, and the pod to another scheduler",
        ),
        pytest.param(
            pod({"nvidia.com/gpumem-percentage": "120"}),
            "invalid nvidia.com/gpumem-percentage value 120 in container c: must be an integer between 0 and 100",
            ("hami-scheduler", [{"nvidia.com/gpumem-percentage": "120", "nvidia.com/gpu": "1"}]),
            id="a percentage above 100",
        ),
        pytest.param(
            pod({"nvidia.com/gpu": "1"}, nodeName="n"),
            "pod has node assigned",
            "pod has node assigned",
            id="a node's name",
        ),
    ],
)
@pytest.mark.parametrize("version", Version)
def test_what_the_webhook_makes_of_a_pod(version, made, answer, answer_2_9):
    verdict = mutate(made, RULES[version])
    spec = verdict.pod["spec"]
    limits = [each["resources"]["limits"] for each in [*spec.get("initContainers", ()), *spec["containers"]]]
    told = (spec.get("schedulerName"), limits) if verdict.allowed else verdict.message
    assert told == (answer if version is V2_10 else answer_2_9)


@pytest.mark.parametrize(
    ("quota", "limits", "denied", "denied_2_9"),
    [
        (Quota(3000), {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, False, False),
        (Quota(3000), {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3001"}, True, True),
        # 2.9 does not look at containers of several cards.
        (Quota(3000), {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "2000"}, True, False),
        # A percentage is looked at in the filter only.
        (Quota(3000), {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "90"}, False, False),
        (Quota(None, 50), {"nvidia.com/gpu": "1"}, True, True),
        (Quota(0), {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}, True, False),
        # Above its quota 2.9 lets no pod into the namespace.
        (Quota(3000, used=Usage(0, 3001, 0)), {"cpu": "1"}, False, True),
    ],
)
def test_what_the_webhook_says_to_a_quota(quota, limits, denied, denied_2_9):
    for version, expected in ((V2_10, denied), (V2_9, denied_2_9)):
        verdict = mutate(pod(limits), RULES[version], quota)
        assert (verdict.allowed, verdict.message) == (not expected, "exceeding resource quota" if expected else "")


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
