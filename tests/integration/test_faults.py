"""An API in trouble: what passes is waited for, what stays is said in a sentence that tells what to do."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from actors import Worker
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from control_plane import ControlPlane
from playbook import run_module
from servers import Fault, FaultProxy

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import Cluster, ClusterError, without_retries

Object = dict[str, Any]

OUTAGE_S = 20.0
NODE = "faults-worker"
CASE = {"name": "one", "memory_mib": 1000, "cores": 10, "expect": {"outcome": "placed", "node": NODE}}


@pytest.fixture(scope="module")
def worker(control_plane: ControlPlane) -> Iterator[Worker]:
    worker = Worker(control_plane, NODE)
    yield worker
    worker.stop()


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[FaultProxy]:
    """The API with faults, for an administrator; rights are another test's matter."""
    proxy = FaultProxy(control_plane, "integration-admin")
    yield proxy
    proxy.stop()


@pytest.fixture
def cluster(proxy: FaultProxy) -> Cluster:
    return Cluster(without_retries(get_api_client(kubeconfig=str(proxy.kubeconfig)).client), "hami_device_info")


def read(proxy: FaultProxy, folder: Path) -> Object:
    return run_module(folder, "hami_device_info", {"kubeconfig": str(proxy.kubeconfig)})


def verify(kubeconfig: Path, folder: Path, **options: Any) -> Object:
    known = {"kubeconfig": str(kubeconfig), "image": "none", "cases": [CASE], "timeout_s": 60}
    return run_module(folder, "gpu_scheduling_verify", {**known, **options})


PASSING = {
    "too many requests": Fault("/api/v1/nodes", 429, headers={"Retry-After": "1"}, times=2),
    "etcd has no leader": Fault("/api/v1/nodes", 500, times=3),
    "the server starts": Fault("/api/v1/nodes", 503, times=2),
    "a connection lost": Fault("/api/v1/nodes", 0, times=2),
    "at the first contact": Fault("/version", 503, times=2),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_read_waits_for_what_passes(name: str, proxy: FaultProxy, worker: Worker, tmp_path: Path) -> None:
    fault = PASSING[name]
    proxy.faults.append(fault)
    answer = read(proxy, tmp_path)
    assert [each["name"] for each in answer["nodes"]] == [NODE]
    assert fault.times == 0


def test_a_retry_after_beyond_patience_is_not_waited_for(proxy: FaultProxy, cluster: Cluster) -> None:
    proxy.faults.append(Fault("/api/v1/nodes", 429, headers={"Retry-After": "3600"}, times=9))
    begin = time.monotonic()
    with pytest.raises(ClusterError, match="GET /api/v1/nodes: 429 a fault of the test"):
        list(cluster.list("/api/v1/nodes"))
    assert time.monotonic() - begin < 1


def test_a_list_that_expired_is_read_again_without_what_was_given(
    proxy: FaultProxy, cluster: Cluster, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ansible_collections.tenantry.gpu.plugins.module_utils._cluster.PAGE", 3)
    namespace = control_plane.api.create("/api/v1/namespaces", {"metadata": {"generateName": "expired-"}})
    path = f"/api/v1/namespaces/{namespace['metadata']['name']}/configmaps"
    control_plane.api.create_all(path, [{"metadata": {"name": f"c{number}"}} for number in range(8)])
    proxy.faults.append(Fault("continue=", 410, message="The provided continue parameter is too old", times=2))
    names = [thing["metadata"]["name"] for thing in cluster.list(path)]
    assert names == [f"c{number}" for number in range(8)]
    proxy.faults.append(Fault("continue=", 410, message="The provided continue parameter is too old", times=99))
    with pytest.raises(ClusterError, match="410 The provided continue parameter is too old"):
        list(cluster.list(path))
    control_plane.api.delete(f"/api/v1/namespaces/{namespace['metadata']['name']}")


@pytest.mark.parametrize("status", [0, 429, 503])
def test_a_patch_is_sent_again(proxy: FaultProxy, cluster: Cluster, worker: Worker, status: int) -> None:
    proxy.faults.append(Fault(NODE, status, "PATCH", before=status != 0, times=2))
    patched = cluster.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"patched": str(status)}}})
    assert patched["metadata"]["labels"]["patched"] == str(status)


def test_a_conflict_is_the_callers_matter(cluster: Cluster, proxy: FaultProxy, worker: Worker) -> None:
    with pytest.raises(ClusterError, match="the object has been modified") as caught:
        cluster.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"resourceVersion": "1", "labels": {"x": "y"}}})
    assert caught.value.status == 409
    assert proxy.count("PATCH") == 1


def test_a_create_that_may_have_been_done_is_not_done_again(proxy: FaultProxy, cluster: Cluster) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    proxy.faults.append(Fault("/configmaps", 0, "POST", before=False))
    with pytest.raises(ClusterError, match="cannot be reached"):
        cluster.create(path, {"metadata": {"generateName": "once-"}})
    made = [each for each in cluster.list(path) if each["metadata"]["name"].startswith("once-")]
    assert len(made) == 1
    cluster.delete(f"{path}/{made[0]['metadata']['name']}")


def test_a_create_that_was_turned_away_is_sent_again(proxy: FaultProxy, cluster: Cluster) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    proxy.faults.append(Fault("/configmaps", 429, "POST", times=2))
    cluster.create(path, {"metadata": {"name": "turned-away"}})
    assert proxy.count("POST") == 3
    cluster.delete(f"{path}/turned-away")


def test_a_server_that_nobody_can_trust_is_not_asked_for_long(control_plane: ControlPlane, tmp_path: Path) -> None:
    known = json.loads(control_plane.kubeconfig.read_text())
    del known["clusters"][0]["cluster"]["certificate-authority"]
    (tmp_path / "untrusted.conf").write_text(json.dumps(known))
    answer = run_module(tmp_path, "hami_device_info", {"kubeconfig": str(tmp_path / "untrusted.conf")})
    assert "CERTIFICATE_VERIFY_FAILED" in answer["msg"]
    assert "(for " not in answer["msg"]


def test_a_token_that_is_not_valid_is_said(control_plane: ControlPlane, tmp_path: Path) -> None:
    """A real one whose ServiceAccount is gone."""
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    control_plane.api.create(accounts, {"metadata": {"name": "short-lived"}})
    request = {"spec": {"expirationSeconds": 600}}
    token = control_plane.api.create(f"{accounts}/short-lived/token", request)["status"]["token"]
    kubeconfig = control_plane.write_kubeconfig("short-lived", {"token": token})
    control_plane.api.delete(f"{accounts}/short-lived")
    answer = run_module(tmp_path, "hami_device_info", {"kubeconfig": str(kubeconfig)})
    assert "401 Unauthorized: the token or certificate has expired or is not valid; get a new" in answer["msg"]
    assert token not in json.dumps(answer)


def test_a_missing_right_is_named(kubeconfig_for: Callable[[str, Path | None], Path], tmp_path: Path) -> None:
    kubeconfig = kubeconfig_for("rightless", None)
    answer = run_module(tmp_path, "hami_device_info", {"kubeconfig": str(kubeconfig)})
    assert answer["failed"]
    assert answer["msg"] == (
        'GET /api/v1/nodes: 403 nodes is forbidden: User "rightless" cannot list resource "nodes" in API group "" at '
        "the cluster scope; docs/reference/rights/hami_device_info.yml has the rights that hami_device_info needs."
    )


def test_an_outage_is_survived(proxy: FaultProxy, cluster: Cluster, worker: Worker, tmp_path: Path) -> None:
    """The API goes while pods are watched, and with it a read; it comes back, and nothing of the run is left."""
    readers = ThreadPoolExecutor(1)
    reads: list[Future[Object]] = []

    def begin(_pod: Object) -> None:
        proxy.be_away(OUTAGE_S)
        reads.append(readers.submit(cluster.get, f"/api/v1/nodes/{NODE}"))

    worker.before_placing = begin
    answer = verify(proxy.kubeconfig, tmp_path)
    worker.before_placing = lambda pod: None
    assert answer["passed"], answer
    assert answer["cleaned_up"]
    assert proxy.count("POST", "/pods$", 201) == 1
    assert proxy.count("GET", f"/api/v1/nodes/{NODE}", 0) > 1
    assert reads[0].result()["metadata"]["name"] == NODE


@pytest.mark.parametrize(
    "fault",
    [
        Fault("watch=1", 410, message="too old resource version"),
        Fault("watch=1", 500, times=2),
        Fault("/namespaces", 429, "POST", headers={"Retry-After": "1"}, times=2),
        Fault("/pods", 503, "DELETE", times=2),
        Fault("/pods", 0, "DELETE", times=1, before=False),
    ],
    ids=["watch expired", "watch refused", "creates throttled", "deletes refused", "answer to a delete lost"],
)
def test_pods_are_judged_by_an_api_in_trouble(fault: Fault, proxy: FaultProxy, worker: Worker, tmp_path: Path) -> None:
    proxy.faults.append(fault)
    answer = verify(proxy.kubeconfig, tmp_path)
    assert answer["passed"], answer
    assert answer["cleaned_up"]
    assert fault.times == 0


def test_an_api_server_that_hangs_is_survived(control_plane: ControlPlane, worker: Worker, tmp_path: Path) -> None:
    """Stopped by a signal, as a machine that swaps: connections stay, answers do not come."""
    pid = str(control_plane.pid("kube-apiserver"))
    subprocess.run(["kill", "-STOP", pid], check=True)
    threading.Timer(5, subprocess.run, [["kill", "-CONT", pid]]).start()
    answer = run_module(tmp_path, "hami_device_info", {"kubeconfig": str(control_plane.kubeconfig)})
    assert [each["name"] for each in answer["nodes"]] == [NODE]
