# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Workers with real cards: the role hami labels their Nodes for HAMi's device plugin, and says so to its chart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from control_plane import ControlPlane, program
from playbook import Run, run_play

NODES = ("gpu-0", "gpu-1")
# A chart that shows what it was given.
SHOWN = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: shown}
data:
  devicePlugin: {{ .Values.devicePlugin | toJson | quote }}
"""


@pytest.fixture
def workers(control_plane: ControlPlane) -> Iterator[None]:
    for name in NODES:
        control_plane.api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield
    for name in NODES:
        control_plane.api.delete(f"/api/v1/nodes/{name}")
    control_plane.api.delete("/api/v1/namespaces/hami-system")


def deploy(control_plane: ControlPlane, folder: Path, slots: dict[str, int]) -> Run:
    chart = folder / "chart"
    (chart / "templates").mkdir(parents=True, exist_ok=True)
    (chart / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": "hami", "version": "1.0.0"}))
    (chart / "templates" / "shown.yaml").write_text(SHOWN)
    variables = {
        "tenantry_state_dir": str(folder),
        "tenantry_versions": {"hami": "1.0.0", "kubernetes": "1.36.3"},
        "hami_kubeconfig": str(control_plane.kubeconfig),
        "hami_chart_ref": str(chart),
        "hami_helm_binary": str(program("helm", "helm")),
        "hami_gpu_backend": "nvidia",
        "hami_nvidia_slots": slots,
        "hami_slots_per_card": 4,
        "hami_timeout_s": 3,
        "hami_wait": False,
    }
    return run_play(folder, {"roles": ["tenantry.gpu.hami"]}, variables)


@pytest.mark.usefixtures("workers")
def test_real_cards_are_labelled_for_the_device_plugin(control_plane: ControlPlane, tmp_path: Path) -> None:
    first, second = (deploy(control_plane, tmp_path, dict.fromkeys(NODES, 0)) for _ in range(2))
    assert first.status == 0, first.failure()
    assert [control_plane.api.get(f"/api/v1/nodes/{name}")["metadata"]["labels"]["gpu"] for name in NODES] == ["on"] * 2
    shown = control_plane.api.get("/api/v1/namespaces/hami-system/configmaps/shown")["data"]["devicePlugin"]
    assert yaml.safe_load(shown) == {
        "enabled": True,
        "runtimeClassName": "nvidia",
        "createRuntimeClass": True,
        "deviceListStrategy": "volume-mounts",
        "deviceSplitCount": 4,
        "nvidiaNodeSelector": {"gpu": "on"},
    }
    assert second.status == 0, second.failure()
    assert re.search(r"changed=0 ", second.output)


@pytest.mark.usefixtures("workers")
def test_workers_that_a_run_lost_on_its_way_are_not_waited_for(control_plane: ControlPlane, tmp_path: Path) -> None:
    """gpu-0 never came to be ready, gpu-2 has not joined."""
    run = deploy(control_plane, tmp_path, {"gpu-0": 8, "gpu-1": 8, "gpu-2": 8})
    assert run.status == 0, run.failure()
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    control_plane.api.patch("/api/v1/nodes/gpu-1/status", ready)
    run = deploy(control_plane, tmp_path, {"gpu-0": 8, "gpu-1": 8, "gpu-2": 8})
    assert run.status != 0
    assert "gpu-1 declares 0 and offers 0 of 8 slots" in run.output
    assert "gpu-0 declares" not in run.output
