"""webhook_tunnel_info where the API server really calls a webhook through an egress, and reads an agent's log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from actors import Tunnel
from control_plane import ControlPlane
from playbook import run_module


@pytest.fixture
def tunnel(control_plane: ControlPlane) -> Iterator[Tunnel]:
    tunnel = Tunnel(control_plane)
    yield tunnel
    tunnel.stop()


def ask(control_plane: ControlPlane, folder: Path, **options: Any) -> dict[str, Any]:
    kubeconfig = str(control_plane.kubeconfig_of_module("webhook_tunnel_info"))
    return run_module(folder, "webhook_tunnel_info", {"kubeconfig": kubeconfig, **options})


def test_the_whole_way_is_proved(control_plane: ControlPlane, tunnel: Tunnel, tmp_path: Path) -> None:
    answer = ask(control_plane, tmp_path)
    assert (answer["tunnelled"], answer["reason"]) == (True, ""), answer
    assert answer["address"] == f"{Tunnel.SERVICE}:443"
    assert answer["answered"] == "schedulerName hami-scheduler"
    agent = answer["agents"][0]
    assert agent["dials"] >= 1 and agent["counted"] >= agent["dials"]
    assert 'protocol="http_connect"' in answer["metric"][0]
    assert "PRIVATE KEY" not in json.dumps(answer)
    assert not control_plane.api.items("/api/v1/namespaces/default/pods"), "the probe is no pod"


def test_an_agent_without_metrics_is_believed_by_its_log(
    control_plane: ControlPlane, tunnel: Tunnel, tmp_path: Path
) -> None:
    tunnel.metrics = 404, b"404 page not found"
    answer = ask(control_plane, tmp_path)
    assert (answer["tunnelled"], answer["agents"][0]["counted"]) == (True, None), answer


def test_a_webhook_out_of_reach_is_said(control_plane: ControlPlane, tunnel: Tunnel, tmp_path: Path) -> None:
    control_plane.network.unroute(f"{Tunnel.SERVICE}:443")
    answer = ask(control_plane, tmp_path)
    assert not answer["tunnelled"]
    assert "failed calling webhook" in answer["reason"]


def test_an_agent_on_a_lost_node_is_told_and_hides_no_other(
    control_plane: ControlPlane, tunnel: Tunnel, tmp_path: Path
) -> None:
    pods = "/api/v1/namespaces/kube-system/pods"
    api = control_plane.api
    api.create(
        pods,
        {
            "metadata": {"name": "konnectivity-agent-1", "labels": {"k8s-app": "konnectivity-agent"}},
            "spec": {"nodeName": "lost-node", "containers": [{"name": "agent", "image": "none"}]},
        },
    )
    try:
        api.patch(f"{pods}/konnectivity-agent-1/status", {"status": {"phase": "Running"}})
        answer = ask(control_plane, tmp_path)
    finally:
        api.delete(f"{pods}/konnectivity-agent-1")
    assert (answer["tunnelled"], answer["reason"]) == (True, ""), answer
    assert {agent["node"]: bool(agent["unread"]) for agent in answer["agents"]} == {
        "tunnel-node": False,
        "lost-node": True,
    }
