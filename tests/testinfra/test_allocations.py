"""A device plugin without a lifecycle, as HAMi's own mock is one, and the module that does what it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes import client, config
from lab import WORKERS, Lab

TENANT = "tenant-b"
NODE = WORKERS[TENANT]
NAMESPACE = "default"
PODS = ["left-0", "left-1", "left-2"]
LOCK, PHASE = "hami.io/mutex.lock", "hami.io/bind-phase"
SLOTS = "20"
TIMEOUT_S = 90


def wait(look: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


@pytest.fixture
def core(lab: Lab) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(lab.kubeconfig(TENANT))))


@pytest.fixture
def plugin_without_lifecycle(core: client.CoreV1Api) -> Iterator[None]:
    """The tenant's simulator leaves allocations as they are, for one test."""
    apps = client.AppsV1Api(core.api_client)

    def switch(lifecycle: str) -> None:
        environment = [{"name": "LIFECYCLE", "value": lifecycle}]
        containers = [{"name": "gpu-simulator", "env": environment}]
        body = {"spec": {"template": {"spec": {"containers": containers}}}}
        wanted = apps.patch_namespaced_daemon_set("gpu-simulator", "gpu-simulator", body).metadata.generation

        def is_rolled_out() -> bool:
            status = apps.read_namespaced_daemon_set("gpu-simulator", "gpu-simulator").status
            up = status.updated_number_scheduled == status.number_available == status.desired_number_scheduled
            return bool(status.observed_generation >= wanted and up)

        wait(is_rolled_out, f"the simulator with lifecycle {lifecycle} does not come up")
        wait(lambda: core.read_node(NODE).status.allocatable.get("nvidia.com/gpu") == SLOTS, "its slots are away")

    switch("none")
    yield
    switch("full")


@pytest.fixture
def pods(core: client.CoreV1Api, lab: Lab, plugin_without_lifecycle: None) -> Iterator[list[str]]:
    """Three pods with a share each, of the image that every worker has."""
    simulator = core.list_namespaced_pod("gpu-simulator").items[0]
    for name in PODS:
        container = {
            "name": "main",
            "image": simulator.spec.containers[0].image,
            "command": ["sleep", "600"],
            "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000", "nvidia.com/gpucores": "10"}},
        }
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
        core.create_namespaced_pod(NAMESPACE, {"metadata": {"name": name}, "spec": spec})
    yield PODS
    for name in PODS:
        core.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)
    wait(lambda: not core.list_namespaced_pod(NAMESPACE).items, "the pods do not go")


def finish(lab: Lab, **options: Any) -> dict[str, Any]:
    return lab.run_module(TENANT, "hami_allocation", nodes=[NODE], **options)


def test_three_pods_come_to_run_by_the_module(core: client.CoreV1Api, lab: Lab, pods: list[str]) -> None:
    def marks(name: str) -> dict[str, str]:
        return core.read_namespaced_pod(name, NAMESPACE).metadata.annotations or {}

    wait(lambda: "allocating" in [marks(name).get(PHASE) for name in pods], "no pod is bound")
    wait(lambda: LOCK in core.read_node(NODE).metadata.annotations, "the node is not locked")
    done = finish(lab, wait=True, wait_timeout_s=TIMEOUT_S)
    assert sorted(pod["pod"] for pod in done["pods"]) == pods
    assert {lock["pod"] for lock in done["locks"]} == set(pods)
    assert [marks(name).get(PHASE) for name in pods] == ["success"] * 3
    assert LOCK not in core.read_node(NODE).metadata.annotations
    wait(
        lambda: {core.read_namespaced_pod(name, NAMESPACE).status.phase for name in pods} == {"Running"},
        "not all three run",
    )
    assert not finish(lab, wait=True)["changed"]
