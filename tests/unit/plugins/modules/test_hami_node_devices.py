# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("kubernetes")
pytest.importorskip("hypothesis")

from hypothesis import given, strategies

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import ClusterError
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    HamiFormatError,
    cards_from_profiles,
    format_register,
    parse_register,
)
from ansible_collections.tenantry.gpu.plugins.modules import hami_node_devices as module

Object = dict[str, Any]

REGISTER, CORDON = "hami.io/node-nvidia-register", "hami.io/device-cordon"
L4 = [{"profile": "l4"}]
ASCEND = {"id": "Ascend-0", "count": 4, "devmem": 32768, "type": "Ascend910", "custominfo": {"link": [1, 2]}}


def register(node: str, *declarations: Object, colons: bool = False) -> str:
    return format_register(cards_from_profiles(node, declarations or L4), colons)


def add_node(cluster: Any, name: str = "n1", slots: str = "", labels: Object | None = None, **annotations: str) -> str:
    path = f"/api/v1/nodes/{name}"
    names = {"register": REGISTER, "cordon": CORDON, "handshake": "hami.io/node-handshake"}
    found = {names.get(key, key): text for key, text in annotations.items()}
    amounts = {"cpu": "8", **({"nvidia.com/gpu": slots} if slots else {})}
    status = {"capacity": amounts, "allocatable": amounts}
    cluster.put(path, {"metadata": {"name": name, "labels": labels or {}, "annotations": found}, "status": status})
    return path


def params(**asked: Any) -> Object:
    defaults = {name: option.get("default") for name, option in module.OPTIONS.items()}
    return {**defaults, **asked}


def declarer(cluster: Any, **asked: Any) -> module.Declarer:
    return module.Declarer(cluster, module.Declaration(params(**asked)))


def run(cluster: Any, **asked: Any) -> list[Object]:
    """Plan and write; the described nodes. Fails if one could not be written."""
    made = declarer(cluster, **asked)
    plans = made.plan()
    assert made.apply(plans) == {}
    return [module.describe(plan) for plan in plans]


def refused(cluster: Any, **asked: Any) -> str:
    before = {path: cluster.annotations(path) for path in cluster.objects}
    with pytest.raises(module.DeclarationError) as caught:
        run(cluster, **asked)
    assert cluster.verbs("patch") == []
    assert {path: cluster.annotations(path) for path in cluster.objects} == before
    return str(caught.value)


# --- present ---


def test_many_nodes_get_cards_with_one_list_and_a_patch_each(cluster: Any) -> None:
    names = [f"n{number}" for number in range(20)]
    for name in names:
        add_node(cluster, name, other="stays")
    nodes = run(cluster, names=names, cards=[{"profile": "h100", "count": 8}])
    assert all(node["changed"] and node["slots"] == 80 and len(node["cards"]) == 8 for node in nodes)
    assert len({card["uuid"] for node in nodes for card in node["cards"]}) == 160
    assert cluster.annotations("/api/v1/nodes/n7") == {
        "other": "stays",
        REGISTER: register("n7", {"profile": "h100", "count": 8}),
    }
    assert cluster.verbs("list") == ["/api/v1/nodes", "/apis/apps/v1/daemonsets"]
    assert sorted(cluster.verbs("patch")) == sorted(f"/api/v1/nodes/{name}" for name in names)


def test_a_second_run_lists_once_and_patches_nothing(cluster: Any) -> None:
    add_node(cluster)
    asked: Object = {"names": ["n1"], "cards": L4, "labels": {"gpu": "on"}, "allocatable": True}
    assert run(cluster, **asked)[0]["changed"]
    cluster.calls.clear()
    assert not run(cluster, **asked)[0]["changed"]
    assert cluster.calls == [("list", "/api/v1/nodes")]


def test_a_register_that_says_the_same_in_other_words_stays(cluster: Any) -> None:
    text = json.dumps(json.loads(register("n1")), indent=2)
    path = add_node(cluster, register=text)
    assert not run(cluster, names=["n1"], cards=L4)[0]["changed"]
    assert cluster.annotations(path)[REGISTER] == text


def test_nodes_with_cards_of_their_own(cluster: Any) -> None:
    for name in ("n1", "n2"):
        add_node(cluster, name)
    own = {"type": "NVIDIA-A10", "memory_mib": 23028, "slots": 4, "uuid": "GPU-mine", "index": 3, "healthy": False}
    nodes = run(cluster, nodes=[{"name": "n1", "cards": [own]}, {"name": "n2"}], cards=L4)
    assert nodes[0]["cards"][0] == {
        **{"uuid": "GPU-mine", "index": 3, "slots": 4, "memory_mib": 23028, "cores": 100, "type": "NVIDIA-A10"},
        **{"numa": 0, "mode": "hami-core", "healthy": False, "cordoned": False},
    }
    assert nodes[0]["slots"] == 0
    assert nodes[1]["cards"][0]["type"] == "NVIDIA-NVIDIA L4"


def test_nodes_by_label(cluster: Any) -> None:
    add_node(cluster, "n1", labels={"type": "kwok"})
    path = add_node(cluster, "n2")
    assert [node["name"] for node in run(cluster, label_selector="type=kwok", cards=L4)] == ["n1"]
    assert cluster.annotations(path) == {}
    assert refused(cluster_without_calls(cluster), label_selector="type=none", cards=L4) == (
        "No node has the labels type=none."
    )


def cluster_without_calls(cluster: Any) -> Any:
    cluster.calls.clear()
    return cluster


@pytest.mark.parametrize("colons", [False, True])
def test_other_vendors_cards_stay(cluster: Any, colons: bool) -> None:
    found = json.dumps([ASCEND]) if not colons else "Ascend-0,4,32768,0,Ascend910,0,false,0,:"
    path = add_node(cluster, register=found)
    (node,) = run(cluster, names=["n1"], cards=L4)
    assert [card["type"] for card in node["cards"]] == ["NVIDIA-NVIDIA L4"]
    written = cluster.annotations(path)[REGISTER]
    assert written == (
        register("n1", colons=True) + found if colons else register("n1")[:-1] + "," + compact(ASCEND) + "]"
    )
    run(cluster, names=["n1"], state="absent")
    assert cluster.annotations(path)[REGISTER] == (found if colons else f"[{compact(ASCEND)}]")


def compact(entry: Object) -> str:
    return json.dumps(entry, separators=(",", ":"))


@pytest.mark.parametrize(
    ("own", "others", "asked", "colons"),
    [
        ("", [], "found", False),
        ("", [True, True, False], "found", True),
        ("", [True, False], "found", False),
        ("colons", [False], "found", True),
        ("json", [True, True], "found", False),
        ("colons", [], "json", False),
        ("", [], "colons", True),
    ],
    ids=["nothing", "most have colons", "as many", "own colons", "own JSON", "told JSON", "told colons"],
)
def test_format(cluster: Any, own: str, others: list[bool], asked: str, colons: bool) -> None:
    for number, other in enumerate(others):
        add_node(cluster, f"o{number}", register=register(f"o{number}", colons=other))
    found = {"register": register("n1", {"profile": "t4"}, colons=own == "colons")} if own else {}
    path = add_node(cluster, **found)
    (node,) = run(cluster, names=["n1"], cards=L4, register_format=asked)
    assert cluster.annotations(path)[REGISTER] == register("n1", colons=colons)
    assert node["register_format"] == ("colons" if colons else "json")


def test_labels_and_slots_go_in_one_patch(cluster: Any) -> None:
    path = add_node(cluster, slots="3")
    asked: Object = {"names": ["n1"], "labels": {"gpu": "on"}, "allocatable": True}
    run(cluster, cards=[{"profile": "l4"}, {"profile": "l4", "healthy": False}], **asked)
    assert cluster.verbs("patch") == [f"{path}/status"]
    node = cluster.objects[path]
    assert node["metadata"]["labels"] == {"gpu": "on"}
    assert node["status"]["capacity"] == node["status"]["allocatable"] == {"cpu": "8", "nvidia.com/gpu": "10"}
    run(cluster, state="absent", **asked)
    node = cluster.objects[path]
    assert (node["metadata"]["labels"], node["metadata"]["annotations"]) == ({}, {})
    assert node["status"]["capacity"] == node["status"]["allocatable"] == {"cpu": "8"}


def test_absent_takes_the_cordon_too_and_a_node_without_cards_stays(cluster: Any) -> None:
    add_node(cluster, register=register("n1"), cordon="GPU-1", other="stays")
    add_node(cluster, "n2")
    nodes = run(cluster, names=["n1", "n2"], state="absent")
    assert [node["changed"] for node in nodes] == [True, False]
    assert cluster.annotations("/api/v1/nodes/n1") == {"other": "stays"}


# --- cordon ---


@pytest.fixture
def two_cards(cluster: Any) -> list[str]:
    add_node(cluster, register=register("n1", {"profile": "l4", "count": 2}))
    return [card.uuid for card in cards_from_profiles("n1", [{"profile": "l4", "count": 2}])]


def cordon_of(cluster: Any) -> str:
    return str(cluster.annotations("/api/v1/nodes/n1").get(CORDON, ""))


def test_cordon_adds_and_present_says_which(cluster: Any, two_cards: list[str]) -> None:
    first, second = two_cards
    asked: Object = {"names": ["n1"]}
    run(cluster, state="cordoned", cordoned=["1"], **asked)
    assert cordon_of(cluster) == second
    (node,) = run(cluster, state="cordoned", cordoned=[first], **asked)
    assert cordon_of(cluster) == ",".join(sorted(two_cards))
    assert all(card["cordoned"] for card in node["cards"])
    run(cluster, cordoned=["0"], **asked)
    assert cordon_of(cluster) == first
    run(cluster, cordoned=[], **asked)
    assert CORDON not in cluster.annotations("/api/v1/nodes/n1")
    run(cluster, state="cordoned", **asked)
    assert cordon_of(cluster) == ",".join(sorted(two_cards))


def test_a_cordon_that_says_the_same_stays(cluster: Any, two_cards: list[str]) -> None:
    cluster.annotate("/api/v1/nodes/n1", device_cordon=f" {two_cards[1]}, ,{two_cards[0]}")
    assert not run(cluster, names=["n1"], state="cordoned")[0]["changed"]


def test_a_changed_cordon_lets_hami_register_the_node_anew(cluster: Any, two_cards: list[str]) -> None:
    path, handshake = "/api/v1/nodes/n1", "hami.io/node-handshake"
    cluster.annotate(path, node_handshake="Requesting_2026-06-14 15:05:03")
    run(cluster, names=["n1"], labels={"a": "b"})
    assert handshake in cluster.annotations(path)
    run(cluster, names=["n1"], state="cordoned")
    assert handshake not in cluster.annotations(path)
    cluster.annotate(path, node_handshake="Requesting_2026-06-14 15:05:04")
    assert not run(cluster, names=["n1"], state="cordoned")[0]["changed"]
    assert handshake in cluster.annotations(path)


def test_cards_and_cordon_in_one_task(cluster: Any) -> None:
    add_node(cluster)
    (node,) = run(cluster, names=["n1"], cards=[{"profile": "l4", "count": 2}], cordoned=["1"])
    assert [card["cordoned"] for card in node["cards"]] == [False, True]
    assert len(cluster.verbs("patch")) == 1


def test_a_card_that_is_not_there_cannot_be_cordoned(cluster: Any, two_cards: list[str]) -> None:
    known = ", ".join(f"{index} ({uuid})" for index, uuid in enumerate(two_cards))
    assert refused(cluster, names=["n1"], state="cordoned", cordoned=["2"]) == (
        f"Nothing was changed. n1: it has no card '2' to cordon, of {known}."
    )


# --- what is refused before anything is changed ---


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"names": ["n1", "n9"]}, "n9: there is no such node."),
        ({"names": ["n1", "n1"]}, "n1: the node is named twice."),
        ({"cards": [{"profile": "h900"}]}, "n1: card profile 'h900' is unknown; use one of a100-40g, "),
        ({"cards": [{"profile": "l4", "slots": 0}]}, "n1: card slots 0 is no number from 1 to 2147483647."),
        ({"cards": [{"profile": "l4", "memory_mib": 2**31}]}, "n1: card memory_mib 2147483648 is no number from 1"),
        ({"cards": [{"profile": "l4", "cores": -1}]}, "n1: card cores -1 is no number from 1"),
        ({"cards": [{"profile": "l4", "numa": -2}]}, "n1: card numa -2 is no number from -1"),
        ({"cards": [{"profile": "l4", "count": 10**9}]}, "n1: card count 1000000000 is no number from 1 to 1024."),
        ({"cards": [{"profile": "l4", "count": 2, "uuid": "GPU-1"}]}, "n1: 2 cards cannot all have uuid 'GPU-1'."),
        ({"cards": [{"profile": "l4", "uuid": "GPU-1"}] * 2}, "n1: card uuid 'GPU-1' stands twice."),
        ({"cards": [{"profile": "l4"}, {"profile": "l4", "index": 0}]}, "stands twice."),
        ({"cards": [{"memory_mib": 1000}]}, "n1: a card without profile needs type and memory_mib, got"),
        ({"cards": [{"type": "A10", "memory_mib": 1000}]}, "n1: card type 'A10' does not contain NVIDIA"),
        ({"cards": []}, "n1: its list of cards is empty; use state: absent for a node without cards."),
        ({"cards": None}, "n1: cards or cordoned must be given."),
        ({"labels": {"gpu": True}}, 'labels: gpu is True; put its value in quotes, as in gpu: "on".'),
        ({"cards": [{"profile": "l4", "uuid": "GPU-2"}]}, "n1: card GPU-2 is on n2 already; give each its own uuid."),
        ({"cards": [{"profile": "l4", "uuid": "GPU,2"}]}, "n1: card uuid 'GPU,2' is no text without separators."),
    ],
)
def test_bad_declarations(cluster: Any, asked: Object, said: str) -> None:
    add_node(cluster)
    add_node(cluster, "n2", register=register("n2", {"profile": "l4", "uuid": "GPU-2"}))
    add_node(cluster, "n3", register="not ours")
    message = refused(cluster, **{"names": ["n1"], "cards": L4, **asked})
    assert message.startswith("Nothing was changed. ")
    assert said in message


def test_all_nodes_are_checked_and_the_first_problems_told(cluster: Any) -> None:
    message = refused(cluster, names=[f"n{number}" for number in range(9)], cards=L4)
    assert message == (
        "Nothing was changed. "
        + "; ".join(f"n{number}: there is no such node" for number in range(5))
        + "; and 4 more of the kind."
    )


def test_one_uuid_on_two_declared_nodes(cluster: Any) -> None:
    for name in ("n1", "n2"):
        add_node(cluster, name)
    assert "n2: card GPU-1 is on n1 already" in refused(
        cluster, names=["n1", "n2"], cards=[{"profile": "l4", "uuid": "GPU-1"}]
    )


def test_a_uuid_moves_from_one_declared_node_to_another(cluster: Any) -> None:
    add_node(cluster, "n1", register=register("n1", {"profile": "l4", "uuid": "GPU-1"}))
    add_node(cluster, "n2")
    own = [{"name": "n1", "cards": L4}, {"name": "n2", "cards": [{"profile": "l4", "uuid": "GPU-1"}]}]
    assert all(node["changed"] for node in run(cluster, nodes=own))


def test_a_register_that_cannot_be_read_is_replaced_only_by_force(cluster: Any) -> None:
    path = add_node(cluster, register="[nonsense")
    assert "n1: register '[nonsense' is not JSON" in refused(cluster, names=["n1"], cards=L4)
    assert "force: true replaces it" in refused(cluster, names=["n1"], state="absent")
    run(cluster, names=["n1"], cards=L4, force=True)
    assert cluster.annotations(path)[REGISTER] == register("n1")


# --- nodes that a plugin serves ---

HAMI = ("hami-device-plugin", "n1", {"app.kubernetes.io/component": "hami-device-plugin"})
SIMULATOR = ("gpu-simulator", "n1", {"app.kubernetes.io/name": "gpu-simulator"})
MOCK = ("mock", "n1", {"app.kubernetes.io/component": "hami-mock-device-plugin"})


@pytest.mark.parametrize(
    "plugin",
    [HAMI, SIMULATOR, ("nvidia", "n1", {"app": "nvidia-device-plugin-daemonset"}), ("renamed", "n1", {})],
    ids=lambda plugin: plugin[0],
)
def test_a_served_node_is_refused(cluster: Any, daemon_set: Any, plugin: tuple[str, str, Object]) -> None:
    add_node(cluster)
    command = {"command": ["/usr/bin/nvidia-device-plugin", "--x"]} if plugin[0] == "renamed" else {}
    daemon_set(*plugin, **command)
    for asked in ({"cards": L4}, {"cards": L4, "allocatable": True}):
        assert refused(cluster, names=["n1"], **asked) == (
            f"Nothing was changed. n1: kube-system/{plugin[0]} serves this node and writes its cards; "
            "use force: true to write them anyway."
        )
    assert run(cluster, names=["n1"], labels={"a": "b"})[0]["changed"]
    assert run(cluster, names=["n1"], cards=L4, force=True)[0]["changed"]
    # A cordon is nothing that a plugin writes.
    assert run(cluster, names=["n1"], state="cordoned")[0]["changed"]


@pytest.mark.parametrize(
    "plugin", [MOCK, (HAMI[0], "n2", HAMI[2]), ("proxy", "n1", {})], ids=["mock", "elsewhere", "other"]
)
def test_an_unserved_node_is_not(cluster: Any, daemon_set: Any, plugin: tuple[str, str, Object]) -> None:
    add_node(cluster)
    daemon_set(*plugin, command=["kube-proxy"])
    assert run(cluster, names=["n1"], cards=L4)[0]["changed"]


def test_nothing_serves_a_node_of_kwok(cluster: Any, daemon_set: Any) -> None:
    add_node(cluster, **{"kwok.x-k8s.io/node": "fake"})
    daemon_set(*HAMI)
    assert run(cluster, names=["n1"], cards=L4)[0]["changed"]


def test_a_plugin_that_answers_the_handshake(cluster: Any) -> None:
    add_node(cluster, handshake="Reported 2026-06-14 15:05:03.1 +0000 UTC m=+1.0")
    add_node(cluster, "n2", handshake="Requesting_2026-06-14 15:05:03")
    assert "n1: a plugin of HAMi 2.7 or older (its handshake says so) serves" in refused(
        cluster, names=["n1", "n2"], cards=L4
    )
    assert run(cluster, names=["n2"], cards=L4)[0]["changed"]


# --- what happens meanwhile ---


def test_a_node_that_changes_meanwhile_keeps_the_change(cluster: Any) -> None:
    path = add_node(cluster)
    changes = iter([{"node_handshake": "Requesting_1"}, {"node_nvidia_register": json.dumps([ASCEND])}])

    def meanwhile(patched: str) -> None:
        change = next(changes, None)
        if change:
            cluster.annotate(path, **change)

    cluster.before_patch = meanwhile
    run(cluster, names=["n1"], cards=L4)
    assert cluster.verbs("patch") == [path] * 3
    assert cluster.annotations(path)["hami.io/node-handshake"] == "Requesting_1"
    assert [card.type for card in parse_register(cluster.annotations(path)[REGISTER])] == [
        "NVIDIA-NVIDIA L4",
        "Ascend910",
    ]


def test_a_node_that_vanishes_is_named_and_the_others_finished(cluster: Any) -> None:
    for name in ("n1", "n2", "n3"):
        add_node(cluster, name)
    cluster.before_patch = lambda path: cluster.objects.pop("/api/v1/nodes/n2", None)
    made = declarer(cluster, names=["n1", "n2", "n3"], cards=L4)
    plans = made.plan()
    failed = made.apply(plans)
    assert failed == {"n2": "it vanished meanwhile"}
    assert [module.describe(plan, failed.get(plan.name, ""))["changed"] for plan in plans] == [True, False, True]
    assert all(cluster.annotations(f"/api/v1/nodes/{name}")[REGISTER] for name in ("n1", "n3"))


@pytest.mark.parametrize(("status", "tries"), [(403, 1), (409, 3), (429, 3), (0, 3)])
def test_what_passes_is_tried_again_within_bounds(cluster: Any, status: int, tries: int) -> None:
    add_node(cluster)

    def refuse(path: str) -> None:
        raise ClusterError(f"PATCH {path}: {status} no", status)

    cluster.before_patch = refuse
    made = declarer(cluster, names=["n1"], cards=L4)
    assert made.apply(made.plan()) == {"n1": f"PATCH /api/v1/nodes/n1: {status} no"}
    assert len(cluster.verbs("patch")) >= tries
    assert status != 403 or len(cluster.verbs("patch")) == 1


# --- diff ---


def test_diff_is_for_people(cluster: Any) -> None:
    add_node(cluster, slots="5")
    add_node(cluster, "n2", register=register("n2"), slots="10")
    made = declarer(cluster, names=["n1", "n2"], cards=L4, cordoned=[], allocatable=True)
    diff = module.diff_of(made.plan())
    (card,) = cards_from_profiles("n1", L4)
    assert diff == {
        "before": "n1:\n  allocatable nvidia.com/gpu: 5 of 5\n",
        "after": (
            f"n1:\n  card 0: {card.uuid} NVIDIA-NVIDIA L4, 24576 MiB, 100 cores, 10 slots, numa 0, hami-core, healthy\n"
            "  register: json\n  allocatable nvidia.com/gpu: 10 of 10\n"
        ),
    }


# --- properties ---

NAMES = strategies.text("abc-019", min_size=1, max_size=8)
CARD = strategies.fixed_dictionaries(
    {"profile": strategies.sampled_from(["l4", "h100", "t4"]), "count": strategies.integers(1, 3)},
    optional={
        "slots": strategies.integers(1, 20),
        "numa": strategies.integers(-1, 3),
        "healthy": strategies.booleans(),
        "memory_mib": strategies.integers(1, 200_000),
    },
)
DECLARATION = strategies.lists(CARD, min_size=1, max_size=4)
SETTINGS = module.Settings("present", "found", {}, True, False)


def state(text: str = "") -> module.State:
    return module.State(text, "", (), "", "")


@given(NAMES, DECLARATION, DECLARATION, strategies.sampled_from(["found", "json", "colons"]))
def test_what_is_wanted_is_wanted_no_more(name: str, first: list[Object], second: list[Object], form: str) -> None:
    settings = module.replace(SETTINGS, register_format=form)
    found = module.wanted(state(), module.Wish(tuple(cards_from_profiles(name, first)), None), settings)
    wish = module.Wish(tuple(cards_from_profiles(name, second)), None)
    after = module.wanted(found, wish, settings)
    assert parse_register(after.register) == list(wish.cards or ())
    assert module.wanted(after, wish, settings) == after
    assert module.patch_of(after, module.wanted(after, wish, settings)) is None
    gone = module.wanted(after, wish, module.replace(settings, state="absent"))
    assert gone == state()


@given(strategies.text(max_size=60))
def test_any_register_is_read_or_named(text: str) -> None:
    wish = module.Wish(tuple(cards_from_profiles("n1", L4)), None)
    try:
        after = module.wanted(state(text), wish, SETTINGS)
    except HamiFormatError:
        after = module.wanted(state(text), wish, module.replace(SETTINGS, force=True))
    assert module.nvidia_cards(after.register) == list(wish.cards or ())
