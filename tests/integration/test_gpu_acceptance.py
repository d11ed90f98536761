"""The playbook gpu_acceptance, from the inventory to the report, on an API whose one kubelet runs the real probe."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import ROOT, ControlPlane
from playbook import PLAYBOOK
from real_card import RealWorker

Object = dict[str, Any]

PLAY = ROOT / "playbooks" / "gpu_acceptance.yml"
IMAGE = "registry.example.com/python@sha256:" + 64 * "a"
RUN = "labelSelector=tenantry.gpu/verify-run"
LIMIT_S = 150


# Role hami makes the class; by it a pod without a request looks for cards.
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"


@pytest.fixture
def worker(control_plane: ControlPlane) -> Iterator[RealWorker]:
    made = RealWorker(control_plane)
    control_plane.api.create(CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    yield made
    control_plane.api.delete(f"{CLASSES}/nvidia")
    made.stop()


class Site:
    """An inventory with one tenant and one worker, and the playbook run on it."""

    def __init__(self, control_plane: ControlPlane, folder: Path, **worker: Any) -> None:
        self._folder = folder
        self.report = folder / ".state" / "acceptance" / "report.json"
        hosts = {
            "all": {
                "hosts": {"localhost": {}},
                "vars": {
                    "ansible_connection": "local",
                    "ansible_python_interpreter": sys.executable,
                    "tenantry_state_dir": str(folder / ".state"),
                    "tenantry_components": "standin",
                    "tenantry_versions": {"hami": "2.10.0"},
                    "gpu_acceptance_kubeconfig": str(control_plane.kubeconfig),
                    "gpu_acceptance_repeats": 20,
                    "gpu_acceptance_warm_up_s": 0.2,
                    "gpu_acceptance_timeout_s": 60,
                },
                "children": {
                    "tenants": {"hosts": {"tenant-a": {}}},
                    "workers": {"hosts": {"a-worker-0": {"tenant_worker_tenant": "tenant-a", **worker}}},
                },
            }
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump(hosts))

    def run(self, *options: str, image: str = IMAGE) -> tuple[int, str]:
        """The exit status and what was printed, without line breaks."""
        command = [
            str(PLAYBOOK),
            "-i",
            str(self._folder / "hosts.yml"),
            str(PLAY),
            "-e",
            f"gpu_acceptance_image={image}",
        ]
        done = subprocess.run(
            [*command, *options],
            cwd=self._folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=LIMIT_S,
        )
        (self._folder / "output.log").write_text(done.stdout)
        return done.returncode, " ".join(done.stdout.split())

    def verdicts(self) -> dict[str, str]:
        return {check["id"]: check["verdict"] for check in self.checks()}

    def checks(self) -> list[Object]:
        checks: list[Object] = json.loads(self.report.read_text())["checks"]
        return checks


def test_a_card_is_accepted_and_nothing_is_left(
    worker: RealWorker, control_plane: ControlPlane, tmp_path: Path
) -> None:
    site = Site(control_plane, tmp_path, gpu_backend="nvidia")
    status, output = site.run("-e", json.dumps({"gpu_acceptance_other_images": [IMAGE]}))
    assert status == 0, output
    assert set(site.verdicts().values()) == {"passed"}
    told = {check["id"]: check["observed"] for check in site.checks()}
    assert told["cuda-oom-apart"] == "OOMKilled with exit status 137, no CUDA error"
    assert told["cuda-memory"].startswith("2,048 of 2,048 MiB granted, then cuMemAlloc_v2 answered")
    assert RealWorker.UUID in told["cuda-concurrent"]
    assert (tmp_path / ".state" / "acceptance" / "junit.xml").exists()
    api = control_plane.api
    assert not api.items(f"/api/v1/pods?{RUN}")
    assert all(each["metadata"].get("deletionTimestamp") for each in api.items(f"/api/v1/namespaces?{RUN}"))


def test_a_process_that_escapes_is_found(worker: RealWorker, control_plane: ControlPlane, tmp_path: Path) -> None:
    worker.escapes |= {"memory", "share"}
    site = Site(control_plane, tmp_path, gpu_backend="nvidia")
    status, output = site.run("-e", "gpu_acceptance_native=false")
    assert status
    assert "Failed: cuda-cores, cuda-memory." in output
    assert site.verdicts()["cuda-overhead"] == "skipped"
    told = {check["id"]: check["reason"] for check in site.checks()}
    assert "nothing was refused, since HAMi's library is not loaded in it (an image on musl?)" in told["cuda-memory"]


def test_check_mode_says_what_would_be_run_and_creates_nothing(
    worker: RealWorker, control_plane: ControlPlane, tmp_path: Path
) -> None:
    status, output = Site(control_plane, tmp_path, gpu_backend="nvidia").run("--check")
    assert status == 0, output
    assert "CUDA jobs are tried on the cards of a-worker-0." in output
    stages = "one stage after the other: native; whole; share; half-0 with half-1; memory with children with exec with"
    assert f"On {RealWorker.UUID} of a-worker-0, {stages}" in output
    assert not worker.ran and not (tmp_path / ".state").exists()


def test_an_image_without_a_digest_is_refused_before_anything_runs(
    worker: RealWorker, control_plane: ControlPlane, tmp_path: Path
) -> None:
    site = Site(control_plane, tmp_path, gpu_backend="nvidia")
    status, output = site.run(image="python:3.12-slim")
    assert status
    assert (
        "gpu_acceptance_image is python:3.12-slim; give an image with Python 3.9 or newer and glibc, pinned as"
        in output
    )
    assert not worker.ran and not site.report.exists()


def test_a_tenant_with_simulated_cards_is_left_out_and_nothing_accepted(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    site = Site(control_plane, tmp_path, gpu_backend="simulator")
    status, output = site.run(image="")
    assert status
    assert "tenant-a has no real cards (no worker of its with gpu_backend nvidia): nothing is tried on it." in output
    assert "No tenant has real cards (a worker with gpu_backend nvidia), so nothing was tried and there is no" in output
    assert not site.report.exists()


def test_cards_that_are_all_in_use_are_left_alone(
    worker: RealWorker, control_plane: ControlPlane, tmp_path: Path
) -> None:
    api = control_plane.api
    share = f"{RealWorker.UUID},NVIDIA,1000,10:;"
    annotations = {
        "hami.io/vgpu-node": worker.name,
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-allocated": share,
    }
    pod = {
        "metadata": {"name": "busy", "annotations": annotations, "labels": {"hami.io/vgpu-node": worker.name}},
        "spec": {"nodeName": worker.name, "containers": [{"name": "main", "image": "none"}]},
    }
    api.ensure("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    api.create("/api/v1/namespaces/default/pods", pod)
    try:
        site = Site(control_plane, tmp_path, gpu_backend="nvidia")
        status, output = site.run()
    finally:
        api.delete("/api/v1/namespaces/default/pods/busy")
    assert status and "No check was made. See" in output
    assert set(site.verdicts().values()) == {"skipped"}
    assert {check["reason"] for check in site.checks()} == {"tenant-a: none of its real cards is idle"}
    assert not worker.ran


def test_an_api_that_cannot_be_reached_fails_the_report_with_the_cause(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    site = Site(control_plane, tmp_path, gpu_backend="nvidia")
    status, _output = site.run("-e", f"gpu_acceptance_kubeconfig={tmp_path}/none.conf")
    assert status
    assert set(site.verdicts().values()) == {"failed"}
    assert "No connection to the cluster: Could not create API client" in site.checks()[0]["reason"]
