"""A worker that lost its Node, or goes to another tenant, has the network of its new Node. The order counts."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from typing import Any

from kubernetes.dynamic import DynamicClient
from lab import WORKERS, Lab

WORKER = WORKERS["tenant-a"]
NODE = f"/api/v1/nodes/{WORKER}"
WORKERS_STAGE = "playbooks/stages/5_workers.yml"
ONE_WORKER = f"--limit={WORKER}"
CONFIRMED = ("-e", "tenant_worker_reset_confirm=true")
RUNS_S = 120.0


def pod_of_the_node_runs(api: DynamicClient, pods: str) -> None:
    """Wait until a pod of a collection runs in the Node's range of addresses."""
    (cidr,) = api.request("get", NODE).spec.podCIDRs
    deadline, seen = time.monotonic() + RUNS_S, []
    while time.monotonic() < deadline:
        found: list[Any] = api.request("get", pods).items
        seen = [(each.metadata.name, each.status.phase, each.status.podIP) for each in found]
        if any(
            phase == "Running" and ipaddress.ip_address(address) in ipaddress.ip_network(cidr)
            for _, phase, address in seen
        ):
            return
        time.sleep(1)
    raise AssertionError(f"no pod of {cidr} runs after {RUNS_S:.0f} s: {seen}")


def probe(api: DynamicClient) -> dict[str, Any]:
    """A pod on the Node, of an image that is there; it asks for no card, so HAMi has no part in it."""
    names = [name for image in api.request("get", NODE).status.images for name in image.names]
    pause = next(name for name in names if name.startswith("registry.k8s.io/pause:"))
    return {"nodeName": WORKER, "containers": [{"name": "probe", "image": pause}]}


def test_a_worker_whose_node_was_deleted_registers_again(lab: Lab) -> None:
    api = lab.api("tenant-a")
    before = api.request("get", NODE)
    api.request("delete", NODE)
    lab.play(WORKERS_STAGE, ONE_WORKER)
    after = api.request("get", NODE)
    assert after.metadata.uid != before.metadata.uid
    assert after.spec.podCIDR != before.spec.podCIDR
    pod_of_the_node_runs(api, "/api/v1/namespaces/kube-system/pods?labelSelector=k8s-app=kube-dns")


def test_a_worker_goes_to_another_tenant(
    lab: Lab, created: Callable[[DynamicClient, str, dict[str, object]], str]
) -> None:
    lab.play(WORKERS_STAGE, ONE_WORKER, "-e", "tenant_worker_tenant=tenant-b", *CONFIRMED)
    lab.api("tenant-a").request("delete", NODE)
    api = lab.api("tenant-b")
    pods = "/api/v1/namespaces/default/pods"
    created(api, pods, {"metadata": {"name": "probe"}, "spec": probe(api)})
    pod_of_the_node_runs(api, pods)


def test_it_comes_back_and_all_is_proved_again(lab: Lab) -> None:
    lab.api("tenant-b").request("delete", NODE)
    lab.play("playbooks/site.yml", *CONFIRMED)
