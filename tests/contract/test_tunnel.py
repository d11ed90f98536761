# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What we rely on in a tenant's tunnel, whoever digs it: Konnectivity or another.

    TENANTRY_CONTRACT_KUBECONFIG=.state/lab/kubeconfigs/tenant-a.conf pytest tests/contract/test_tunnel.py

The tests need a tenant with a worker that is Ready and DNS that runs. They make a webhook configuration that matches
objects of one namespace of their own only, and end one of the agent's pods; both are as before afterwards.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

KUBECONFIG = os.environ.get("TENANTRY_CONTRACT_KUBECONFIG", "")
NAMESPACE = f"contract-{uuid.uuid4().hex[:6]}"
AGENT = "k8s-app=konnectivity-agent"
DNS_METRICS = "/api/v1/namespaces/kube-system/services/kube-dns:metrics/proxy/metrics"

pytestmark = pytest.mark.skipif(not KUBECONFIG, reason="TENANTRY_CONTRACT_KUBECONFIG names no cluster")

Result = TypeVar("Result")


def wait(look: Callable[[], Result], timeout_s: float = 30) -> Result:
    """The first look that is true; the last one when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return seen


class Tenant:
    """The tenant's API, as far as these tests look at it."""

    def __init__(self) -> None:
        self.api = config.new_client_from_config(KUBECONFIG)
        self.core = client.CoreV1Api(self.api)
        self.admission = client.AdmissionregistrationV1Api(self.api)

    def raw(self, path: str) -> str:
        answer = self.api.rest_client.request("GET", self.api.configuration.host + path, _request_timeout=10)
        return bytes(answer.read()).decode()

    def agents(self) -> list[client.V1Pod]:
        pods = self.core.list_namespaced_pod("kube-system", label_selector=AGENT).items
        return [pod for pod in pods if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp]

    def agent_log(self) -> str:
        """Reads the agents' own words, which travel through the tunnel themselves."""
        names = [pod.metadata.name for pod in self.agents()]
        return "".join(self.core.read_namespaced_pod_log(name, "kube-system") for name in names)

    def dialled(self) -> list[str]:
        """The addresses that the agents were told to dial."""
        return re.findall(r"Received DIAL_REQ.*?dialAddress=\"([^\"]+)\"", self.agent_log())

    def dials(self) -> int:
        """How often the API server began to dial through its egress selector."""
        counts = re.findall(
            r"^apiserver_egress_dialer_dial_start_total\{.*\} (\d+)$", self.raw("/metrics"), re.MULTILINE
        )
        return sum(map(int, counts))


@pytest.fixture(scope="module")
def tenant() -> Iterator[Tenant]:
    there = Tenant()
    there.core.create_namespace({"metadata": {"name": NAMESPACE}})
    try:
        assert wait(there.agents), "no agent runs"
        yield there
    finally:
        there.core.delete_namespace(NAMESPACE)


def test_logs_come_from_the_kubelet(tenant: Tenant) -> None:
    before = tenant.dials()
    node = tenant.core.read_node(tenant.agents()[0].spec.node_name)
    address = next(item.address for item in node.status.addresses if item.type == "InternalIP")
    tenant.agent_log()
    assert f"{address}:10250" in tenant.dialled()
    assert tenant.dials() >= max(before, 1)


def test_services_are_reached(tenant: Tenant) -> None:
    assert "coredns_build_info" in wait(lambda: text_or_nothing(lambda: tenant.raw(DNS_METRICS)))


def text_or_nothing(look: Callable[[], str]) -> str:
    try:
        return look()
    except ApiException:
        return ""


@pytest.fixture
def webhook(tenant: Tenant) -> Iterator[str]:
    """A webhook for this namespace's ConfigMaps, served by what speaks no TLS: the dial is all that is wanted of it."""
    body = {
        "metadata": {"name": NAMESPACE},
        "webhooks": [
            {
                "name": "contract.tenantry.example.org",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 5,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
                "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
                ],
                "clientConfig": {"service": {"namespace": "kube-system", "name": "kube-dns", "port": 9153}},
            }
        ],
    }
    tenant.admission.create_validating_webhook_configuration(body)
    yield f"{tenant.core.read_namespaced_service('kube-dns', 'kube-system').spec.cluster_ip}:9153"
    tenant.admission.delete_validating_webhook_configuration(NAMESPACE)


def refused(tenant: Tenant) -> str:
    """Returns the API server's words when the webhook is asked and does not answer as one."""
    name = f"c{uuid.uuid4().hex[:6]}"
    try:
        tenant.core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": name}}, dry_run="All")
    except ApiException as error:
        return str(error.body)
    return ""


def test_webhook_is_dialled_at_its_services_address(tenant: Tenant, webhook: str) -> None:
    before = tenant.dials()
    assert "failed calling webhook" in wait(lambda: refused(tenant))
    assert webhook in tenant.dialled()
    assert tenant.dials() > before


def selects(selector: client.V1LabelSelector | None, labels: dict[str, str]) -> bool:
    if selector is None:
        return True
    wanted = selector.match_labels or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for rule in selector.match_expressions or []:
        there = labels.get(rule.key) in rule.values if rule.values else rule.key in labels
        forbids = rule.operator in ("NotIn", "DoesNotExist")
        if there == forbids:
            return False
    return True


def webhooks_in_the_way(tenant: Tenant) -> list[str]:
    """Webhooks that every pod of kube-system must pass, and that only the tunnel reaches."""
    labels = tenant.core.read_namespace("kube-system").metadata.labels
    lists = (
        tenant.admission.list_mutating_webhook_configuration(),
        tenant.admission.list_validating_webhook_configuration(),
    )
    return [
        hook.name
        for listed in lists
        for item in listed.items
        for hook in item.webhooks or []
        if hook.failure_policy == "Fail" and hook.client_config.service and selects(hook.namespace_selector, labels)
        if any({"pods", "*"} & set(rule.resources) for rule in hook.rules)
    ]


def test_tunnel_comes_back_with_a_new_agent(tenant: Tenant) -> None:
    if names := webhooks_in_the_way(tenant):
        pytest.skip(
            f"{names[0]} keeps a new agent from being made while the tunnel is down; let it pass kube-system by"
        )
    old = {pod.metadata.name for pod in tenant.agents()}
    tenant.core.delete_namespaced_pod(sorted(old)[0], "kube-system", grace_period_seconds=0)
    assert wait(lambda: {pod.metadata.name for pod in tenant.agents()} - old, 60), "no new agent runs"
    assert wait(lambda: text_or_nothing(tenant.agent_log), 30), "the agent's log is not reached"
