# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What we rely on in a management cluster with Kamaji, whoever serves it.

    TENANTRY_CONTRACT_MANAGEMENT_KUBECONFIG=.state/lab/kubeconfigs/management.conf \
        pytest tests/contract/test_tenant_control_plane.py

The tests make a control plane of their own in a namespace of their own and remove both; they need a ready DataStore
($TENANTRY_CONTRACT_DATASTORE, default), a load balancer, and about 450 MB on the cluster.
The version is $TENANTRY_CONTRACT_KUBERNETES (v1.36.3), Konnectivity's is $TENANTRY_CONTRACT_KONNECTIVITY (v0.36.0).
"""

from __future__ import annotations

import base64
import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

KUBECONFIG = os.environ.get("TENANTRY_CONTRACT_MANAGEMENT_KUBECONFIG", "")
DATASTORE = os.environ.get("TENANTRY_CONTRACT_DATASTORE", "default")
KUBERNETES = os.environ.get("TENANTRY_CONTRACT_KUBERNETES", "v1.36.3")
KONNECTIVITY = os.environ.get("TENANTRY_CONTRACT_KONNECTIVITY", "v0.36.0")
GROUP, VERSION, PLURAL = "kamaji.clastix.io", "v1alpha1", "tenantcontrolplanes"
NAME = f"contract-{uuid.uuid4().hex[:6]}"
READY_S = 120

pytestmark = pytest.mark.skipif(not KUBECONFIG, reason="TENANTRY_CONTRACT_MANAGEMENT_KUBECONFIG names no cluster")

Result = TypeVar("Result")

BODY: dict[str, Any] = {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "TenantControlPlane",
    "metadata": {"name": NAME},
    "spec": {
        "dataStore": DATASTORE,
        "controlPlane": {"deployment": {"replicas": 1}, "service": {"serviceType": "LoadBalancer"}},
        "kubernetes": {
            "version": KUBERNETES,
            "kubelet": {
                "configurationJSONPatches": [
                    {"op": "add", "path": "/cgroupDriver", "value": "systemd"},
                    {"op": "replace", "path": "/failSwapOn", "value": False},
                ]
            },
            "admissionControllers": ["NamespaceLifecycle", "NodeRestriction", "ServiceAccount"],
        },
        "networkProfile": {
            "port": 6443,
            "certSANs": ["contract.example.org"],
            "serviceCidr": "10.118.0.0/16",
            "podCidr": "10.38.0.0/16",
        },
        "addons": {
            "coreDNS": {},
            "konnectivity": {"server": {"port": 8132, "version": KONNECTIVITY}, "agent": {"version": KONNECTIVITY}},
        },
    },
}
SECRETS = {
    "admin-kubeconfig": {"admin.conf", "admin.svc", "super-admin.conf", "super-admin.svc"},
    "ca": {"ca.crt", "ca.key"},
    "api-server-certificate": {"apiserver.crt", "apiserver.key"},
    "api-server-kubelet-client-certificate": {"apiserver-kubelet-client.crt", "apiserver-kubelet-client.key"},
    "front-proxy-ca-certificate": {"front-proxy-ca.crt", "front-proxy-ca.key"},
    "front-proxy-client-certificate": {"front-proxy-client.crt", "front-proxy-client.key"},
    "sa-certificate": {"sa.pub", "sa.key"},
    "controller-manager-kubeconfig": {"controller-manager.conf"},
    "scheduler-kubeconfig": {"scheduler.conf"},
    "datastore-certificate": {"ca.crt", "server.crt", "server.key"},
    "datastore-config": {"DB_SCHEMA", "DB_USER"},
}


def wait(look: Callable[[], Result], timeout_s: float = 30) -> Result:
    """The first look that is true; the last one when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return seen


def or_none(look: Callable[[], Result], *statuses: int) -> Result | None:
    """What is looked at, or None where the API answers with one of the statuses (404 if none is given)."""
    try:
        return look()
    except ApiException as error:
        if error.status in (statuses or (404,)):
            return None
        raise


class Management:
    """The management cluster, as far as these tests look at it."""

    def __init__(self) -> None:
        api = config.new_client_from_config(KUBECONFIG)
        self.core, self.apps, self.custom = client.CoreV1Api(api), client.AppsV1Api(api), client.CustomObjectsApi(api)

    def create(self, body: dict[str, Any]) -> None:
        self.custom.create_namespaced_custom_object(GROUP, VERSION, NAME, PLURAL, body)

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = self.custom.get_namespaced_custom_object(GROUP, VERSION, NAME, PLURAL, NAME)
        return found

    def patch(self, spec: dict[str, Any], dry_run: bool = False) -> None:
        more = {"dry_run": "All"} if dry_run else {}
        self.custom.patch_namespaced_custom_object(GROUP, VERSION, NAME, PLURAL, NAME, {"spec": spec}, **more)

    def has_dns(self) -> bool:
        return bool(self.get().get("status", {}).get("addons", {}).get("coreDNS", {}).get("enabled"))

    def state(self) -> str:
        return self.get().get("status", {}).get("kubernetesResources", {}).get("version", {}).get("status", "")

    def secret(self, component: str) -> dict[str, bytes]:
        data = self.core.read_namespaced_secret(f"{NAME}-{component}", NAME).data
        return {key: base64.b64decode(value) for key, value in data.items()}


@pytest.fixture(scope="module")
def management() -> Iterator[Management]:
    there = Management()
    there.core.create_namespace({"metadata": {"name": NAME}})
    try:
        there.create(BODY)
        # Ready is said of the Deployment; what stands inside the tenant may come later (Kamaji 26.8).
        assert wait(lambda: there.state() == "Ready", READY_S), there.get().get("status")
        assert wait(there.has_dns, READY_S), there.get().get("status")
        yield there
        # The control plane goes before its namespace: what its finalizer needs stands there.
        if or_none(there.get):
            there.custom.delete_namespaced_custom_object(GROUP, VERSION, NAME, PLURAL, NAME)
            assert wait(lambda: or_none(there.get) is None, 60)
    finally:
        there.core.delete_namespace(NAME)


@pytest.fixture(scope="module")
def tenant(management: Management) -> client.ApiClient:
    """The tenant's API, by the kubeconfig that is handed out; answered once its configuration is there."""
    text = management.secret("admin-kubeconfig")["admin.conf"]
    api = config.new_client_from_config_dict(yaml.safe_load(text))
    core = client.CoreV1Api(api)
    # Until its binding is made, the administrator is forbidden everything.
    assert wait(lambda: or_none(lambda: core.read_namespaced_config_map("kubelet-config", "kube-system"), 403, 404))
    return api


def test_status_says_where_everything_is(management: Management) -> None:
    status = management.get()["status"]
    service = management.core.read_namespaced_service(NAME, NAME)
    assert status["controlPlaneEndpoint"] == f"{service.status.load_balancer.ingress[0].ip}:6443"
    assert status["kubernetesResources"]["version"]["version"] == KUBERNETES
    assert status["kubeconfig"]["admin"]["secretName"] == f"{NAME}-admin-kubeconfig"
    assert status["storage"]["dataStoreName"] == DATASTORE
    assert status["storage"]["setup"]["schema"]
    assert status["addons"]["coreDNS"]["enabled"]
    assert status["addons"]["konnectivity"]["enabled"]


@pytest.mark.parametrize("component", SECRETS)
def test_secret_has_its_keys(management: Management, component: str) -> None:
    assert SECRETS[component] <= set(management.secret(component))


def test_service_has_both_ports(management: Management) -> None:
    ports = {port.name: port.port for port in management.core.read_namespaced_service(NAME, NAME).spec.ports}
    assert ports == {"kube-apiserver": 6443, "konnectivity-server": 8132}


def test_deployment_has_the_four_containers(management: Management) -> None:
    deployment = management.apps.read_namespaced_deployment(NAME, NAME)
    names = {container.name for container in deployment.spec.template.spec.containers}
    assert names == {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "konnectivity-server"}
    assert deployment.metadata.labels["kamaji.clastix.io/name"] == NAME
    assert deployment.metadata.owner_references[0].kind == "TenantControlPlane"


def test_kubeconfig_is_an_admins(tenant: client.ApiClient) -> None:
    review = {"spec": {"resourceAttributes": {"verb": "*", "resource": "*", "group": "*"}}}
    answer = client.AuthorizationV1Api(tenant).create_self_subject_access_review(review)
    assert answer.status.allowed


def test_kubelets_get_the_patched_configuration(tenant: client.ApiClient) -> None:
    found = client.CoreV1Api(tenant).read_namespaced_config_map("kubelet-config", "kube-system")
    kubelet = yaml.safe_load(found.data["kubelet"])
    assert (kubelet["cgroupDriver"], kubelet["failSwapOn"]) == ("systemd", False)
    assert kubelet["clusterDNS"] == ["10.118.0.10"]


def test_kubeadm_finds_what_it_needs_to_join(management: Management, tenant: client.ApiClient) -> None:
    core, rbac = client.CoreV1Api(tenant), client.RbacAuthorizationV1Api(tenant)
    endpoint = management.get()["status"]["controlPlaneEndpoint"]

    def server() -> str:
        found = or_none(lambda: core.read_namespaced_config_map("cluster-info", "kube-public"))
        return yaml.safe_load(found.data["kubeconfig"])["clusters"][0]["cluster"]["server"] if found else ""

    assert wait(lambda: server() == f"https://{endpoint}"), server()
    settings = core.read_namespaced_config_map("kubeadm-config", "kube-system").data["ClusterConfiguration"]
    assert yaml.safe_load(settings)["networking"]["podSubnet"] == "10.38.0.0/16"
    wanted = {"kubeadm:get-nodes", "kubeadm:kubelet-bootstrap", "kubeadm:node-autoapprove-bootstrap"}
    assert wait(lambda: wanted <= {item.metadata.name for item in rbac.list_cluster_role_binding().items})


def test_no_token_is_left_behind(tenant: client.ApiClient) -> None:
    core = client.CoreV1Api(tenant)
    selector = "type=bootstrap.kubernetes.io/token"
    assert core.list_namespaced_secret("kube-system", field_selector=selector).items == []


def test_addons_stand(tenant: client.ApiClient) -> None:
    core, apps = client.CoreV1Api(tenant), client.AppsV1Api(tenant)
    assert wait(lambda: or_none(lambda: apps.read_namespaced_deployment("coredns", "kube-system")))
    assert wait(lambda: or_none(lambda: core.read_namespaced_service("kube-dns", "kube-system")))
    agent = wait(lambda: or_none(lambda: apps.read_namespaced_daemon_set("konnectivity-agent", "kube-system")))
    assert agent
    assert agent.spec.template.metadata.labels["k8s-app"] == "konnectivity-agent"
    assert or_none(lambda: apps.read_namespaced_daemon_set("kube-proxy", "kube-system")) is None


def test_agent_may_be_a_deployment(management: Management, tenant: client.ApiClient) -> None:
    apps = client.AppsV1Api(tenant)

    def set_mode(mode: str, replicas: int) -> None:
        management.patch({"addons": {"konnectivity": {"agent": {"mode": mode, "replicas": replicas}}}})

    set_mode("Deployment", 1)
    assert wait(lambda: or_none(lambda: apps.read_namespaced_deployment("konnectivity-agent", "kube-system")))
    assert wait(lambda: or_none(lambda: apps.read_namespaced_daemon_set("konnectivity-agent", "kube-system")) is None)
    set_mode("DaemonSet", 0)
    assert wait(lambda: or_none(lambda: apps.read_namespaced_daemon_set("konnectivity-agent", "kube-system")))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"kubernetes": {"version": "v1.99.0"}}, "greater than the supported one"),
        ({"kubernetes": {"version": "v1.20.0"}}, "unable to downgrade"),
        ({"networkProfile": {"clusterDomain": "other.local"}}, "changing the cluster domain is not supported"),
        ({"dataStore": None}, "unsetting the dataStore is not supported"),
    ],
    ids=["too-new", "downgrade", "cluster-domain", "datastore"],
)
def test_what_cannot_be_is_refused(management: Management, spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiException) as refused:
        management.patch(spec, dry_run=True)
    assert words in refused.value.body


def test_datastore_in_use_stays(management: Management) -> None:
    store = management.custom.get_cluster_custom_object(GROUP, VERSION, "datastores", DATASTORE)
    assert store["metadata"]["finalizers"]
    assert f"{NAME}/{NAME}" in store["status"]["usedBy"]


def test_one_without_replicas_sleeps_and_wakes(management: Management) -> None:
    management.patch({"controlPlane": {"deployment": {"replicas": 0}}})
    assert wait(lambda: management.state() == "Sleeping"), management.state()
    management.patch({"controlPlane": {"deployment": {"replicas": 1}}})
    assert wait(lambda: management.state() == "Ready", READY_S), management.state()


def test_deleted_one_leaves_nothing(management: Management) -> None:
    management.custom.delete_namespaced_custom_object(GROUP, VERSION, NAME, PLURAL, NAME)
    assert wait(lambda: or_none(management.get) is None, 60)
    mine = {"label_selector": f"kamaji.clastix.io/name={NAME}"}
    assert wait(lambda: not management.core.list_namespaced_secret(NAME, **mine).items)
    assert wait(lambda: not management.apps.list_namespaced_deployment(NAME, **mine).items)
    assert wait(lambda: not management.core.list_namespaced_service(NAME, **mine).items)
    store = management.custom.get_cluster_custom_object(GROUP, VERSION, "datastores", DATASTORE)
    assert f"{NAME}/{NAME}" not in store["status"].get("usedBy", [])
