# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._devices import (
    Contradiction,
    Judge,
    NodeState,
    PodState,
    describe_node,
    enter_shares,
    node_state,
    pod_state,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Usage

Object = dict[str, Any]

NOW = datetime(2026, 6, 14, 15, 5, 8, tzinfo=timezone.utc)
LONG_AGO, JUST_NOW = str(int(NOW.timestamp()) - 300), str(int(NOW.timestamp()) - 2)
CARD = '{"id":"GPU-1","count":2,"devmem":1000,"devcore":100,"type":"NVIDIA-A100","mode":"hami-core","health":true}'
SICK = CARD.replace(',"health":true', "").replace("GPU-1", "GPU-2")
SHARE = "GPU-1,NVIDIA,500,30:;"


def node(name: str = "n1", slots: str = "2", register: str = f"[{CARD}]", **annotations: str) -> Object:
    found = {f"hami.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    if register:
        found["hami.io/node-nvidia-register"] = register
    return {"metadata": {"name": name, "annotations": found}, "status": {"allocatable": {"nvidia.com/gpu": slots}}}


def locked(text: str) -> Object:
    found = node()
    found["metadata"]["annotations"]["hami.io/mutex.lock"] = text
    return found


def pod(
    shares: str = SHARE,
    on: str = "n1",
    assigned: str | None = "n1",
    scheduler: str = "hami-scheduler",
    init: tuple[str, ...] = (),
    containers: tuple[str, ...] = ("main",),
    status: Object | None = None,
    **annotations: str,
) -> Object:
    """A pod whose containers ask for a card unless their name begins with ``plain``."""
    found = {f"hami.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    if shares:
        found["hami.io/vgpu-devices-allocated"] = shares
    if assigned is not None:
        found["hami.io/vgpu-node"] = assigned

    def container(name: str) -> Object:
        limits = {} if name.startswith("plain") else {"nvidia.com/gpu": "1"}
        return {"name": name, "resources": {"limits": limits}}

    spec: Object = {"schedulerName": scheduler, "containers": [container(name) for name in containers]}
    spec["initContainers"] = [container(name) for name in init]
    if on:
        spec["nodeName"] = on
    metadata = {"namespace": "team", "name": "train", "annotations": found}
    return {"metadata": metadata, "spec": spec, "status": status or {"phase": "Running"}}


def judged(nodes: list[Object], pods: list[Object], living: tuple[tuple[str, str], ...] = ()) -> list[Contradiction]:
    states = {state.name: state for state in map(node_state, nodes)}
    found = [state for state in map(pod_state, pods) if state]
    enter_shares(states.values(), found)
    return Judge(states, frozenset(living), NOW, 60).all(found)


@pytest.mark.parametrize(
    ("written", "init", "containers", "named"),
    [
        (SHARE, (), ("main",), (("main", False),)),
        (f"{SHARE};", (), ("main", "plain"), (("main", False), ("plain", False))),
        (f";{SHARE}", (), ("plain", "main"), (("plain", False), ("main", False))),
        # 2.10 leaves out the entries of containers without cards.
        (SHARE, (), ("plain", "main"), (("main", False),)),
        (SHARE + SHARE, ("prepare",), ("plain", "main"), (("prepare", True), ("main", False))),
        (SHARE + SHARE, (), ("plain", "plain-too", "main"), (("", False), ("", False))),
    ],
)
def test_a_share_is_its_container_s(
    written: str, init: tuple[str, ...], containers: tuple[str, ...], named: tuple[tuple[str, bool], ...]
) -> None:
    state = pod_state(pod(written, init=init, containers=containers))
    assert state and state.containers == named


FINISHED = {"phase": "Running", "initContainerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}
BROKEN = {"phase": "Pending", "initContainerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}


@pytest.mark.parametrize(
    ("status", "usage"),
    [
        ({"phase": "Pending"}, Usage(1, 900, 30)),
        (BROKEN, Usage(1, 900, 30)),
        (FINISHED, Usage(1, 100, 30)),
    ],
)
def test_an_init_container_counts_if_it_takes_more_and_until_it_has_ended(status: Object, usage: Usage) -> None:
    both = pod("GPU-1,NVIDIA,900,10:;GPU-1,NVIDIA,100,30:;", init=("prepare",), status=status)
    state, home = pod_state(both), node_state(node())
    assert state
    enter_shares([home], [state])
    assert home.cards[0].allocated == usage
    assert [(share.container, share.init) for share in home.cards[0].shares] == [("prepare", True), ("main", False)]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_has_nothing(phase: str) -> None:
    assert pod_state(pod(status={"phase": phase})) is None
    assert pod_state(pod("", assigned=None, containers=("plain",))) is None


@pytest.mark.parametrize(
    ("nodes", "pods", "kind", "message"),
    [
        ([node()], [pod()], "", ""),
        (
            [node(register="[{")],
            [],
            "unreadable",
            "n1: register '[{' is not JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 3 (char 2).",
        ),
        (
            [node()],
            [pod("GPU-1")],
            "unreadable",
            "team/train has an allocation that cannot be read: allocation 'GPU-1'",
        ),
        ([locked("yesterday")], [], "unreadable", "n1: lock 'yesterday'"),
        ([node(node_handshake="hello")], [], "unreadable", "n1: handshake 'hello'"),
        ([node(node_handshake="Requesting_2026.06.14 15:05:03")], [], "old_hami", "n1: handshake 'Requesting_2026.06."),
        (
            [node()],
            [pod("GPU-1,NVIDIA,600,70:;"), pod("GPU-1,NVIDIA,600,70:;"), pod("GPU-1,NVIDIA,0,0:;")],
            "overallocated",
            "Card GPU-1 of n1 is given away above its capacity: 3 of 2 slots, 1200 of 1000 memory_mib, "
            "140 of 100 cores.",
        ),
        (
            [locked("2026-06-14T15:04:08Z,team,gone")],
            [],
            "lock_without_holder",
            "n1 has been locked for 60 s for team/gone, which is gone or has ended; "
            "tenantry.gpu.hami_allocation releases it.",
        ),
        ([locked("2026-06-14T15:05:03Z")], [], "lock_without_holder", "locked for 5 s for no pod that it names"),
        ([locked("2026-06-14T15:05:03Z,team,train")], [pod()], "", ""),
        ([locked("2026-06-14T15:00:08Z,team,train")], [pod()], "lock_held_long", "locked for 300 s by team/train"),
        ([node(slots="0")], [], "register_without_allocatable", "n1 declares 2 healthy slots and offers no nvidia"),
        ([node(register="", slots="8")], [], "allocatable_without_register", "n1 offers 8 nvidia.com/gpu and declares"),
        ([node(register=f"[{SICK}]", slots="0")], [], "", ""),
        (
            [node()],
            [pod("", assigned=None, scheduler="default-scheduler")],
            "never_allocated",
            "team/train runs on n1 and asks for cards, and default-scheduler allocated it none",
        ),
        ([node()], [pod(bind_phase="allocating", bind_time=JUST_NOW)], "", ""),
        (
            [node()],
            [pod(bind_phase="allocating", bind_time=LONG_AGO)],
            "never_allocated",
            "team/train is bound to n1, whose device plugin has not finished its allocation within 60 s",
        ),
        ([node()], [pod(bind_phase="allocating", bind_time="soon")], "never_allocated", "team/train is bound to n1"),
        ([node()], [pod(on="", vgpu_time=JUST_NOW)], "", ""),
        (
            [node()],
            [pod(on="", vgpu_time=LONG_AGO)],
            "never_bound",
            "team/train was given shares on n1 and is not bound",
        ),
        (
            [node()],
            [pod(scheduler="default-scheduler")],
            "forged_allocation",
            "team/train has an allocation and is scheduled by default-scheduler, not hami-scheduler.",
        ),
        (
            [node(), node("n2", register=f"[{CARD.replace('GPU-1', 'GPU-3')}]")],
            [pod(on="n2")],
            "forged_allocation",
            "team/train runs on n2 and has an allocation on n1.",
        ),
        (
            [node()],
            [pod(assigned=None)],
            "forged_allocation",
            "team/train runs on n1 and has an allocation on no node.",
        ),
        ([node()], [pod(on="n9", assigned="n9")], "forged_allocation", "an allocation on n9, which does not exist"),
        (
            [node()],
            [pod("GPU-9,NVIDIA,1,1:;")],
            "forged_allocation",
            "team/train has a share of card GPU-9, which n1 does not declare.",
        ),
        (
            [node(register=f"[{CARD},{SICK}]")],
            [pod("GPU-2,NVIDIA,1,1:;")],
            "unhealthy_card_shared",
            "Card GPU-2 of n1 is unhealthy and team/train has shares of it.",
        ),
        ([node(), node("n2")], [], "duplicate_card", "n2 declares card GPU-1, and so does n1."),
        ([node(register='[{"id":"GPU-1","devmem":1}]', slots="0")], [], "card_without_capacity", "declares no slots"),
        ([node(register=f"[{CARD.replace('1000', '0')}]")], [], "card_without_capacity", "declares no memory"),
    ],
)
def test_contradictions(nodes: list[Object], pods: list[Object], kind: str, message: str) -> None:
    found = judged(nodes, pods, living=(("team", "train"),))
    assert [each.kind for each in found] == ([kind] if kind else [])
    assert all(message in each.message for each in found)


def test_cards_of_a_register_that_cannot_be_read_are_not_called_forged() -> None:
    assert [each.kind for each in judged([node(register="[{")], [pod()])] == ["unreadable"]


def test_what_is_readable_of_a_broken_node_is_read() -> None:
    broken = node(register="[{", node_handshake="Reported 2026-06-14 15:05:03.1 +0000 UTC")
    broken["metadata"]["annotations"]["hami.io/mutex.lock"] = "2026-06-14T15:05:03Z,team,train"
    state = node_state(broken)
    assert state.concerns_cards
    described = describe_node(state, state.cards, frozenset(), NOW)
    assert described["lock"] == {
        "taken_at": "2026-06-14T15:05:03+00:00",
        "age_s": 5,
        "namespace": "team",
        "pod": "train",
    }
    assert described["handshake"] == {"state": "reported", "at": "2026-06-14 15:05:03"}
    assert "is not JSON" in described["error"]


@pytest.mark.parametrize("slots", ["", "many", "-1", "9" * 5000, None])
def test_slots_that_are_no_number_are_none(slots: Any) -> None:
    assert node_state(node(slots=slots)).allocatable_slots == 0


def test_a_node_without_annotations_or_status_concerns_no_cards() -> None:
    assert node_state({"metadata": {"name": "plain"}}) == NodeState("plain")
    assert pod_state({"metadata": {"name": "plain", "namespace": "team"}}) is None


def test_a_pod_s_title() -> None:
    assert PodState("team", "train", "x").title == "team/train"
