# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans with answers worked out by hand, and what must hold of any change that is suggested."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils._capacity import Host
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import cards_from_profiles
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Node, Quota, Usage
from ansible_collections.tenantry.gpu.plugins.module_utils._plan_report import (
    PLAN_OPTIONS,
    cases_from_options,
    make_plan,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import CaseError

DEFAULTS = {name: option.get("default") for name, option in PLAN_OPTIONS.items()}


def host(name, profile="a100-80g", count=1, taken=None, **more):
    """A node; taken is what is used of each card: slots, MiB, cores."""
    cards = tuple(cards_from_profiles(name, [{"profile": profile, "count": count}]))
    usage = {card.uuid: Usage(*used) for card, used in zip(cards, taken or ())}
    on_node = {key: more.pop(key) for key in ("cordoned",) if key in more}
    if on_node:
        on_node["cordoned"] = frozenset(cards[position].uuid for position in on_node["cordoned"])
    return Host(Node(name, cards, usage, **on_node), **more)


def plan(hosts, *cases, quota=None, **options):
    options = {**DEFAULTS, "cases": [{"replicas": 1, **case} for case in cases], **options}
    return make_plan(hosts, cases_from_options(options), options, quota)


def only(hosts, quota=None, options=None, **case):
    """The result of the one case x."""
    return plan(hosts, {"name": "x", **case}, quota=quota, **(options or {}))["cases"][0]


SHARE = {"memory_mib": 20000, "cores": 30}


def test_the_lab_s_cases_come_out_as_the_verification_expects():
    result = plan(
        [host("a-worker-0")],
        {"name": "share-three", "replicas": 3, **SHARE, "expect": {"outcome": "placed", "spread": "one_card"}},
        {
            "name": "core-exhausted",
            "memory_mib": 1000,
            "cores": 30,
            "while_running": ["share-three"],
            "expect": {"outcome": "refused", "reason": "CardInsufficientCore"},
        },
        {"name": "freed", "cores": 100, "after": ["share-three"], "expect": {"outcome": "placed"}},
    )
    assert [case["verdict"] for case in result["cases"]] == [
        "share-three: 3 pods placed on card 0 of a-worker-0 (3x).",
        "core-exhausted: 1 pod refused: CardInsufficientCore on 1 node. "
        "It would fit with 20 cores fewer (10 instead of 30).",
        "freed: 1 pod placed on card 0 of a-worker-0.",
    ]
    assert (result["fits"], result["as_expected"]) == (False, True)
    assert [case["how_many_more"] for case in result["cases"]] == [0, 0, 0]
    assert result["totals"] == {
        "nodes": 1,
        "cards": 1,
        "slots": 10,
        "memory_mib": 81920,
        "cores": 100,
        "allocated_before": {"slots": 0, "memory_mib": 0, "cores": 0},
        "allocated_after": {"slots": 1, "memory_mib": 81920, "cores": 100},
    }


def test_every_pod_says_where_it_goes():
    case = only([host("w0", count=2), host("w1", count=2)], cards=2, memory_mib=1000, cores=10)
    uuids = [card.uuid for card in host("w0", count=2).node.cards]
    assert case["pods"] == [
        {
            "name": "x-0",
            "outcome": "placed",
            "node": "w0",
            "containers": [
                [
                    {"uuid": uuids[1], "index": 1, "memory_mib": 1000, "cores": 10},
                    {"uuid": uuids[0], "index": 0, "memory_mib": 1000, "cores": 10},
                ]
            ],
            "tie_count": 2,
            "ties": ["w0", "w1"],
        }
    ]


def test_refusals_are_told_by_node_and_counted_by_reason():
    hosts = [
        host("a", "l4", 2),
        host("b", "l4", 1, taken=[(1, 1000, 90)]),
        host("c", closed="node is unschedulable"),
        Host(Node("d")),
    ]
    case = only(hosts, memory_mib=30000, cores=20)
    assert case["failed"] == {
        "a": "2/2 CardInsufficientMemory",
        "b": "1/1 CardInsufficientMemory",
        "c": "node is unschedulable",
        "d": "node unregistered",
    }
    assert case["reasons"] == {"CardInsufficientMemory": 2, "node is unschedulable": 1, "node unregistered": 1}
    assert (
        case["why"] == "CardInsufficientMemory on 2 nodes, node is unschedulable on 1 node, node unregistered on 1 node"
    )
    assert case["pods"][0]["outcome"] == "refused"


L4_HALF = [(1, 14576, 40)] * 2

# name, hosts, case, the changes' sentences
CHANGES = [
    (
        "less memory, or the next bigger card there is",
        [host("b", "l4", 2)],
        {"memory_mib": 30000},
        ["5424 MiB fewer (24576 instead of 30000).", "one more card of kind a100-40g (40960 MiB) in node b."],
    ),
    (
        "less compute",
        [host("b", "l4", taken=[(1, 1000, 75)])],
        {"memory_mib": 1000, "cores": 40},
        ["15 cores fewer (25 instead of 40).", "one more card of kind l4 (24576 MiB) in node b."],
    ),
    (
        "both",
        [host("b", "l4", taken=[(1, 20000, 75)])],
        {"memory_mib": 10000, "cores": 40},
        [
            "5424 MiB fewer (4576 instead of 10000) and 15 cores fewer (25 instead of 40).",
            "one more card of kind l4 (24576 MiB) in node b.",
        ],
    ),
    (
        "part of a card instead of all of it",
        [host("b", "l4", taken=[(1, 12288, 40)])],
        {"cards": 1},
        [
            "50 % of a card's memory fewer (50 instead of 100) and 40 cores fewer (60 instead of 100).",
            "one more card of kind l4 (24576 MiB) in node b.",
        ],
    ),
    (
        "fewer cards",
        [host("b", "l4", 2)],
        {"cards": 3, "memory_mib": 1000, "cores": 10},
        ["1 card fewer (2 instead of 3).", "one more card of kind l4 (24576 MiB) in node b."],
    ),
    (
        "fewer pods",
        [host("b", "l4")],
        {"replicas": 4, "memory_mib": 8000, "cores": 10},
        [
            "1856 MiB fewer (6144 instead of 8000).",
            "1 pod fewer (3 instead of 4).",
            "one more card of kind l4 (24576 MiB) in node b.",
        ],
    ),
    (
        "another policy of the pod's own",
        [host("b", "l4", taken=[(1, 1000, 10)])],
        {"memory_mib": 1000, "cores": 10, "card_policy": "mutex"},
        [
            "card policy binpack instead of mutex.",
            "card policy spread instead of mutex.",
            "one more card of kind l4 (24576 MiB) in node b.",
        ],
    ),
    (
        "no filter",
        [host("b", "l4")],
        {"memory_mib": 1000, "cores": 10, "use_types": ["A100"]},
        ["no use_types.", "one more card of kind a100-40g (40960 MiB) in node b."],
    ),
    (
        "no node selector, or a node with its labels",
        [host("b", "l4")],
        {"memory_mib": 1000, "cores": 10, "node_selector": {"zone": "x"}},
        ["no node_selector.", "one more card of kind l4 (24576 MiB) in a new node."],
    ),
    (
        "a cordon lifted",
        [host("b", "l4", cordoned=[0])],
        {"memory_mib": 1000, "cores": 10},
        [
            f"card {host('b', 'l4').node.cards[0].uuid} of node b no longer cordoned.",
            "one more card of kind l4 (24576 MiB) in node b.",
        ],
    ),
    (
        "a node opened",
        [host("b", "l4", closed="node is unschedulable")],
        {"memory_mib": 1000, "cores": 10},
        [
            "node b open for pods (now: node is unschedulable).",
            "one more card of kind l4 (24576 MiB) in a new node.",
        ],
    ),
    ("a fleet of nothing", [], {"memory_mib": 20000}, ["one more card of kind rtx-4090 (24564 MiB) in a new node."]),
]


@pytest.mark.parametrize(("hosts", "case", "sentences"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_changes(hosts, case, sentences):
    result = only(hosts, **case)
    assert result["fits"] is False
    assert [change["sentence"] for change in result["changes"]] == sentences
    assert result["verdict"].endswith(f"It would fit with {sentences[0]}")


def test_another_policy_for_the_cases_before_can_be_the_change():
    result = plan(
        [host("m", "l4", 2)],
        {"name": "small", "replicas": 2, "memory_mib": 10000, "cores": 40},
        {"name": "big", "memory_mib": 20000, "cores": 70},
    )
    assert result["cases"][1]["changes"][0] == {
        "change": "policy",
        "sentence": "card policy binpack instead of spread for all cases up to this one.",
    }


def test_the_quota_denies_and_how_much_more_would_do_is_told():
    quota = Quota(50000, 200, Usage(0, 5000, 10))
    case = only([host("a")], quota, replicas=3, **SHARE, expect={"outcome": "over_quota"})
    assert case["why"] == "exceeding resource quota"
    assert [pod["outcome"] for pod in case["pods"]] == ["placed", "placed", "denied"]
    assert case["as_expected"] is False
    assert [change["sentence"] for change in case["changes"]] == [
        "5000 MiB fewer (15000 instead of 20000).",
        "1 pod fewer (2 instead of 3).",
        "a quota of namespace default with 15000 MiB more (65000 instead of 50000).",
    ]


def test_the_scheduler_counts_parts_of_a_card_on_a_quota_which_the_webhook_does_not():
    case = only([host("b", "l4")], Quota(memory_mib=10000), memory_percent=50, cores=10)
    assert case["failed"] == {"b": "1/1 ResourceQuotaNotFit"}
    assert [change["sentence"] for change in case["changes"]] == [
        "10 % of a card's memory fewer (40 instead of 50).",
        "a quota of namespace default with 2288 MiB more (12288 instead of 10000).",
        # Half of a smaller card is within the quota.
        "one more card of kind t4 (15360 MiB) in node b.",
    ]


def test_the_webhook_denies():
    case = only([host("a")], memory_percent=120, expect={"outcome": "denied", "denial": "must be an integer"})
    assert case["verdict"].startswith("x: 1 pod denied by the webhook: invalid nvidia.com/gpumem-percentage value 120")
    assert case["as_expected"] is True
    assert case["changes"][0]["sentence"] == "20 % of a card's memory fewer (100 instead of 120)."


def test_what_hami_gives_no_card_is_told_apart():
    case = only([host("a")], cards=0, expect={"outcome": "placed"})
    assert case["verdict"] == (
        "x: 1 pod without a card: HAMi takes what it asks for as no request, and lets it pass without a card."
    )
    assert (case["how_many_more"], case["changes"], case["as_expected"]) == (None, [], False)
    none = only([host("a")], memory_mib=1000, options={"default_cards": 0})
    assert none["why"] == "HAMi's webhook leaves it to default-scheduler."


def test_weights_that_cannot_be_read_refuse_everywhere():
    case = only([host("a")], memory_mib=1, annotations={"hami.io/device-scoring-weights": "slot=1"})
    assert "expected slot, core, and memory weights" in case["failed"]["a"]


def test_versions_differ():
    asked = {"memory_percent": 120, "cores": 10}
    assert only([host("a")], options={"hami_version": "2.9"}, **asked)["pods"][0]["outcome"] == "refused"
    assert only([host("a")], options={"hami_version": "2.10"}, **asked)["pods"][0]["outcome"] == "denied"


def test_the_configuration_s_defaults_and_policies_count():
    hosts = [host("a", "l4", taken=[(1, 1000, 10)]), host("b", "l4")]
    assert only(hosts, cards=1, options={"default_memory_mib": 5000, "default_cores": 5})["how_many_more"] == 0
    assert only(hosts, memory_mib=1000)["pods"][0]["node"] == "a"
    assert only(hosts, memory_mib=1000, options={"node_policy": "spread"})["pods"][0]["node"] == "b"


def test_more_pods_are_counted_as_far_as_asked():
    hosts = [host("a", "l4", 2)]
    assert only(hosts, memory_mib=1000, cores=5)["how_many_more"] == 19
    assert only(hosts, memory_mib=1000, cores=5, options={"count_up_to": 4})["how_many_more"] == 4


def test_only_places_that_one_can_read_are_named():
    case = only([host("a", "t4", 5)], replicas=5, memory_mib=10000)
    assert case["verdict"] == "x: 5 pods placed on card 4 of a, card 3 of a, card 2 of a and 2 other cards."


def test_no_suggestion_where_none_is_wanted():
    assert only([host("a")], cards=9, options={"suggest_changes": False})["changes"] == []


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ([{"name": "a", "cards": 1}, {"name": "a", "cards": 1}], "case a stands twice"),
        ([{"name": "a", "cards": 1, "after": ["b"]}], "case a waits for 'b', which does not stand before it"),
        ([{"name": "a"}], "case a: asks for no card"),
    ],
)
def test_cases_that_cannot_be_understood_are_named(cases, message):
    with pytest.raises(CaseError, match=message):
        plan([], *cases)


# --- what must hold for any fleet ---

TAKEN = st.tuples(st.integers(0, 9), st.integers(0, 24576), st.integers(0, 100))
FLEETS = st.lists(st.lists(TAKEN, min_size=1, max_size=2), min_size=1, max_size=3).map(
    lambda fleet: [host(f"n{number}", "l4", len(taken), taken) for number, taken in enumerate(fleet)]
)
ASKED = st.fixed_dictionaries(
    {
        "memory_mib": st.integers(1, 30000),
        "cores": st.integers(1, 100),
        "cards": st.integers(1, 2),
        "replicas": st.integers(1, 3),
    }
)
KEYS = {"memory": "memory_mib", "cores": "cores", "cards": "cards", "replicas": "replicas"}


@settings(deadline=None, max_examples=60)
@given(FLEETS, ASKED)
def test_a_change_lets_the_case_in_and_a_smaller_one_does_not(hosts, asked):
    for change in only(hosts, **asked)["changes"]:
        numbers = re.fullmatch(r"[^()]*\((\d+) instead of \d+\)\.", change["sentence"])
        if numbers and change["change"] in KEYS:
            key, most = KEYS[change["change"]], int(numbers[1])
            assert only(hosts, **{**asked, key: most})["fits"]
            assert not only(hosts, **{**asked, key: most + 1})["fits"]


@settings(deadline=None, max_examples=60)
@given(FLEETS, ASKED)
def test_as_many_more_fit_as_are_told(hosts, asked):
    case = only(hosts, **asked, options={"suggest_changes": False})
    more = case["how_many_more"]
    # One that does not fit is no part of the plan, but may be smaller than what its fellows left.
    if case["fits"]:
        again = {**asked, "replicas": asked["replicas"] + more}
        assert only(hosts, **again, options={"suggest_changes": False})["fits"]
        again["replicas"] += 1
        assert not only(hosts, **again, options={"suggest_changes": False})["fits"]
    else:
        assert more == 0
