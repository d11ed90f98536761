# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import ClusterError
from ansible_collections.tenantry.gpu.plugins.modules import hami_device_info as module

Object = dict[str, Any]

CARD = '[{"id":"GPU-1","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA-A100","mode":"hami-core","health":true}]'
PARAMS: Object = {
    "nodes": None,
    "label_selector": None,
    "namespaces": None,
    "states": None,
    "pods": "all",
    "stuck_after_s": 60,
    "scheduler_name": "hami-scheduler",
    "hami_version": None,
    "wait_for_slots": None,
    "wait_timeout_s": 0,
    "wait_for_scheduler": False,
    "scheduler_namespace": "hami-system",
    "scheduler_service": "hami-scheduler",
}


def node(name: str = "n1", slots: str = "10", **annotations: str) -> Object:
    found = {"hami.io/node-nvidia-register": CARD, **{f"hami.io/{key}": text for key, text in annotations.items()}}
    return {"metadata": {"name": name, "annotations": found}, "status": {"allocatable": {"nvidia.com/gpu": slots}}}


def pod(name: str, shares: str = "GPU-1,NVIDIA,20000,30:;", phase: str = "Running", on: str = "n1") -> Object:
    annotations = {"hami.io/vgpu-devices-allocated": shares, "hami.io/vgpu-node": on, "hami.io/bind-phase": "success"}
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": name, "namespace": "team", "annotations": annotations, "labels": {}},
        "spec": {"nodeName": on, "schedulerName": "hami-scheduler", "containers": [{"name": "main", **limits}]},
        "status": {"phase": phase},
    }


class FakeCluster:
    """Serves nodes and pods; of the selectors it knows those that the module sends."""

    def __init__(self, nodes: list[Object], pods: list[Object], metrics: list[str] | None = None) -> None:
        self.nodes, self.pods = nodes, pods
        self.metrics = metrics or []
        self.queries: list[tuple[str, Object]] = []

    def list(self, path: str, **query: str) -> Iterator[Object]:
        self.queries.append((path, query))
        if query.get("labelSelector") == "gpu=on":
            return (each for each in self.nodes if (each["metadata"].get("labels") or {}).get("gpu") == "on")
        return iter(self.nodes if path.endswith("/nodes") else self.pods)

    def get(self, path: str, **query: str) -> Object:
        for each in self.nodes:
            if path == f"/api/v1/nodes/{each['metadata']['name']}":
                return each
        raise ClusterError("not found", 404)

    def text(self, path: str, **query: str) -> str:
        if not self.metrics:
            raise ClusterError("503 no endpoints available")
        return self.metrics.pop(0) if len(self.metrics) > 1 else self.metrics[0]


def read(cluster: FakeCluster, **params: Any) -> Object:
    every = {**PARAMS, **params}
    return module.read(module.Reader(cluster, every), every)  # type: ignore[arg-type]


def kinds(result: Object) -> list[str]:
    return [each["kind"] for each in result["contradictions"]]


def test_cards_shares_and_sums() -> None:
    pods = [pod("a"), pod("b", "GPU-1,NVIDIA,1000,0:;"), pod("done", phase="Succeeded")]
    result = read(FakeCluster([node()], pods))
    (found,) = result["nodes"]
    (card,) = found["cards"]
    assert card["shares"][0] == {
        "namespace": "team",
        "pod": "a",
        "container": "main",
        "init": False,
        "memory_mib": 20000,
        "cores": 30,
    }
    assert card["allocated"] == found["allocated"] == {"memory_mib": 21000, "cores": 30, "slots": 2}
    assert card["free"] == found["free"] == {"memory_mib": 60920, "cores": 70, "slots": 8}
    assert result["totals"] == {
        "nodes": 1,
        "cards": 1,
        "memory_mib": 81920,
        "cores": 100,
        "slots": 10,
        "allocatable_slots": 10,
        "allocated": {"memory_mib": 21000, "cores": 30, "slots": 2},
        "free": {"memory_mib": 60920, "cores": 70, "slots": 8},
    }
    assert result["contradictions"] == []
    assert result["hami"] == {"nodes": 1, "scheduler_found": False, "version": "", "before_2_6": []}
    assert module.warnings_of(result) == []


def test_what_cannot_be_read_is_named() -> None:
    broken = node("broken", **{"node-nvidia-register": "[{]"})
    result = read(FakeCluster([broken, node()], [pod("odd", "GPU-1,NVIDIA,much,30:;")]))
    assert "is not JSON" in result["nodes"][0]["error"]
    assert kinds(result) == ["unreadable", "unreadable"]
    assert "team/odd has an allocation that cannot be read: memory 'much'" in result["contradictions"][1]["message"]


def test_nodes_without_cards_are_left_out_and_others_chosen_by_name_and_label() -> None:
    plain = {"metadata": {"name": "plain"}, "status": {"allocatable": {"cpu": "2"}}}
    labelled = node("n2", **{"node-nvidia-register": CARD.replace("GPU-1", "GPU-2")})
    labelled["metadata"]["labels"] = {"gpu": "on"}
    cluster = FakeCluster([plain, node(), labelled], [])
    assert [each["name"] for each in read(cluster)["nodes"]] == ["n1", "n2"]
    assert [each["name"] for each in read(cluster, label_selector="gpu=on")["nodes"]] == ["n2"]
    assert [each["name"] for each in read(cluster, nodes=["n1"])["nodes"]] == ["n1"]
    assert read(cluster, nodes=["n1"], label_selector="gpu=on")["nodes"] == []


def test_a_namespace_s_shares_alone_and_true_sums() -> None:
    other = pod("theirs", "GPU-9,NVIDIA,1,0:;")
    other["metadata"]["namespace"] = "other"
    theirs = pod("also")
    theirs["metadata"]["namespace"] = "other"
    result = read(FakeCluster([node()], [pod("ours"), other, theirs]), namespaces=["team"])
    (card,) = result["nodes"][0]["cards"]
    assert [share["pod"] for share in card["shares"]] == ["ours"]
    assert card["allocated"]["slots"] == 2
    # What is wrong with another namespace's pod is not ours to know.
    assert result["contradictions"] == []


@pytest.mark.parametrize(
    ("states", "cards"),
    [
        (None, ["GPU-1", "GPU-2", "GPU-3"]),
        (["healthy"], ["GPU-1", "GPU-2"]),
        (["unhealthy"], ["GPU-3"]),
        (["cordoned", "unhealthy"], ["GPU-2", "GPU-3"]),
        (["shared"], ["GPU-1"]),
        (["idle"], ["GPU-2", "GPU-3"]),
        (["full"], ["GPU-1"]),
    ],
)
def test_cards_are_chosen_by_state(states: list[str] | None, cards: list[str]) -> None:
    entry = CARD[1:-1]
    register = [entry, entry.replace("GPU-1", "GPU-2"), entry.replace("GPU-1", "GPU-3").replace(',"health":true', "")]
    several = node(**{"node-nvidia-register": f"[{','.join(register)}]", "device-cordon": "GPU-2"})
    cluster = FakeCluster([several, node("n2", **{"node-nvidia-register": "[]"})], [pod("a", "GPU-1,NVIDIA,1,100:;")])
    result = read(cluster, states=states)
    assert [card["uuid"] for card in result["nodes"][0]["cards"]] == cards
    assert len(result["nodes"]) == (2 if states is None else 1)
    assert result["totals"]["cards"] == len(cards)


def test_only_labelled_pods_are_asked_for_if_that_will_do() -> None:
    cluster = FakeCluster([node()], [])
    result = read(cluster, pods="labelled")
    assert cluster.queries[-1][1]["labelSelector"] == "hami.io/vgpu-node"
    assert result["hami"]["scheduler_found"] is None


def test_a_lock_that_was_released_meanwhile_is_no_contradiction() -> None:
    locked = node(**{"mutex.lock": "2026-06-14T15:05:03Z,team,gone"})
    cluster = FakeCluster([locked], [])
    (found,) = read(cluster)["contradictions"]
    assert (found["kind"], found["node"], found["pod"]) == ("lock_without_holder", "n1", "gone")
    for now in (node(), node(**{"mutex.lock": "2026-06-14T15:05:04Z,team,other"})):
        cluster.get = lambda path, now=now, **query: now  # type: ignore[method-assign]
        assert read(cluster)["contradictions"] == []


def test_a_node_that_vanishes_meanwhile_has_no_lock() -> None:
    cluster = FakeCluster([node(**{"mutex.lock": "2026-06-14T15:05:03Z,team,gone"})], [])
    listed = list(cluster.nodes)
    cluster.list = lambda path, **query: iter(listed if path.endswith("nodes") else [])  # type: ignore[method-assign]
    cluster.nodes = []
    assert read(cluster)["contradictions"] == []


@pytest.mark.parametrize(
    ("image", "told", "memory_mib", "version"),
    [
        ("", None, 900, ""),
        ("mirror.example:5000/projecthami/hami:v2.10.0", None, 900, "2.10"),
        ("projecthami/hami:v2.9.1", None, 1000, "2.9"),
        ("projecthami/hami:2.7", None, 1000, "2.7"),
        ("projecthami/hami@sha256:0", None, 900, ""),
        ("projecthami/hami:v2.9.1", "2.10", 900, "2.9"),
        ("", "2.9", 1000, ""),
    ],
)
def test_init_containers_count_as_that_version_counts_them(
    image: str, told: str | None, memory_mib: int, version: str
) -> None:
    prepared = pod("a", "GPU-1,NVIDIA,900,0:;GPU-1,NVIDIA,100,0:;")
    prepared["spec"]["initContainers"] = [{"name": "prepare"}]
    scheduler = pod("z-scheduler", "")
    scheduler["metadata"]["labels"] = {"app.kubernetes.io/component": "hami-scheduler"}
    scheduler["spec"]["containers"] = [{"image": "registry.k8s.io/kube-scheduler:v1.34.0"}, {"image": image}]
    del scheduler["metadata"]["annotations"]
    result = read(FakeCluster([node()], [prepared, scheduler]), hami_version=told)
    assert result["totals"]["allocated"]["memory_mib"] == memory_mib
    assert (result["hami"]["scheduler_found"], result["hami"]["version"]) == (True, version)


def test_hami_absent_or_old_is_said_first() -> None:
    scheduler = pod("hami-scheduler-0", "")
    scheduler["metadata"]["labels"] = {"app.kubernetes.io/component": "hami-scheduler"}
    plain = {"metadata": {"name": "plain"}}
    absent = read(FakeCluster([plain], []))
    assert module.warnings_of(absent) == [
        "No node declares a card to HAMi and no pod of its scheduler runs: install HAMi, or see why its device plugin "
        "registers none."
    ]
    assert "scheduler" not in module.warnings_of(read(FakeCluster([plain], [scheduler])))[0]
    old = node(**{"node-nvidia-register": "GPU-1,10,81920,100,NVIDIA-A100,0,true:"})
    result = read(FakeCluster([old], []))
    assert result["hami"]["before_2_6"] == ["n1"]
    assert "seven fields a card is that of a HAMi before 2.6" in module.warnings_of(result)[0]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "n1 declares 0 and offers 0 of 10 slots"),
        ([node(slots="0")], "n1 declares 10 and offers 0 of 10 slots"),
        ([node(**{"node-nvidia-register": "[]"})], "n1 declares 0 and offers 10 of 10 slots"),
    ],
)
def test_slots_that_do_not_come_are_told(nodes: list[Object], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0)
    with pytest.raises(ClusterError, match=message):
        read(FakeCluster(nodes, []), wait_for_slots={"n1": 10})
    with pytest.raises(ClusterError, match="give the number of slots for each node"):
        read(FakeCluster(nodes, []), wait_for_slots={"n1": "ten"})


def test_the_scheduler_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0)
    wanted: Object = {"wait_for_slots": {"n1": "10"}, "wait_for_scheduler": True}
    metrics = ["", 'hami_gpu_memory_limit_bytes{device_uuid="GPU-1"} 1']
    assert read(FakeCluster([node()], [], metrics), **wanted, wait_timeout_s=5)["nodes"]
    with pytest.raises(ClusterError, match="scheduler does not know card GPU-1"):
        read(FakeCluster([node()], [], [" "]), **wanted)
    with pytest.raises(ClusterError, match="scheduler does not answer"):
        read(FakeCluster([node()], []), **wanted)
