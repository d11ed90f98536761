"""Two runs that finish the same allocations on a real API server, and pods that come one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from control_plane import Api, ControlPlane
from playbook import run_module

Object = dict[str, Any]

NAMESPACE = "left"
PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
NODES = [f"left-{number}" for number in range(20)]
LOCK, PHASE = "hami.io/mutex.lock", "hami.io/bind-phase"


def lock_of(pod: str) -> str:
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ},{NAMESPACE},{pod}"


@pytest.fixture
def api(control_plane: ControlPlane) -> Iterator[Api]:
    api = control_plane.api
    api.ensure("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    api.ensure(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
    api.create_all("/api/v1/nodes", [{"metadata": {"name": name}} for name in NODES])
    yield api
    for pod in api.items(PODS_PATH):
        api.delete(f"{PODS_PATH}/{pod['metadata']['name']}")
    for name in NODES:
        api.delete(f"/api/v1/nodes/{name}")


def create(api: Api, pod: str) -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    api.create(
        PODS_PATH, {"metadata": {"name": pod}, "spec": {"schedulerName": "hami-scheduler", "containers": [container]}}
    )


def bind(api: Api, pod: str, node: str) -> None:
    """Bind a pod as HAMi does: lock, annotations, binding."""
    shares = "GPU-1,NVIDIA,1000,10:;"
    marks = {
        "hami.io/vgpu-node": node,
        PHASE: "allocating",
        "hami.io/bind-time": str(int(time.time())),
        "hami.io/vgpu-devices-to-allocate": shares,
        "hami.io/vgpu-devices-allocated": shares,
    }
    api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {LOCK: lock_of(pod)}}})
    api.patch(f"{PODS_PATH}/{pod}", {"metadata": {"annotations": marks, "labels": {"hami.io/vgpu-node": node}}})
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    api.create(f"{PODS_PATH}/{pod}/binding", {"metadata": {"name": pod}, "target": target})


def locked(api: Api) -> dict[str, str]:
    nodes = api.items("/api/v1/nodes")
    found = {node["metadata"]["name"]: (node["metadata"].get("annotations") or {}).get(LOCK, "") for node in nodes}
    return {name: text for name, text in found.items() if text and name in NODES}


@pytest.fixture
def finish(control_plane: ControlPlane, tmp_path: Path) -> Callable[..., Object]:
    kubeconfig = str(control_plane.kubeconfig_of_module("hami_allocation"))

    def run(run: str = "one", **options: Any) -> Object:
        return run_module(tmp_path / run, "hami_allocation", {"kubeconfig": kubeconfig, **options})

    return run


def test_two_runs_that_meet_do_each_thing_once(api: Api, finish: Callable[..., Object]) -> None:
    for number, node in enumerate(NODES):
        create(api, f"p{number}")
        bind(api, f"p{number}", node)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda run: finish(run, nodes=NODES), ("one", "two")))
    assert [answer.get("msg", "") for answer in answers] == ["", ""]
    for what, key in (("pods", "pod"), ("locks", "node")):
        done = [each[key] for answer in answers for each in answer[what]]
        assert len(done) == len(set(done)) == len(NODES)
    assert locked(api) == {}
    assert {pod["metadata"]["annotations"][PHASE] for pod in api.items(PODS_PATH)} == {"success"}


def test_pods_come_one_after_the_other(api: Api, finish: Callable[..., Object]) -> None:
    waiting = [f"next-{number}" for number in range(4)]
    for pod in waiting:
        create(api, pod)
    ended = threading.Event()

    def schedule() -> None:
        left = list(waiting)
        while left and not ended.wait(0.1):
            if NODES[0] not in locked(api):
                bind(api, left.pop(0), NODES[0])

    scheduler = threading.Thread(target=schedule)
    scheduler.start()
    try:
        answer = finish(nodes=[NODES[0]], wait=True, wait_timeout_s=60)
    finally:
        ended.set()
        scheduler.join()
    assert [pod["pod"] for pod in answer["pods"]] == waiting
    assert locked(api) == {}
