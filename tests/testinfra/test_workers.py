"""What makes a host a worker of its tenant, and of no other."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from kubernetes import config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ForbiddenError
from lab import WORKERS, Lab
from testinfra.host import Host

KUBELET_CONF = "/etc/kubernetes/kubelet.conf"


@pytest.fixture
def node_api(worker: Host, tmp_path: Path) -> DynamicClient:
    """The tenant's API with the credentials of the worker's kubelet."""
    kubeconfig = yaml.safe_load(worker.file(KUBELET_CONF).content_string)
    certificate = worker.file(kubeconfig["users"][0]["user"]["client-certificate"]).content
    embedded = base64.b64encode(certificate).decode()
    kubeconfig["users"][0]["user"] = {"client-certificate-data": embedded, "client-key-data": embedded}
    path = tmp_path / "kubelet.conf"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(kubeconfig))
    return DynamicClient(config.new_client_from_config(str(path)))


@pytest.mark.parametrize("service", ["containerd", "kubelet"])
def test_services_run_and_are_enabled(worker: Host, service: str) -> None:
    assert worker.service(service).is_running
    assert worker.service(service).is_enabled


def test_the_kubelet_talks_to_its_own_tenant(lab: Lab, tenant: str, worker: Host) -> None:
    kubelet_conf = worker.file(KUBELET_CONF)
    assert (kubelet_conf.user, kubelet_conf.mode) == ("root", 0o600)
    assert yaml.safe_load(kubelet_conf.content_string)["clusters"][0]["cluster"]["server"] == lab.server(tenant)


def test_no_bootstrap_credential_is_left_on_the_worker(worker: Host) -> None:
    assert not worker.file("/etc/kubernetes/bootstrap-kubelet.conf").exists
    found = worker.run("grep -rlEs '[a-z0-9]{6}\\.[a-z0-9]{16}' /etc/kubernetes /root /tmp /run/kubeadm")
    assert found.stdout == ""


def test_a_tenant_has_its_worker_alone_and_it_is_ready(api: DynamicClient, tenant: str) -> None:
    nodes = api.request("get", "/api/v1/nodes").items
    assert [node.metadata.name for node in nodes] == [WORKERS[tenant]]
    assert {c.type: c.status for c in nodes[0].status.conditions}["Ready"] == "True"


def test_the_tenants_dns_has_endpoints(api: DynamicClient) -> None:
    slices = api.request(
        "get",
        "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
        query_params=[("labelSelector", "kubernetes.io/service-name=kube-dns")],
    ).items
    assert [endpoint for piece in slices for endpoint in piece.endpoints or [] if endpoint.conditions.ready]


def test_no_join_token_is_left_in_the_tenant(api: DynamicClient) -> None:
    secrets = api.request("get", "/api/v1/namespaces/kube-system/secrets").items
    assert [secret.metadata.name for secret in secrets if secret.type == "bootstrap.kubernetes.io/token"] == []


def test_a_node_cannot_label_another_node(
    api: DynamicClient,
    node_api: DynamicClient,
    created: Callable[[DynamicClient, str, dict[str, object]], str],
) -> None:
    stranger = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "stranger"}, "spec": {"unschedulable": True}}
    path = created(api, "/api/v1/nodes", stranger)
    with pytest.raises(ForbiddenError) as refused:
        patch(node_api, path, {"metadata": {"labels": {"tenantry.example/taken": "true"}}})
    assert "is not allowed to modify node" in str(refused.value)


def test_a_node_cannot_give_itself_a_protected_label(tenant: str, node_api: DynamicClient) -> None:
    label = {"metadata": {"labels": {"node-restriction.kubernetes.io/team": "other"}}}
    with pytest.raises(ForbiddenError) as refused:
        patch(node_api, f"/api/v1/nodes/{WORKERS[tenant]}", label)
    assert "is not allowed to modify labels" in str(refused.value)


def patch(client: DynamicClient, path: str, body: dict[str, object]) -> None:
    client.request("patch", path, body=body, content_type="application/merge-patch+json")
