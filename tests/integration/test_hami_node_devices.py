"""Cards of many nodes on a real API server: plugins that serve them, nodes that change and vanish meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import Api, ControlPlane
from playbook import run_module

Object = dict[str, Any]

REGISTER = "hami.io/node-nvidia-register"
NODES = [f"many-{number}" for number in range(40)]
L4 = [{"profile": "l4", "count": 2}]


@pytest.fixture
def nodes(control_plane: ControlPlane) -> Iterator[Api]:
    api = control_plane.api
    api.create_all("/api/v1/nodes", [{"metadata": {"name": name}} for name in NODES])
    yield api
    for name in {node["metadata"]["name"] for node in api.items("/api/v1/nodes")} & set(NODES):
        api.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def declare(control_plane: ControlPlane, tmp_path: Path) -> Callable[..., Object]:
    kubeconfig = str(control_plane.kubeconfig_of_module("hami_node_devices"))
    return lambda **options: run_module(tmp_path, "hami_node_devices", {"kubeconfig": kubeconfig, **options})


@pytest.fixture
def meanwhile() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Does something again and again until the test ends."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def begin(action: Callable[[], object]) -> None:
        def repeat() -> None:
            while not stop.wait(0.01):
                action()

        threads.append(threading.Thread(target=repeat))
        threads[-1].start()

    yield begin
    stop.set()
    for thread in threads:
        thread.join()


def versions(api: Api) -> dict[str, str]:
    listed = api.items("/api/v1/nodes")
    return {node["metadata"]["name"]: node["metadata"]["resourceVersion"] for node in listed}


def test_a_second_run_writes_nothing(nodes: Api, declare: Callable[..., Object]) -> None:
    options: Object = {"names": NODES, "cards": L4, "allocatable": True, "labels": {"gpu": "on"}}
    first = declare(**options)
    assert [node["changed"] for node in first["nodes"]] == [True] * len(NODES)
    assert len({card["uuid"] for node in first["nodes"] for card in node["cards"]}) == 2 * len(NODES)
    before = versions(nodes)
    second = declare(**options)
    assert not second["changed"]
    assert [node["cards"] for node in second["nodes"]] == [node["cards"] for node in first["nodes"]]
    assert versions(nodes) == before


def test_nodes_that_change_meanwhile_keep_both_changes(
    nodes: Api, declare: Callable[..., Object], meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    counter = iter(range(1_000_000))

    def stamp() -> None:
        for name in NODES[:10]:
            handshake = {"hami.io/node-handshake": f"Requesting_{next(counter)}"}
            nodes.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": handshake}})

    meanwhile(stamp)
    assert declare(names=NODES, cards=L4)["changed"]
    for name in NODES:
        found = nodes.get(f"/api/v1/nodes/{name}")["metadata"]["annotations"]
        assert [card["devmem"] for card in json.loads(found[REGISTER])] == [24576, 24576]
        assert (name in NODES[:10]) == ("hami.io/node-handshake" in found)


def test_a_node_whose_plugin_runs_is_refused(nodes: Api, declare: Callable[..., Object]) -> None:
    labels = {"app.kubernetes.io/component": "hami-device-plugin"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "device-plugin", "image": "none"}]}}
    path, pods = "/apis/apps/v1/namespaces/kube-system/daemonsets", "/api/v1/namespaces/kube-system/pods"
    spec = {"selector": {"matchLabels": labels}, "template": template}
    nodes.ensure("/api/v1/namespaces/kube-system/serviceaccounts", {"metadata": {"name": "default"}})
    made = nodes.create(path, {"metadata": {"name": "hami-device-plugin"}, "spec": spec})
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "hami-device-plugin", "uid": made["metadata"]["uid"]}
    metadata = {"name": "hami-device-plugin-x", "labels": labels, "ownerReferences": [owner]}
    nodes.create(pods, {"metadata": metadata, "spec": {**template["spec"], "nodeName": NODES[3]}})
    try:
        # A pod that never started serves nothing.
        assert declare(names=NODES[3:4], cards=L4)["changed"]
        nodes.patch(f"{pods}/hami-device-plugin-x/status", {"status": {"phase": "Running"}})
        before = versions(nodes)
        refused = declare(names=NODES, cards=[{"profile": "t4"}])
        assert refused["msg"] == (
            f"Nothing was changed. {NODES[3]}: kube-system/hami-device-plugin serves this node and writes its cards; "
            "use force: true to write them anyway."
        )
        assert versions(nodes) == before
        assert declare(names=NODES[3:4], state="cordoned")["changed"]
        assert declare(names=NODES, cards=[{"profile": "t4"}], force=True)["changed"]
    finally:
        nodes.delete(f"{pods}/hami-device-plugin-x")
        nodes.delete(f"{path}/hami-device-plugin")


def test_rights_that_are_missing_are_named(control_plane: ControlPlane, nodes: Api, tmp_path: Path) -> None:
    kubeconfig = str(control_plane.new_kubeconfig("nobody-declares"))
    answer = run_module(tmp_path, "hami_node_devices", {"kubeconfig": kubeconfig, "names": NODES, "cards": L4})
    assert 'User "nobody-declares" cannot list resource "nodes"' in answer["msg"]
