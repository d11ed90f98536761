"""The examples in the modules' documentation, run as a reader would copy them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from actors import SimulatedNodes, Tunnel, Worker
from control_plane import ROOT, ControlPlane
from playbook import run_play
from real_card import RealWorker

Object = dict[str, Any]

MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py") if path.stem != "__init__")
# They change the host that they run on; here their options are checked, and what they would do is told.
CHECK_MODE_ONLY = (
    "artifacts_mirror",
    "kubeadm_worker",
    "lab_hosts",
    "node_files",
    "node_kernel",
    "node_programs",
    "node_services",
)
SECOND_TENANT = "tenant-b.conf"


def examples_of(module: str) -> list[Object]:
    source = (ROOT / "plugins" / "modules" / f"{module}.py").read_text()
    found = re.search(r'^EXAMPLES = r?"""(.*?)"""', source, re.MULTILINE | re.DOTALL)
    assert found, f"{module} has no EXAMPLES"
    tasks: list[Object] = yaml.safe_load(found[1])
    return tasks


# What the examples of a module find in the cluster; each has a stop().
CLUSTERS: dict[str, Callable[[ControlPlane], Worker | Tunnel | SimulatedNodes]] = {
    "gpu_acceptance_verify": RealWorker,
    "gpu_capacity_plan": Worker,
    "gpu_scheduling_verify": Worker,
    "hami_allocation": SimulatedNodes,
    "hami_device_info": Worker,
    "hami_node_devices": SimulatedNodes,
    "webhook_tunnel_info": Tunnel,
}


@contextmanager
def cluster_for(module: str, control_plane: ControlPlane) -> Iterator[None]:
    made = CLUSTERS[module](control_plane) if module in CLUSTERS else None
    try:
        yield
    finally:
        if made:
            made.stop()


def lay_out(folder: Path, module: str, text: str, request: pytest.FixtureRequest) -> None:
    """The files that examples name: kubeconfigs with the module's own rights, a certificate authority, a script."""
    control_plane: ControlPlane = request.getfixturevalue("control_plane")
    probe = ROOT / "roles" / "gpu_acceptance" / "files" / "probe.py"
    (folder / probe.name).write_bytes(probe.read_bytes())
    (folder / "tenant-a-ca.crt").write_bytes(control_plane.authority.certificate.read_bytes())
    if module == "node_programs":
        fill_artifacts(folder / "artifacts", set(re.findall(r"files/[\w./-]+", text)))
    for name in set(re.findall(r"\.state/\S+\.conf", text)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Only what looks at two tenants needs an API for each.
        two = module == "tenant_isolation_info" and name.endswith(SECOND_TENANT)
        plane: ControlPlane = request.getfixturevalue("second_control_plane") if two else control_plane
        path.symlink_to(plane.kubeconfig_of_module(module))


def fill_artifacts(folder: Path, names: set[str]) -> None:
    """A folder as playbooks/artifacts.yml leaves it, with programs that do nothing."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    (folder / "SHA256SUMS").write_text("".join(f"{hashlib.sha256(b'').hexdigest()}  {name}\n" for name in names))


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str, control_plane: ControlPlane, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    tasks = examples_of(module)
    lay_out(tmp_path, module, yaml.safe_dump(tasks), request)
    options = ["--check"] if module in CHECK_MODE_ONLY else []
    variables = {"bootstrap_token": "abcdef.0123456789abcdef"}
    with cluster_for(module, control_plane):
        run = run_play(tmp_path, {"tasks": tasks}, variables, *options)
    if run.status:
        pytest.fail(f"{module}: {run.failure()}", pytrace=False)


@pytest.mark.parametrize("module", MODULES)
def test_every_example_names_its_task_and_uses_the_module(module: str) -> None:
    tasks = examples_of(module)
    assert all(task.get("name") for task in tasks)
    assert any(f"tenantry.gpu.{module}" in task for task in tasks)
