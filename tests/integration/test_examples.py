"""The examples in the modules' documentation, run as a reader would copy them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from actors import Player, Tunnel, simple_scheduler
from control_plane import ROOT, ControlPlane
from playbook import run_play

Object = dict[str, Any]

MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py") if path.stem != "__init__")
# They change the host that they run on; here their options are checked, and what they would do is told.
CHECK_MODE_ONLY = ("kubeadm_worker", "lab_hosts")
SECOND_TENANT = "tenant-b.conf"
UUID = "GPU-6d0c1c9b-6a53-5c6e-9d7f-0d7b1f0f6b0e"


def examples_of(module: str) -> list[Object]:
    source = (ROOT / "plugins" / "modules" / f"{module}.py").read_text()
    found = re.search(r'^EXAMPLES = r?"""(.*?)"""', source, re.MULTILINE | re.DOTALL)
    assert found, f"{module} has no EXAMPLES"
    tasks: list[Object] = yaml.safe_load(found[1])
    return tasks


@contextmanager
def a_worker(control_plane: ControlPlane) -> Iterator[None]:
    """The worker of the lab's first tenant, with one A100 of ten slots."""
    register = f"{UUID},10,81920,100,NVIDIA-NVIDIA A100-SXM4-80GB,0,true,0,hami-core:"
    body = {"metadata": {"name": "a-worker-0", "annotations": {"hami.io/node-nvidia-register": register}}}
    control_plane.api.create("/api/v1/nodes", body)
    resources = {"nvidia.com/gpu": "10", "pods": "110"}
    status = {"allocatable": resources, "capacity": resources}
    control_plane.api.patch("/api/v1/nodes/a-worker-0/status", {"status": status})
    try:
        yield
    finally:
        control_plane.api.delete("/api/v1/nodes/a-worker-0")


@contextmanager
def a_scheduler(control_plane: ControlPlane) -> Iterator[None]:
    """One card, and who places pods on it."""
    with a_worker(control_plane):
        fate = simple_scheduler(control_plane.api, "a-worker-0", UUID, memory_mib=81920)
        player = Player(control_plane.api, "tenantry.gpu/verify-run", fate)
        try:
            yield
        finally:
            player.stop()


@contextmanager
def a_tunnel(control_plane: ControlPlane) -> Iterator[None]:
    tunnel = Tunnel(control_plane)
    try:
        yield
    finally:
        tunnel.stop()


# What the examples of a module find in the cluster.
CLUSTERS: dict[str, Callable[[ControlPlane], AbstractContextManager[None]]] = {
    "gpu_scheduling_verify": a_scheduler,
    "hami_device_info": a_worker,
    "webhook_tunnel_info": a_tunnel,
}


def lay_out(folder: Path, module: str, text: str, request: pytest.FixtureRequest) -> None:
    """The files that examples name: kubeconfigs with the module's own rights, a certificate authority."""
    control_plane: ControlPlane = request.getfixturevalue("control_plane")
    (folder / "tenant-a-ca.crt").write_bytes(control_plane.authority.certificate.read_bytes())
    for name in set(re.findall(r"\.state/\S+\.conf", text)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Only what looks at two tenants needs an API for each.
        two = module == "tenant_isolation_info" and name.endswith(SECOND_TENANT)
        plane: ControlPlane = request.getfixturevalue("second_control_plane") if two else control_plane
        path.symlink_to(plane.kubeconfig_of_module(module))


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str, control_plane: ControlPlane, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    tasks = examples_of(module)
    lay_out(tmp_path, module, yaml.safe_dump(tasks), request)
    options = ["--check"] if module in CHECK_MODE_ONLY else []
    variables = {"bootstrap_token": "abcdef.0123456789abcdef"}
    with CLUSTERS[module](control_plane) if module in CLUSTERS else nullcontext():
        run = run_play(tmp_path, {"tasks": tasks}, variables, *options)
    if run.status:
        pytest.fail(f"{module}: {run.failure()}", pytrace=False)


@pytest.mark.parametrize("module", MODULES)
def test_every_example_names_its_task_and_uses_the_module(module: str) -> None:
    tasks = examples_of(module)
    assert all(task.get("name") for task in tasks)
    assert any(f"tenantry.gpu.{module}" in task for task in tasks)
