# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import ClusterError
from ansible_collections.tenantry.gpu.plugins.modules import hami_device_info as module

Object = dict[str, Any]

NOW = datetime(2026, 6, 14, 15, 5, 8, tzinfo=timezone.utc)
CARD = '[{"id":"GPU-1","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA-A100","mode":"hami-core","health":true}]'
PARAMS: Object = {
    "nodes": None,
    "label_selector": None,
    "wait_for_scheduler": False,
    "scheduler_namespace": "hami-system",
    "scheduler_service": "hami-scheduler",
}


def node(name: str = "n1", slots: str = "10", **annotations: str) -> Object:
    found = {"hami.io/node-nvidia-register": CARD, **{f"hami.io/{key}": text for key, text in annotations.items()}}
    return {"metadata": {"name": name, "annotations": found}, "status": {"allocatable": {"nvidia.com/gpu": slots}}}


def pod(name: str, shares: str = "GPU-1,NVIDIA,20000,30:;", phase: str = "Running", on: str = "n1") -> Object:
    annotations = {"hami.io/vgpu-devices-allocated": shares, "hami.io/vgpu-node": on}
    return {"metadata": {"name": name, "namespace": "team", "annotations": annotations}, "status": {"phase": phase}}


class FakeCluster:
    def __init__(self, nodes: list[Object], pods: list[Object], metrics: list[str] | None = None) -> None:
        self.things = {"/api/v1/nodes": nodes, "/api/v1/pods": pods}
        self.metrics = metrics or []

    def list(self, path: str, **query: str) -> Iterator[Object]:
        return iter(self.things[path])

    def text(self, path: str, **query: str) -> str:
        if not self.metrics:
            raise ClusterError("503 no endpoints available")
        return self.metrics.pop(0) if len(self.metrics) > 1 else self.metrics[0]


def read(cluster: FakeCluster, wanted: Object | None = None, timeout_s: float = 0, **params: Any) -> Object:
    return module.read(module.Reader(cluster, {**PARAMS, **params}), wanted or {}, timeout_s)  # type: ignore[arg-type]


def test_cards_shares_and_sums() -> None:
    pods = [pod("a"), pod("b", ";GPU-1,NVIDIA,1000,0:;"), pod("done", phase="Succeeded"), pod("x", on="n2")]
    result = read(FakeCluster([node()], pods))
    (card,) = result["nodes"][0]["cards"]
    assert [(share["pod"], share["container"]) for share in card["shares"]] == [("a", 0), ("b", 1)]
    assert card["allocated"] == {"memory_mib": 21000, "cores": 30, "slots": 2}
    assert card["free"] == {"memory_mib": 60920, "cores": 70, "slots": 8}
    assert result["totals"] == {
        "nodes": 1,
        "cards": 1,
        "memory_mib": 81920,
        "cores": 100,
        "slots": 10,
        "allocatable_slots": 10,
        "allocated": {"memory_mib": 21000, "cores": 30, "slots": 2},
    }


def test_lock_and_cordon() -> None:
    described = module.describe_node(
        node(**{"mutex.lock": "2026-06-14T15:05:03Z,team,train", "device-cordon": "GPU-1"}), NOW
    )
    assert described["lock"] == {
        "taken_at": "2026-06-14T15:05:03+00:00",
        "age_s": 5,
        "namespace": "team",
        "pod": "train",
    }
    assert described["cards"][0]["cordoned"] is True


def test_what_cannot_be_read_is_named() -> None:
    broken = node("broken", **{"node-nvidia-register": "[{]"})
    result = read(FakeCluster([broken, node()], [pod("odd", "GPU-1,NVIDIA,much,30:;")]))
    assert "is not JSON" in result["nodes"][0]["error"]
    assert result["unreadable_pods"][0].startswith("team/odd: memory 'much'")


def test_nodes_without_cards_are_left_out_and_others_chosen_by_name() -> None:
    plain = {"metadata": {"name": "plain"}, "status": {"allocatable": {"cpu": "2"}}}
    assert [each["name"] for each in read(FakeCluster([plain, node()], []))["nodes"]] == ["n1"]
    assert read(FakeCluster([node()], []), nodes=["n2"])["nodes"] == []


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
        read(FakeCluster(nodes, []), {"n1": 10})


def test_the_scheduler_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0)
    metrics = ["", 'hami_gpu_memory_limit_bytes{device_uuid="GPU-1"} 1']
    assert read(FakeCluster([node()], [], metrics), {"n1": 10}, 5, wait_for_scheduler=True)["nodes"]
    with pytest.raises(ClusterError, match="scheduler does not know card GPU-1"):
        read(FakeCluster([node()], [], [" "]), {"n1": 10}, wait_for_scheduler=True)
    with pytest.raises(ClusterError, match="scheduler does not answer"):
        read(FakeCluster([node()], []), {"n1": 10}, wait_for_scheduler=True)
