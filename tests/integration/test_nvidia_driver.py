# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""A worker whose driver is to be replaced: the role nvidia_driver drains it, and gives it back, on a real API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane
from playbook import Run, run_play

NODE = "gpu-0"
NODE_PATH = f"/api/v1/nodes/{NODE}"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def worker(control_plane: ControlPlane) -> Iterator[None]:
    """A Node with a pod that nobody would make again, and that ends at once."""
    api = control_plane.api
    api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    spec = {"nodeName": NODE, "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]}
    api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job"}, "spec": spec})
    yield
    for pod in api.items(PODS):
        api.delete(f"{PODS}/{pod['metadata']['name']}")
    api.delete(NODE_PATH)


def run(control_plane: ControlPlane, folder: Path, tasks_from: str, confirm: bool = True) -> Run:
    """Run one entry of the role for the worker; its driver is that of this machine, none."""
    variables = {
        "tenantry_state_dir": str(folder),
        "tenantry_versions": {"nvidia_driver_branch": "580"},
        "tenant_worker_tenant": "tenant-a",
        "nvidia_driver_kubeconfig": str(control_plane.kubeconfig),
        "nvidia_driver_node_name": NODE,
        "nvidia_driver_drain_confirm": confirm,
        "__nvidia_driver_found": {"module_loaded": "580.82.07", "library_installed": "580.82.07"},
    }
    role = {"ansible.builtin.include_role": {"name": "tenantry.gpu.nvidia_driver", "tasks_from": tasks_from}}
    return run_play(folder, {"tasks": [role]}, variables)


def unschedulable(control_plane: ControlPlane) -> bool:
    return bool(control_plane.api.get(NODE_PATH)["spec"].get("unschedulable"))


@pytest.mark.usefixtures("worker")
def test_nothing_is_drained_without_a_word(control_plane: ControlPlane, tmp_path: Path) -> None:
    done = run(control_plane, tmp_path, "drain", confirm=False)
    assert done.status != 0
    sentence = " ".join(done.failure().split())
    assert "localhost: its driver 580.82.07 is in use by tenant-a" in sentence
    assert "run again with -e nvidia_driver_drain_confirm=true" in sentence
    assert not unschedulable(control_plane) and control_plane.api.items(PODS)


@pytest.mark.usefixtures("worker")
def test_a_worker_is_drained_and_given_back(control_plane: ControlPlane, tmp_path: Path) -> None:
    done = run(control_plane, tmp_path, "drain")
    assert done.status == 0, done.failure()
    assert unschedulable(control_plane) and control_plane.api.items(PODS) == []
    assert (tmp_path / "drained" / NODE).is_file()

    done = run(control_plane, tmp_path, "uncordon")
    assert done.status == 0, done.failure()
    assert not unschedulable(control_plane)
    assert not (tmp_path / "drained" / NODE).exists()


@pytest.mark.usefixtures("worker")
def test_a_node_that_somebody_else_cordoned_is_not_ours_to_give_back(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    control_plane.api.patch(NODE_PATH, {"spec": {"unschedulable": True}})
    done = run(control_plane, tmp_path, "drain")
    assert done.status == 0, done.failure()
    assert control_plane.api.items(PODS) == []
    assert not (tmp_path / "drained" / NODE).exists()


def test_a_host_that_has_not_joined_is_not_drained(control_plane: ControlPlane, tmp_path: Path) -> None:
    done = run(control_plane, tmp_path, "drain", confirm=False)
    assert done.status == 0, done.failure()
