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
  - Konnectivity's own agent counts its dials, too; where an agent serves that count it has to agree with the log.
notes:
  - C(docs/reference/rights/webhook_tunnel_info.yml) is the smallest ClusterRole that it works with.
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
  agent_metrics:
    description:
      - Whether to ask each agent, through the API server, for its own count of dials.
        An agent that serves none is no error.
    type: bool
    default: true
  agent_metrics_port:
    description: Port of the agent's metrics, which is its health port (Konnectivity's C(--health-server-port)).
    type: int
    default: 8134
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
    counted:
      description: How many dials, to any address, the agent itself counts. Null if it serves no such count.
      type: int
      sample: 14
    failures:
      description: How many dials, to any address, failed. Null if it serves no such count.
      type: int
      sample: 0
    unread:
      description: Why it could not be asked, as one on a lost node cannot. Empty where it was.
      type: str
      sample: ''
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
# kubernetes-sigs/apiserver-network-proxy v0.36.0, pkg/agent/metrics/metrics.go
AGENT_DIALS = "konnectivity_network_proxy_agent_dial_duration_seconds_count"
AGENT_FAILURES = "konnectivity_network_proxy_agent_endpoint_dial_failure_total"
ANSWER = "schedulerName {}"
TAKEN = ANSWER.format(SCHEDULER_NAME)
OPTIONS: dict[str, Any] = {
    "webhook": {"type": "str", "default": "hami-webhook"},
    "agent_namespace": {"type": "str", "default": "kube-system"},
    "agent_selector": {"type": "str", "default": "k8s-app=konnectivity-agent"},
    "agent_metrics": {"type": "bool", "default": True},
    "agent_metrics_port": {"type": "int", "default": 8134},
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


def webhook_configuration(cluster: Cluster, name: str) -> Object:
    try:
        return cluster.get(f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{name}")
    except ClusterError as error:
        if error.status != 404:
            raise
        raise ClusterError(f"No MutatingWebhookConfiguration is named {name}; install HAMi, or set webhook.") from error


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


def metric_lines(metrics: str, name: str = METRIC) -> list[str]:
    """The samples of one metric, whatever their labels."""
    return [line for line in metrics.splitlines() if line.split("{")[0].split(" ")[0] == name]


def total(lines: list[str]) -> int:
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


def why_not(agents: list[Object], address: str, metric: list[str], answered: str | None) -> str:
    """What the proof lacks; empty when nothing."""
    if not agents:
        return "the tunnel's agent has no pod; see whether its DaemonSet or Deployment has a node to run on"
    dialled = [agent for agent in agents if agent["dials"]]
    if not dialled:
        unread = [
            f"{agent['name']} on {agent['node']} could not be asked: {agent['unread']}"
            for agent in agents
            if agent["unread"]
        ]
        return "; ".join([f"no agent's log says that it dialled {address}", *unread])
    if not any(agent["counted"] is None or agent["counted"] >= agent["dials"] for agent in dialled):
        return f"no agent that says it dialled {address} counts as many dials ({AGENT_DIALS})"
    if total(metric) == 0:
        return f"the API server counts no dial through an egress ({METRIC})"
    if answered is not None and answered != TAKEN:
        return f"the webhook did not take the pod of the dry run: {answered}"
    return ""


def probe(cluster: Cluster, namespace: str) -> str:
    """What a GPU pod became at admission, in a dry run."""
    try:
        pod = cluster.create(f"/api/v1/namespaces/{namespace}/pods", PROBE_POD, dryRun="All")
    except ClusterError as error:
        if error.status == 403 and "cannot create" in str(error):
            raise
        return str(error)
    return ANSWER.format(pod["spec"].get("schedulerName"))


def agent_counts(cluster: Cluster, pod_path: str, port: int) -> tuple[int | None, int | None]:
    """An agent's own counts of dials and of failed ones; None where it serves none. Raises ClusterError for a 403."""
    try:
        metrics = cluster.text(f"{pod_path}:{port}/proxy/metrics")
    except ClusterError as error:
        if error.status == 403:
            raise
        return None, None
    if not metric_lines(metrics, AGENT_DIALS):
        return None, None
    return total(metric_lines(metrics, AGENT_DIALS)), total(metric_lines(metrics, AGENT_FAILURES))


def read_agent(cluster: Cluster, pod: Object, address: str, metrics_port: int | None) -> Object:
    """What one agent says of its dials. ``metrics_port`` None: it is not asked for its count."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    lines: list[str] = []
    counted, failures = None, None
    unread = ""
    if (pod.get("status") or {}).get("phase") == "Running":
        try:
            lines = dials_of(cluster.text(f"{path}/log"), address)
        except ClusterError as error:
            if error.status == 403:
                raise
            unread = str(error)
        if metrics_port is not None and not unread:
            counted, failures = agent_counts(cluster, path, metrics_port)
    return {
        "name": name,
        "node": pod["spec"].get("nodeName", ""),
        "dials": len(lines),
        "line": lines[-1] if lines else "",
        "counted": counted,
        "failures": failures,
        "unread": unread,
    }


def read_agents(cluster: Cluster, params: Object, address: str) -> list[Object]:
    pods = f"/api/v1/namespaces/{params['agent_namespace']}/pods"
    port = params["agent_metrics_port"] if params["agent_metrics"] else None
    return [
        read_agent(cluster, pod, address, port) for pod in cluster.list(pods, labelSelector=params["agent_selector"])
    ]


def read(cluster: Cluster, params: Object) -> Object:
    namespace, name, port, policy = webhook_service(webhook_configuration(cluster, params["webhook"]))
    service = cluster.get(f"/api/v1/namespaces/{namespace}/services/{name}")
    address = f"{service['spec']['clusterIP']}:{port}"
    answered = probe(cluster, params["probe_namespace"]) if params["probe"] else None
    agents = read_agents(cluster, params, address)
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
