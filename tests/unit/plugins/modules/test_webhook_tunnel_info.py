# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import ClusterError
from ansible_collections.tenantry.gpu.plugins.modules import webhook_tunnel_info as module

Object = dict[str, Any]

LINE = 'I1130 04:05:06 client.go:478] "Received DIAL_REQ" connectionID=7 dialID=1 dialAddress="10.112.3.4:443"'
OTHER = LINE.replace("10.112.3.4:443", "172.28.7.11:10250")
COUNT = "konnectivity_network_proxy_agent_dial_duration_seconds_count"
FAILURES = 'konnectivity_network_proxy_agent_endpoint_dial_failure_total{reason="timeout"}'
METRIC = 'apiserver_egress_dialer_dial_start_total{protocol="grpc",transport="uds"}'
PARAMS: Object = {
    "webhook": "hami-webhook",
    "agent_namespace": "kube-system",
    "agent_selector": "k8s-app=konnectivity-agent",
    "agent_metrics": True,
    "agent_metrics_port": 8134,
    "probe": True,
    "probe_namespace": "default",
}


class FakeCluster:
    def __init__(self) -> None:
        service = {"name": "hami-scheduler", "namespace": "hami-system", "port": 443}
        self.webhook: Object = {
            "metadata": {"name": "hami-webhook"},
            "webhooks": [{"clientConfig": {"service": service}, "failurePolicy": "Fail"}],
        }
        self.agents: dict[str, str | ClusterError] = {"agent-1": f"{OTHER}\n{LINE}\n{OTHER}\n"}
        self.phase = "Running"
        self.metric = f"# HELP\n{METRIC} 3\nother 1\n"
        self.scheduler = "hami-scheduler"
        self.counts: str | ClusterError = f"{COUNT} 4\n{FAILURES} 1\n"

    def get(self, path: str) -> Object:
        return {"spec": {"clusterIP": "10.112.3.4"}} if "/services/" in path else self.webhook

    def list(self, path: str, **query: str) -> Iterator[Object]:
        for name in self.agents:
            yield {
                "metadata": {"name": name, "namespace": "kube-system"},
                "spec": {"nodeName": "n1"},
                "status": {"phase": self.phase},
            }

    def text(self, path: str) -> str:
        if path.endswith(":8134/proxy/metrics"):
            if isinstance(self.counts, ClusterError):
                raise self.counts
            return self.counts
        if path == "/metrics":
            return self.metric
        log = self.agents[path.split("/")[-2]]
        if isinstance(log, ClusterError):
            raise log
        return log

    def create(self, path: str, body: Object, **query: str) -> Object:
        assert query == {"dryRun": "All"}
        if not self.scheduler:
            raise ClusterError('500 failed calling webhook: Post "https://hami-scheduler.hami-system.svc:443"')
        return {"spec": {"schedulerName": self.scheduler}}


def read(cluster: FakeCluster, **params: Any) -> Object:
    return module.read(cluster, {**PARAMS, **params})  # type: ignore[arg-type]


def test_the_whole_proof() -> None:
    result = read(FakeCluster())
    assert result["tunnelled"] is True
    assert result["reason"] == ""
    assert result["agents"] == [
        {"name": "agent-1", "node": "n1", "dials": 1, "line": LINE, "counted": 4, "failures": 1, "unread": ""}
    ]
    assert result["metric"] == [f"{METRIC} 3"]
    assert (result["address"], result["service"]) == ("10.112.3.4:443", "hami-system/hami-scheduler")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"agents": {}}, "agent has no pod"),
        ({"agents": {"agent-1": OTHER}}, "no agent's log says that it dialled 10.112.3.4:443"),
        ({"phase": "Pending"}, "no agent's log"),
        ({"counts": f"{COUNT} 0\n"}, "counts as many dials"),
        ({"metric": ""}, "counts no dial"),
        ({"metric": f"{METRIC} 0\n"}, "counts no dial"),
        ({"scheduler": "default-scheduler"}, "did not take the pod of the dry run: schedulerName default"),
        ({"scheduler": ""}, "failed calling webhook"),
    ],
)
def test_what_the_proof_lacks(change: Object, reason: str) -> None:
    cluster = FakeCluster()
    for name, value in change.items():
        setattr(cluster, name, value)
    result = read(cluster)
    assert result["tunnelled"] is False
    assert reason in result["reason"]


@pytest.mark.parametrize("counts", ["other 1\n", ClusterError("503 connection refused", 503)])
def test_an_agent_without_a_count_is_believed_by_its_log(counts: str | ClusterError) -> None:
    cluster = FakeCluster()
    cluster.counts = counts
    result = read(cluster)
    assert result["tunnelled"] is True
    assert (result["agents"][0]["counted"], result["agents"][0]["failures"]) == (None, None)


def test_a_missing_right_to_ask_the_agent_is_an_error() -> None:
    cluster = FakeCluster()
    cluster.counts = ClusterError("403 cannot get resource pods/proxy", 403)
    with pytest.raises(ClusterError, match="pods/proxy"):
        read(cluster)
    assert read(cluster, agent_metrics=False)["tunnelled"] is True


def test_without_the_probe_the_webhook_is_not_asked() -> None:
    cluster = FakeCluster()
    cluster.scheduler = ""
    result = read(cluster, probe=False)
    assert (result["tunnelled"], result["answered"]) == (True, "")


def test_a_webhook_that_is_a_url_is_an_error() -> None:
    cluster = FakeCluster()
    cluster.webhook["webhooks"][0]["clientConfig"] = {"url": "https://192.0.2.1/webhook"}
    with pytest.raises(ClusterError, match="hami-webhook has no webhook that is a Service"):
        read(cluster)


def test_an_agent_that_cannot_be_asked_is_named_where_no_other_dialled() -> None:
    cluster = FakeCluster()
    cluster.agents = {"agent-1": ClusterError("404 pods n1 not found", 404)}
    assert read(cluster)["reason"] == (
        "no agent's log says that it dialled 10.112.3.4:443; agent-1 on n1 could not be asked: 404 pods n1 not found"
    )


def test_a_missing_right_to_read_logs_is_an_error() -> None:
    cluster = FakeCluster()
    cluster.agents = {"agent-1": ClusterError("403 forbidden", 403)}
    with pytest.raises(ClusterError, match="forbidden"):
        read(cluster)
