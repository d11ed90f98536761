"""The whole simulator against a kubelet that speaks the protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from gpu_simulator.__main__ import Simulator
from gpu_simulator.lifecycle import Lifecycle
from gpu_simulator.plugin import DevicePlugin

REGISTER = "hami.io/node-nvidia-register"
UNHEALTHY = "tenantry.gpu/unhealthy-cards"
CARDS = "/api/v1/namespaces/gpu-simulator/configmaps/cards"
CARD = {"id": "GPU-1", "count": 10, "devmem": 24576, "devcore": 100, "type": "NVIDIA-NVIDIA L4", "health": True}


def declare(api: Any, *cards: dict[str, Any]) -> None:
    api.put(CARDS, {"metadata": {"name": "cards"}, "data": {api.node: json.dumps(cards)}})


def command(api: Any, **annotations: str | None) -> None:
    api.patch(api.node_path, {"metadata": {"annotations": annotations}})


def registered(api: Any) -> list[dict[str, Any]]:
    return json.loads(api.annotations(api.node_path).get(REGISTER, "[]"))


class Running:
    def __init__(self, api: Any, kubelet: Any, lifecycle: Lifecycle | None) -> None:
        self.plugin = DevicePlugin(kubelet.folder, lifecycle)
        self.simulator = Simulator(api, self.plugin, api.node, "gpu-simulator", "cards")
        self.status: int | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.status = self.simulator.run()

    def stop(self) -> int | None:
        self.simulator.stop()
        self.thread.join(5)
        return self.status


@pytest.fixture
def running(api: Any, kubelet: Any) -> Iterator[Running]:
    declare(api, CARD, {**CARD, "id": "GPU-2", "index": 1})
    running = Running(api, kubelet, Lifecycle(api, api.node))
    kubelet.until(lambda: kubelet.allocatable == 20)
    yield running
    running.stop()


def test_cards_are_registered_and_offered(api: Any, kubelet: Any, running: Running) -> None:
    assert kubelet.registrations[0].resource_name == "nvidia.com/gpu"
    assert kubelet.registrations[0].version == "v1beta1"
    assert [card["id"] for card in registered(api)] == ["GPU-1", "GPU-2"]
    assert "GPU-2-9" in kubelet.devices


@pytest.mark.parametrize("name", ["GPU-2", "1"])
def test_a_card_falls_ill_and_recovers_on_command(api: Any, kubelet: Any, running: Running, name: str) -> None:
    command(api, **{UNHEALTHY: name})
    kubelet.until(lambda: kubelet.allocatable == 10)
    assert [card.get("health", False) for card in registered(api)] == [True, False]
    command(api, **{UNHEALTHY: None})
    kubelet.until(lambda: kubelet.allocatable == 20)
    assert [card["health"] for card in registered(api)] == [True, True]


def test_other_cards_are_taken_over_without_a_restart(api: Any, kubelet: Any, running: Running) -> None:
    declare(api, CARD)
    kubelet.until(lambda: kubelet.allocatable == 10 and len(kubelet.devices) == 10)
    assert [card["id"] for card in registered(api)] == ["GPU-1"]


def test_cards_that_cannot_be_read_change_nothing(api: Any, kubelet: Any, running: Running) -> None:
    api.put(CARDS, {"metadata": {"name": "cards"}, "data": {api.node: "[{}]"}})
    api.put(CARDS, {"metadata": {"name": "cards"}, "data": {api.node: "GPU-1,10"}})
    command(api, unrelated="x")
    assert len(registered(api)) == 2
    assert kubelet.allocatable == 20


def test_a_register_that_someone_deleted_is_written_again(api: Any, kubelet: Any, running: Running) -> None:
    command(api, **{REGISTER: None})
    kubelet.until(lambda: len(registered(api)) == 2)


def test_changes_of_the_node_that_mean_nothing_are_not_sent_to_kubelet(
    api: Any, kubelet: Any, running: Running
) -> None:
    before = kubelet.lists
    for number in range(5):
        command(api, heartbeat=str(number))
    command(api, **{UNHEALTHY: "0"})
    kubelet.until(lambda: kubelet.allocatable == 10)
    assert kubelet.lists == before + 1


def test_it_registers_again_when_kubelet_restarts(kubelet: Any, running: Running) -> None:
    kubelet.stop()
    kubelet.start()
    kubelet.until(lambda: len(kubelet.registrations) == 2)
    kubelet.until(lambda: kubelet.allocatable == 20)


def test_allocate(api: Any, kubelet: Any, running: Running) -> None:
    annotations = {
        "hami.io/vgpu-node": api.node,
        "hami.io/vgpu-devices-to-allocate": "GPU-2,NVIDIA,6000,30:;",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1",
    }
    api.put(
        "/api/v1/namespaces/team/pods/train",
        {"metadata": {"namespace": "team", "name": "train", "annotations": annotations}},
    )
    command(api, **{"hami.io/mutex.lock": "2026-06-14T15:05:03Z,team,train"})
    (limits,) = kubelet.allocate(["GPU-1-0"])
    assert limits["CUDA_DEVICE_MEMORY_LIMIT_0"] == "6000m"
    assert limits["NVIDIA_VISIBLE_DEVICES"] == "GPU-2"
    assert "hami.io/mutex.lock" not in api.annotations(api.node_path)


def test_allocate_without_a_pod_is_an_error_for_kubelet(kubelet: Any, running: Running) -> None:
    with pytest.raises(Exception, match="no pod is being bound"):
        kubelet.allocate(["GPU-1-0"])


def test_lifecycle_none_answers_empty(api: Any, kubelet: Any) -> None:
    declare(api, CARD)
    running = Running(api, kubelet, None)
    kubelet.until(lambda: kubelet.allocatable == 10)
    assert kubelet.allocate(["GPU-1-0"], ["GPU-1-1"]) == [{}, {}]
    running.stop()


def test_a_node_without_cards_offers_none(api: Any, kubelet: Any) -> None:
    api.put(CARDS, {"metadata": {"name": "cards"}, "data": {"another": "[]"}})
    running = Running(api, kubelet, None)
    kubelet.until(lambda: kubelet.lists == 1)
    assert kubelet.devices == {}
    assert REGISTER not in api.annotations(api.node_path)
    assert running.stop() == 0


def test_it_stops_cleanly(kubelet: Any, running: Running) -> None:
    assert running.stop() == 0
    assert not running.plugin.socket.exists()
    kubelet.until(lambda: kubelet.allocatable == 0)
