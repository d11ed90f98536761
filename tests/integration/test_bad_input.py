# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bad input: site.yml says each finding in one sentence, stops after preflight, and has changed nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
LAB_NAME = "bad-input"
SUBNET = "172.29.7.0/24"
VERSIONS = ROOT / "inventories" / "lab" / "group_vars" / "all" / "versions.yml"
BUILT = yaml.safe_load(VERSIONS.read_text())["tenantry_versions"]["kubernetes"]


@dataclass(frozen=True)
class Run:
    """How site.yml ended, what it printed, and the folder that stands for the user's checkout and cache."""

    status: int
    output: str
    folder: Path

    @property
    def findings(self) -> set[str]:
        return set(re.findall(r"^ +- (.+)$", self.output, re.MULTILINE))


def site(folder: Path, change: Callable[[dict[str, Any]], None], variables: dict[str, Any], path: str) -> Run:
    """Run site.yml on a copy of the lab's inventory after a change to its groups (``all.children``)."""
    inventory = folder / "inventories" / "lab"
    shutil.copytree(ROOT / "inventories" / "lab", inventory)
    hosts = yaml.safe_load((inventory / "hosts.yml").read_text())
    change(hosts["all"]["children"])
    (inventory / "hosts.yml").write_text(yaml.safe_dump(hosts, sort_keys=False))
    given = {"lab_name": LAB_NAME, "lab_subnet": SUBNET, "components_source": "standin", **variables}
    done = subprocess.run(
        [str(PLAYBOOK), str(ROOT / "playbooks" / "site.yml"), "-i", str(inventory), "-e", json.dumps(given)],
        cwd=folder,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "PATH": path,
            "XDG_CACHE_HOME": str(folder / "cache"),
        },
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=120,
    )
    return Run(done.returncode, done.stdout, folder)


def own_route() -> tuple[str, str]:
    """A range that this machine reaches through a device of its own, and the device."""
    answer = subprocess.run(["ip", "-json", "-4", "route", "show", "table", "main"], capture_output=True, check=True)
    for route in json.loads(answer.stdout or "[]"):
        if "/" in route["dst"] and "dev" in route:
            return route["dst"], route["dev"]
    pytest.skip("this machine has no route but the default one")


def spoil(groups: dict[str, Any]) -> None:
    """Eight mistakes in an inventory."""
    tenants, workers = groups["tenants"]["hosts"], groups["workers"]["hosts"]
    tenants["tenant-a"]["tenant_control_plane_kubernetes_version"] = "1.40.0"
    tenants["tenant-b"] |= {
        "tenant_control_plane_kubernetes_version": "1.35.1",
        "tenant_control_plane_pod_cidr": tenants["tenant-a"]["tenant_control_plane_pod_cidr"],
    }
    tenants["tenant-c"] = {
        "tenant_control_plane_pod_cidr": "{{ range_of_this_machine }}",
        "tenant_control_plane_service_cidr": "172.29.0.0/20",
    }
    tenants["Tenant_d"] = {}
    workers["a-worker-0"]["gpu_simulator_cards"] = [{"profile": "a1000", "count": 1}]
    workers["b-worker-0"]["tenant_worker_tenant"] = "tenant-x"


@pytest.fixture(scope="module")
def inventory_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    variables = {
        "range_of_this_machine": own_route()[0],
        # The machine itself is another test's.
        "preflight_memory_gib": 0,
        "preflight_disk_gib": 0,
        "preflight_build_disk_gib": 0,
    }
    return site(tmp_path_factory.mktemp("inventory"), spoil, variables, os.environ["PATH"])


@pytest.fixture(scope="module")
def machine_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("machine")
    # A machine with nothing but ip.
    (folder / "bin").mkdir()
    (folder / "bin" / "ip").symlink_to(str(shutil.which("ip")))
    variables = {"lab_engine": "docker", "preflight_memory_gib": 100_000, "preflight_build_disk_gib": 1_000_000}
    return site(folder, lambda _: None, variables, str(folder / "bin"))


OVERLAP = "; give tenant_control_plane_{}_cidr another range."
INVENTORY_FINDINGS = [
    pytest.param("tenant-b: pod CIDR 10.32.0.0/16 overlaps tenant-a's" + OVERLAP.format("pod"), id="tenants"),
    pytest.param(
        f"tenant-c: service CIDR 172.29.0.0/20 overlaps lab's network {SUBNET}" + OVERLAP.format("service"),
        id="bridge",
    ),
    pytest.param("tenant-c: pod CIDR {0} overlaps this machine's route {0} ({1})" + OVERLAP.format("pod"), id="host"),
    pytest.param(
        "b-worker-0: tenant_worker_tenant names tenant-x, and there is no such tenant; "
        "give one of tenant-a, tenant-b, tenant-c, Tenant_d.",
        id="no-such-tenant",
    ),
    pytest.param(
        "tenant-a: Kubernetes 1.40.0 is outside the range that Kamaji runs, 1.33 to 1.36; "
        "give it a version of that range.",
        id="version",
    ),
    pytest.param(
        f"tenant-b: Kubernetes 1.35.1 is not built here, only {BUILT} is; "
        f"give tenant_control_plane_kubernetes_version {BUILT}, or components_source upstream.",
        id="version-that-is-not-built",
    ),
    pytest.param(
        "a-worker-0: card profile 'a1000' is unknown; use one of a100-40g, a100-80g, h100, h200, b200, l4, l40s, t4, "
        "rtx-4090, or give type and memory_mib.",
        id="card",
    ),
    pytest.param(
        "Tenant_d: the name (group tenants) is no DNS label; give it at most 63 of a-z, 0-9 and -, "
        "a letter or digit first and last.",
        id="name",
    ),
]


@pytest.mark.parametrize("sentence", INVENTORY_FINDINGS)
def test_a_mistake_in_the_inventory_has_its_sentence(inventory_run: Run, sentence: str) -> None:
    assert sentence.format(*own_route()) in inventory_run.findings


MACHINE_FINDINGS = [
    pytest.param(
        r"lab_engine: docker cannot be used on this machine; install podman 4\.3 or newer, or docker, "
        r"and make sure that this user may run it \(docker ps\)\.",
        id="no-engine",
    ),
    pytest.param(
        r".*/cache/tenantry-gpu: [0-9.]+ GiB of disk are free, and building the components needs 1e\+06 GiB; "
        r"free some, or give XDG_CACHE_HOME a folder on a larger disk\.",
        id="disk",
    ),
    pytest.param(
        r"memory: this machine has [0-9.]+ GiB, and the lab needs 100000 GiB; give it more, or take another machine\.",
        id="memory",
    ),
]


@pytest.mark.parametrize("sentence", MACHINE_FINDINGS)
def test_what_the_machine_lacks_has_its_sentence(machine_run: Run, sentence: str) -> None:
    assert [finding for finding in machine_run.findings if re.fullmatch(sentence, finding)]


@pytest.mark.parametrize("name", ["inventory_run", "machine_run"])
def test_nothing_was_changed(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    assert run.status
    assert len(re.findall(r"^PLAY \[", run.output, re.MULTILINE)) == 1, "a play ran after preflight's"
    recap = run.output.partition("PLAY RECAP")[2]
    assert re.findall(r"^(\S+) +: .*\bchanged=(\d+)", recap, re.MULTILINE) == [("localhost", "0")]
    assert not (run.folder / ".state").exists()
    assert not (run.folder / "cache").exists()


@pytest.mark.parametrize(("name", "count"), [("inventory_run", 8), ("machine_run", 3)])
def test_there_is_no_finding_but_those(name: str, count: int, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    assert len(run.findings) == count, run.findings
