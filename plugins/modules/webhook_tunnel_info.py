#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: webhook_tunnel_info
short_description: Proves that an API server reaches its admission webhook through the tunnel
version_added: "0.1.0"
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - A control plane that is hosted elsewhere reaches webhooks in its tenant's network only through a tunnel.
    This module follows the way from the webhook's configuration to its Service's address, asks the API server to call
    the webhook (with a dry run, which creates nothing), and looks for that address among those that the tunnel's agent
    dialled and for the API server's own count of dials.
  - The API server keeps connections to webhooks open, so that not every call dials. So the agent's log since its start
    counts.
  - Needs the rights to get mutating webhook configurations, services, pods and their logs in the agent's namespace,
    to get the URL V(/metrics), and to create pods in O(probe_namespace) if O(probe) is set.
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
options:
  webhook:
    description: Name of the MutatingWebhookConfiguration.
    type: str
    default: hami-webhook
  agent_namespace:
    description: Namespace of the tunnel's agent.
    type: str
    default: kube-system
  agent_selector:
    description: Labels of the agent's pods.
    type: str
    default: k8s-app=konnectivity-agent
  probe:
    description: Whether to ask the API server, with a dry run, to admit a GPU pod, so that it calls the webhook now.
    type: bool
    default: true
  probe_namespace:
    description: Namespace of the pod that is not created.
    type: str
    default: default
"""

EXAMPLES = r"""
- name: How tenant-a's API server reaches HAMi's webhook
  tenantry.gpu.webhook_tunnel_info:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
  register: tenant_tunnel

- name: It goes through the tunnel
  ansible.builtin.assert:
    that: tenant_tunnel.tunnelled
"""

RETURN = r"""
tunnelled:
  description: Whether the agent dialled the webhook's address and the webhook answers.
  returned: success
  type: bool
  sample: true
reason:
  description: What is missing, if it is not proved. Empty if it is.
  returned: success
  type: str
  sample: ""
address:
  description: Address and port of the webhook's Service.
  returned: success
  type: str
  sample: 10.112.34.5:443
service:
  description: Namespace and name of the webhook's Service.
  returned: success
  type: str
  sample: hami-system/hami-scheduler
failure_policy:
  description: What becomes of a pod when the webhook cannot be reached.
  returned: success
  type: str
  sample: Fail
answered:
  description: What the webhook made of the pod of the dry run. Empty if O(probe) is not set.
  returned: success
  type: str
  sample: schedulerName hami-scheduler
agents:
  description: The agent's pods.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the pod.
      type: str
      sample: konnectivity-agent-x7k2p
    node:
      description: Its node.
      type: str
      sample: a-worker-0
    dials:
      description: How often its log says that it dialled the webhook's address.
      type: int
      sample: 2
    line:
      description: The latest of those lines.
      type: str
      sample: 'Received DIAL_REQ dialAddress="10.112.34.5:443"'
metric:
  description: The API server's own count of dials through its egress, by protocol and transport.
  returned: success
  type: list
  elements: str
  sample: ['apiserver_egress_dialer_dial_start_total{protocol="grpc",transport="uds"} 12']
"""

from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import Cluster, ClusterError, connect, new_module
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import RESOURCE_COUNT, SCHEDULER_NAME

Object = dict[str, Any]

METRIC = "apiserver_egress_dialer_dial_start_total"
DIALLED = "Received DIAL_REQ"
ANSWER = "schedulerName {}"
TAKEN = ANSWER.format(SCHEDULER_NAME)
OPTIONS: dict[str, Any] = {
    "webhook": {"type": "str", "default": "hami-webhook"},
    "agent_namespace": {"type": "str", "default": "kube-system"},
    "agent_selector": {"type": "str", "default": "k8s-app=konnectivity-agent"},
    "probe": {"type": "bool", "default": True},
    "probe_namespace": {"type": "str", "default": "default"},
}
PROBE_POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "webhook-tunnel-probe-"},
    "spec": {
        "automountServiceAccountToken": False,
        "containers": [{"name": "probe", "image": "none", "resources": {"limits": {RESOURCE_COUNT: "1"}}}],
    },
}


def webhook_service(configuration: Object) -> tuple[str, str, int, str]:
    """Namespace, name and port of the first webhook's Service, and its failure policy. Raises ClusterError."""
    name = configuration["metadata"]["name"]
    for webhook in configuration.get("webhooks") or []:
        service = (webhook.get("clientConfig") or {}).get("service")
        if service:
            return service["namespace"], service["name"], int(service.get("port") or 443), webhook["failurePolicy"]
    raise ClusterError(f"{name} has no webhook that is a Service; a URL is never called through the tunnel.")


def dials_of(log: str, address: str) -> list[str]:
    """The lines in which an agent says that it dialled ``address``."""
    return [line for line in log.splitlines() if DIALLED in line and f'"{address}"' in line]


def metric_lines(metrics: str) -> list[str]:
    return [line for line in metrics.splitlines() if line.startswith(METRIC)]


def why_not(agents: list[Object], address: str, metric: list[str], answered: str | None) -> str:
    """What the proof lacks; empty when nothing."""
    if not agents:
        return "the tunnel's agent has no pod"
    if not any(agent["dials"] for agent in agents):
        return f"no agent's log says that it dialled {address}"
    if not any(float(line.rsplit(" ", 1)[1]) > 0 for line in metric):
        return f"the API server counts no dial through an egress ({METRIC})"
    if answered is not None and answered != TAKEN:
        return f"the webhook did not take the pod of the dry run: {answered}"
    return ""


def probe(cluster: Cluster, namespace: str) -> str:
    """What a GPU pod became at admission, in a dry run."""
    try:
        pod = cluster.create(f"/api/v1/namespaces/{namespace}/pods", PROBE_POD, dryRun="All")
    except ClusterError as error:
        return str(error)
    return ANSWER.format(pod["spec"].get("schedulerName"))


def read_agents(cluster: Cluster, namespace: str, selector: str, address: str) -> list[Object]:
    agents = []
    for pod in cluster.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector):
        name = pod["metadata"]["name"]
        lines: list[str] = []
        if (pod.get("status") or {}).get("phase") == "Running":
            lines = dials_of(cluster.text(f"/api/v1/namespaces/{namespace}/pods/{name}/log"), address)
        latest = lines[-1] if lines else ""
        agents.append({"name": name, "node": pod["spec"].get("nodeName", ""), "dials": len(lines), "line": latest})
    return agents


def read(cluster: Cluster, params: Object) -> Object:
    path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{params['webhook']}"
    namespace, name, port, policy = webhook_service(cluster.get(path))
    service = cluster.get(f"/api/v1/namespaces/{namespace}/services/{name}")
    address = f"{service['spec']['clusterIP']}:{port}"
    answered = probe(cluster, params["probe_namespace"]) if params["probe"] else None
    agents = read_agents(cluster, params["agent_namespace"], params["agent_selector"], address)
    metric = metric_lines(cluster.text("/metrics"))
    reason = why_not(agents, address, metric, answered)
    return {
        "tunnelled": not reason,
        "reason": reason,
        "address": address,
        "service": f"{namespace}/{name}",
        "failure_policy": policy,
        "answered": answered or "",
        "agents": agents,
        "metric": metric,
    }


def main() -> None:
    module = new_module(OPTIONS)
    try:
        result = read(connect(module), module.params)
    except ClusterError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
