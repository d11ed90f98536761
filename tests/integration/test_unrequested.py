# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stage 8 on real cards: a pod that asks for none says what it sees, on a real API with a kubelet that plays it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Player, node_address
from control_plane import ControlPlane
from playbook import run_play
from servers import serve

KUBELET = "10.32.0.6"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
LOG = "/dev/nvidia0\ntenantry.gpu: end of devices\n"
ENDED = {"type": "Ready", "status": "False", "reason": "PodCompleted"}


@pytest.fixture
def worker(control_plane: ControlPlane) -> Iterator[None]:
    """A Node whose kubelet runs every pod to its end, and has one log for all."""
    api = control_plane.api
    server = serve(lambda path, body: (200, LOG.encode()), control_plane.authority.issue("kubelet-look"))
    control_plane.network.routes[f"{KUBELET}:10250"] = server.port
    api.create("/api/v1/nodes", {"metadata": {"name": "gpu-0", "labels": {"gpu": "on"}}})
    api.patch("/api/v1/nodes/gpu-0/status", {"status": node_address(KUBELET)})
    api.create(CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    fate = {"node": "gpu-0", "status": {"phase": "Succeeded", "conditions": [ENDED]}}
    player = Player(api, "", lambda pod: fate if pod["spec"].get("runtimeClassName") == "nvidia" else {})
    yield
    api.delete(CLASSES + "/nvidia")
    player.stop()
    api.delete("/api/v1/nodes/gpu-0")
    control_plane.network.unroute(f"{KUBELET}:10250")
    server.stop()


@pytest.mark.usefixtures("worker")
def test_what_a_pod_without_a_request_sees_is_read(control_plane: ControlPlane, tmp_path: Path) -> None:
    role = {"name": "tenantry.gpu.verification", "tasks_from": "unrequested"}
    seen = tmp_path / "seen.json"
    tasks = [
        {"ansible.builtin.include_role": {**role, "public": True}},
        {"ansible.builtin.copy": {"content": "{{ __verification_unrequested | to_json }}", "dest": str(seen)}},
    ]
    variables = {
        "tenantry_state_dir": str(tmp_path),
        "verification_kubeconfig": str(control_plane.kubeconfig),
        "verification_image": "looks",
        "verification_timeout_s": 30,
    }
    run = run_play(tmp_path, {"tasks": tasks}, variables)
    assert run.status == 0, run.failure()
    assert json.loads(seen.read_text())["log"] == LOG
    assert "changed=1 " in run.output  # the file above
