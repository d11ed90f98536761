"""kubeadm_worker asks a real API for its Node, as a kubelet may; a bootstrap token is worth nothing once revoked."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from control_plane import ControlPlane

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import Cluster, ClusterError
from ansible_collections.tenantry.gpu.plugins.modules import kubeadm_worker as module

NODE = "kubeadm-worker-0"
KEPT_S = 11  # the API server keeps its answers on tokens for ten seconds


class Host(module.Worker):
    """A host that is a folder; its kubelet, when it is started again, registers its Node."""

    def __init__(self, root: Path, control_plane: ControlPlane) -> None:
        super().__init__(None, root)
        self.programs: list[list[str]] = []
        self._control_plane = control_plane
        certificate = control_plane.authority.issue(f"system:node:{NODE}", ["system:nodes"])
        (root / "kubelet.pem").write_bytes(certificate.read_bytes() + certificate.with_suffix(".key").read_bytes())
        authority = base64.b64encode(control_plane.authority.certificate.read_bytes()).decode()
        (root / "etc/kubernetes").mkdir(parents=True)
        (root / module.KUBELET_CONF).write_text(
            f"clusters:\n- cluster:\n    certificate-authority-data: {authority}\n    server: {control_plane.server}\n"
            "users:\n- user:\n    client-certificate: /kubelet.pem\n    client-key: /kubelet.pem\n"
        )

    def run(self, arguments: list[str], data: str | None = None, timeout_s: float = 120) -> tuple[int, str]:
        self.programs.append(arguments)
        self._control_plane.api.create("/api/v1/nodes", {"metadata": {"name": NODE}})
        return 0, ""


@pytest.fixture
def host(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Host]:
    yield Host(tmp_path, control_plane)
    if NODE in {node["metadata"]["name"] for node in control_plane.api.items("/api/v1/nodes")}:
        control_plane.api.delete(f"/api/v1/nodes/{NODE}")


def wanted(control_plane: ControlPlane, node_name: str = NODE) -> module.Wanted:
    authority = control_plane.authority.certificate.read_text().strip()
    return module.Wanted(control_plane.server, authority, node_name, "unix:///run/none.sock", [], 5)


def test_a_node_that_is_gone_is_registered_again_once(control_plane: ControlPlane, host: Host) -> None:
    first = module.ensure_joined(host, wanted(control_plane), None, confirm=False, check=False)
    assert (first.joined, first.node.registered, first.changed) == (True, False, True)
    assert host.programs == [["systemctl", "restart", "kubelet"]]
    second = module.ensure_joined(host, wanted(control_plane), None, confirm=False, check=False)
    assert (second.joined, second.node.registered, second.changed) == (True, True, False)


def test_another_nodes_name_is_no_reason_to_start_anything(control_plane: ControlPlane, host: Host) -> None:
    """A kubelet may read its own Node alone."""
    outcome = module.ensure_joined(host, wanted(control_plane, "other"), None, confirm=False, check=False)
    assert (outcome.node.registered, outcome.changed, host.programs) == (None, False, [])


def test_a_revoked_token_is_worth_nothing(control_plane: ControlPlane) -> None:
    secret = {
        "metadata": {"name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef",
            "token-secret": "0123456789abcdef",
            "expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 60)),
            "usage-bootstrap-authentication": "true",
        },
    }
    secrets = "/api/v1/namespaces/kube-system/secrets"
    control_plane.api.create(secrets, secret)
    kubeconfig = control_plane.write_kubeconfig("bootstrap", {"token": "abcdef.0123456789abcdef"})
    cluster = Cluster(get_api_client(kubeconfig=str(kubeconfig)).client, patience_s=0)
    with pytest.raises(ClusterError, match=r'403 .* User "system:bootstrap:abcdef" cannot list resource "nodes"'):
        cluster.get("/api/v1/nodes")
    control_plane.api.delete(f"{secrets}/bootstrap-token-abcdef")
    time.sleep(KEPT_S)
    with pytest.raises(ClusterError, match="401 Unauthorized: the token or certificate has expired"):
        cluster.get("/api/v1/nodes")
