"""What one tenant cannot see of another, and what the lab keeps from the machine that it runs on."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable

import pytest
from kubernetes.dynamic import DynamicClient
from lab import WORKERS, Lab

CONTROL_PLANES = "/apis/kamaji.clastix.io/v1alpha1/tenantcontrolplanes"
DATASTORE = "/apis/kamaji.clastix.io/v1alpha1/datastores/default"


@pytest.fixture(scope="module")
def prefixes(management: DynamicClient) -> dict[str, str]:
    """Every tenant's key prefix in the datastore."""
    planes = management.request("get", CONTROL_PLANES).items
    return {plane.metadata.name: f"/{plane.status.storage.setup.schema}/" for plane in planes}


def test_tenants_keep_their_keys_apart(prefixes: dict[str, str]) -> None:
    assert sorted(prefixes) == sorted(WORKERS)
    first, second = prefixes.values()
    assert not first.startswith(second)
    assert not second.startswith(first)


def test_a_tenants_credentials_open_its_own_keys_alone(
    management: DynamicClient,
    tenant: str,
    prefixes: dict[str, str],
    created: Callable[[DynamicClient, str, dict[str, object]], str],
) -> None:
    datastore = management.request("get", DATASTORE).spec
    (image,) = {
        container.image
        for pod in management.request("get", "/api/v1/namespaces/kamaji-system/pods").items
        for container in pod.spec.containers
        if "etcd:" in container.image
    }
    answers = {}
    for owner, prefix in prefixes.items():
        command = ["etcdctl", "get", prefix, "--prefix", "--keys-only", "--limit=1"]
        command += [f"--endpoints=https://{datastore.endpoints[0]}", "--cacert=/pki/ca.crt"]
        command += ["--cert=/pki/server.crt", "--key=/pki/server.key"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"reads-{owner}"},
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "etcdctl",
                        "image": image,
                        "command": command,
                        "volumeMounts": [{"name": "pki", "mountPath": "/pki"}],
                    }
                ],
                "volumes": [{"name": "pki", "secret": {"secretName": f"{tenant}-datastore-certificate"}}],
            },
        }
        path = created(management, f"/api/v1/namespaces/{tenant}/pods", pod)
        answers[owner] = (finished(management, path), management.request("get", f"{path}/log", serialize=False).data)
    foreign = next(owner for owner in prefixes if owner != tenant)
    assert answers[tenant][0] == "Succeeded", answers[tenant]
    assert prefixes[tenant].encode() in answers[tenant][1]
    assert answers[foreign][0] == "Failed", answers[foreign]
    assert b"permission denied" in answers[foreign][1]


def finished(client: DynamicClient, path: str, timeout_s: float = 60) -> str:
    """The phase in which the pod at ``path`` ended."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        status = client.request("get", path).status
        if status.phase in ("Succeeded", "Failed"):
            return str(status.phase)
        time.sleep(0.5)
    raise TimeoutError(f"{path} did not end within {timeout_s:.0f} s: {status.to_dict()}")


@pytest.mark.parametrize("host", ["management-0", *WORKERS.values()])
def test_no_cluster_range_leaves_by_the_default_route(lab: Lab, management: DynamicClient, host: str) -> None:
    networks = [plane.spec.networkProfile for plane in management.request("get", CONTROL_PLANES).items]
    leaking = []
    for cidr in [cidr for network in networks for cidr in (network.podCidr, network.serviceCidr)]:
        unused = ipaddress.ip_network(cidr)[-6]
        route = lab.host(host).run(f"ip route get {unused}")
        if route.succeeded and " via " in route.stdout:
            leaking.append(route.stdout.strip())
    assert leaking == []
