"""What Allocate answers, and what it leaves on the pod and on the node."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_simulator.kubernetes_api import ApiError
from gpu_simulator.lifecycle import AllocationError, Lifecycle

LOCK = "hami.io/mutex.lock"
WAITING = "hami.io/vgpu-devices-to-allocate"
PHASE = "hami.io/bind-phase"
ONE = "GPU-1,NVIDIA,20000,30:;"
POD = "/api/v1/namespaces/team/pods/train"


def bound(api: Any, name: str = "train", waiting: str = ONE, phase: str = "allocating", **more: str) -> None:
    annotations = {WAITING: waiting, PHASE: phase, "hami.io/bind-time": "1", "hami.io/vgpu-node": api.node, **more}
    metadata = {"namespace": "team", "name": name, "annotations": annotations}
    api.put(f"/api/v1/namespaces/team/pods/{name}", {"metadata": metadata})


def lock(api: Any, text: str = "2026-06-14T15:05:03Z,team,train") -> None:
    api.put(api.node_path, {"metadata": {"name": api.node, "annotations": {LOCK: text, "other": "kept"}}})


@pytest.fixture
def lifecycle(api: Any) -> Lifecycle:
    return Lifecycle(api, api.node)


def test_one_container(api: Any, lifecycle: Lifecycle) -> None:
    bound(api)
    lock(api)
    assert lifecycle.allocate([1]) == [
        {
            "CUDA_DEVICE_MEMORY_LIMIT_0": "20000m",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "NVIDIA_VISIBLE_DEVICES": "GPU-1",
        }
    ]
    assert api.annotations(POD)[WAITING] == ";"
    assert api.annotations(POD)[PHASE] == "success"
    assert api.annotations(api.node_path) == {"other": "kept"}


def test_a_container_of_two_cards(api: Any, lifecycle: Lifecycle) -> None:
    bound(api, waiting="GPU-1,NVIDIA,100,10:GPU-2,NVIDIA,200,10:;")
    lock(api)
    (limits,) = lifecycle.allocate([2])
    assert limits["CUDA_DEVICE_MEMORY_LIMIT_0"] == "100m"
    assert limits["CUDA_DEVICE_MEMORY_LIMIT_1"] == "200m"
    assert limits["NVIDIA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"


def test_containers_come_in_several_calls(api: Any, lifecycle: Lifecycle) -> None:
    bound(api, waiting=";GPU-1,NVIDIA,100,10:;;GPU-1,NVIDIA,200,20:;")
    lock(api)
    lifecycle.allocate([1])
    assert api.annotations(POD)[WAITING] == ";;;GPU-1,NVIDIA,200,20:;"
    assert api.annotations(POD)[PHASE] == "allocating"
    assert LOCK in api.annotations(api.node_path)
    (limits,) = lifecycle.allocate([1])
    assert limits["CUDA_DEVICE_MEMORY_LIMIT_0"] == "200m"
    assert api.annotations(POD)[PHASE] == "success"
    assert LOCK not in api.annotations(api.node_path)


def test_without_a_lock_the_waiting_pod_of_this_node_is_meant(api: Any, lifecycle: Lifecycle) -> None:
    bound(api, "elsewhere", **{"hami.io/vgpu-node": "b-worker-0"})
    bound(api, "failed", phase="failed")
    bound(api)
    lifecycle.allocate([1])
    assert api.annotations(POD)[PHASE] == "success"


def test_the_lock_of_another_pod_stays(api: Any, lifecycle: Lifecycle) -> None:
    bound(api)
    lock(api)
    theirs = "2026-06-14T15:06:00Z,team,next"

    def stolen_meanwhile(path: str) -> None:
        if path == POD:
            api.objects[api.node_path]["metadata"]["annotations"][LOCK] = theirs

    api.before_patch = stolen_meanwhile
    lifecycle.allocate([1])
    assert api.annotations(api.node_path)[LOCK] == theirs


def test_a_conflict_on_the_node_is_tried_again(api: Any, lifecycle: Lifecycle) -> None:
    bound(api)
    lock(api)
    api.refuse["PATCH", api.node_path] = [ApiError(409, "modified")] * 2
    lifecycle.allocate([1])
    assert LOCK not in api.annotations(api.node_path)


@pytest.mark.parametrize(
    ("waiting", "counts", "message"),
    [
        (ONE, [2], "kubelet gives 2 devices, the scheduler gave 1"),
        (";", [1], "holds no more shares"),
        ("GPU-1,NVIDIA,many,30:;", [1], "'many'"),
        (ONE, [1, 1], "holds no more shares"),
    ],
)
def test_a_failure_marks_the_pod_and_frees_the_node(
    api: Any, lifecycle: Lifecycle, waiting: str, counts: list[int], message: str
) -> None:
    bound(api, waiting=waiting)
    lock(api)
    with pytest.raises(AllocationError, match=message):
        lifecycle.allocate(counts)
    assert api.annotations(POD)[PHASE] == "failed"
    assert api.annotations(POD)[WAITING] == waiting
    assert LOCK not in api.annotations(api.node_path)


def test_a_pod_that_vanished(api: Any, lifecycle: Lifecycle) -> None:
    lock(api)
    with pytest.raises(AllocationError, match="404"):
        lifecycle.allocate([1])


def test_nothing_is_being_bound(lifecycle: Lifecycle) -> None:
    with pytest.raises(AllocationError, match="no pod is being bound to node a-worker-0"):
        lifecycle.allocate([1])


def test_a_patch_that_is_refused(api: Any, lifecycle: Lifecycle) -> None:
    bound(api)
    lock(api)
    api.refuse["PATCH", POD] = [ApiError(403, "forbidden: pods")] * 2
    with pytest.raises(AllocationError, match="forbidden: pods"):
        lifecycle.allocate([1])
