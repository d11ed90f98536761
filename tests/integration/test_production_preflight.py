# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The production example makes sense as it stands; hosts that are not fit end the run before anything is changed."""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import ControlPlane
from playbook import Run, run_playbook

from ansible_collections.tenantry.gpu.plugins.module_utils._host_facts import membership, server_version

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "inventories" / "production"
VAULT = Path(sys.executable).with_name("ansible-vault")


def table(run: Run) -> list[tuple[str, str, str, str]]:
    """Severity, hosts, finding and remedy, put together again from the lines of what a run printed."""
    rule = list(re.finditer(r"^ *(-+)  (-+)  (-+)  (-+)$", run.output, re.MULTILINE))[-1]
    starts = [rule.start(column) - rule.start() for column in (1, 2, 3, 4)]
    rows: list[list[str]] = []
    for line in run.output[rule.end() + 1 :].splitlines():
        cells = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        if not any(cells):
            break
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{before} {more}".strip() for before, more in zip(rows[-1], cells, strict=True)]
    return [(row[0], row[1], row[2], row[3]) for row in rows]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example to change."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "inventories" / "production"))


def change(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    content = yaml.safe_load(path.read_text())
    edit(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def test_the_example_makes_sense(tmp_path: Path) -> None:
    run = run_playbook(tmp_path, EXAMPLE, "check_inventory.yml")
    assert run.status == 0, run.output
    assert not (tmp_path / ".state").exists()


def test_no_vault_password_is_asked_for(tmp_path: Path, example: Path) -> None:
    shutil.copy(example / "group_vars/all/secrets.yml.example", tmp_path / "template.yml")
    (tmp_path / "password").write_text("only a test")
    for name in yaml.safe_load((tmp_path / "template.yml").read_text()):
        line = subprocess.run(
            [VAULT, "encrypt_string", "--vault-id", f"production@{tmp_path}/password", "--name", name, "hidden"],
            check=True,
            text=True,
            capture_output=True,
        ).stdout
        with (example / "group_vars/all/secrets.yml").open("a") as secrets:
            secrets.write(line)
    with (example / "group_vars/machines/connection.yml").open("a") as connection:
        connection.write('ansible_become_password: "{{ vault_become_password }}"\n')
    run = run_playbook(tmp_path, example, "check_inventory.yml")
    assert run.status == 0, run.output


def test_every_mistake_in_the_inventory_is_told_at_once(tmp_path: Path, example: Path) -> None:
    def spoil(hosts: dict[str, Any]) -> None:
        groups = hosts["all"]["children"]
        groups["management"]["hosts"].pop("management-2")
        groups["tenants"]["hosts"]["tenant-b"]["tenant_control_plane_address"] = "192.0.2.101"
        groups["tenants"]["hosts"]["tenant-c"]["tenant_control_plane_address"] = "192.0.2.11"
        groups["workers"]["children"]["workers_h100"]["hosts"]["h100-1"]["tenant_worker_tenant"] = "tenant-x"

    change(example / "hosts.yml", spoil)
    change(example / "group_vars/all/versions.yml", lambda all_: all_["tenantry_versions"].update(containerd="2.1.4"))
    (example / "group_vars/workers_l40s/cards.yml").write_text("nvidia_driver_source: repository\n")
    run = run_playbook(tmp_path, example, "site.yml", "--check")
    assert run.status
    found = set(re.findall(r"^ +- (.+)$", run.output, re.MULTILINE))
    cards = 'give a list like [{model: "NVIDIA H100 80GB HBM3", count: 8}], or set gpu_backend: none.'
    assert found == {
        "inventory: the group management has 2 hosts; give it one or three, because etcd with two members stops when "
        "either is lost.",
        "tenant-b: tenant_control_plane_address 192.0.2.101 is also tenant-a's; give each its own address.",
        "tenant-c: tenant_control_plane_address 192.0.2.11 is also management-0's; give each its own address.",
        "tenant-c: tenant_control_plane_address 192.0.2.11 is not in load_balancer_addresses; give one of those.",
        "tenantry_versions: containerd 2.1.4 does not go with Kubernetes 1.36; give 2.2.0, or a newer one of that line "
        "or after it.",
        "h100-1: tenant_worker_tenant names tenant-x, and there is no such tenant; "
        "give one of tenant-a, tenant-b, tenant-c.",
        *(f"l40s-{number}: gpu_backend is nvidia and nvidia_cards is not set; {cards}" for number in (0, 1)),
    }
    assert len(re.findall(r"^PLAY \[", run.output, re.MULTILINE)) == 1, "a play ran after preflight's"


# This machine plays every host: one management host and two workers, one of them out of reach.
HERE = {
    "all": {
        "vars": {
            "ansible_python_interpreter": sys.executable,
            "ansible_connection": "local",
            "preflight_address": "127.0.0.1",
            "preflight_urls": [],
            "preflight_controller_urls": [],
            "preflight_host_disk_gib": {"management": {"/var/log": 0}, "worker": {"/var/log": 0}},
            "preflight_timeout_s": 1,
            "tenant_control_plane_kubelet_patches": [{"op": "add", "path": "/failCgroupV1", "value": False}],
            "management_cluster_kubelet_configuration": {"failCgroupV1": False},
            "management_cluster_ignore_preflight_errors": ["NumCPU", "Mem"],
            "node_swap": "disable",
        },
        "hosts": {"localhost": {}},
        "children": {
            "management": {"hosts": {"management-0": {}}},
            "tenants": {
                "hosts": {
                    "tenant-a": {
                        "tenant_control_plane_pod_cidr": "10.32.0.0/16",
                        "tenant_control_plane_service_cidr": "10.112.0.0/16",
                    }
                }
            },
            "workers": {"hosts": {}},
        },
    }
}


@pytest.fixture
def here(tmp_path: Path) -> Callable[..., Path]:
    """Writes an inventory whose hosts are this machine."""

    def written(workers: dict[str, Any], **variables: Any) -> Path:
        content = json.loads(json.dumps(HERE))
        content["all"]["children"]["workers"]["hosts"] = {
            name: {"tenant_worker_tenant": "tenant-a", **each} for name, each in workers.items()
        }
        content["all"]["vars"] |= variables
        versions = yaml.safe_load((EXAMPLE / "group_vars/all/versions.yml").read_text())
        content["all"]["vars"] |= {**versions, "tenantry_cache_dir": str(tmp_path)}
        (tmp_path / "inventory").mkdir()
        (tmp_path / "inventory" / "hosts.yml").write_text(yaml.safe_dump(content))
        return tmp_path / "inventory"

    return written


@pytest.fixture
def node_port() -> Iterator[int]:
    """A port among the node ports, on which this test listens."""
    for port in range(30000, 32768):
        try:
            with socket.create_server(("0.0.0.0", port)):  # noqa: S104
                yield port
                return
        except OSError:
            continue
    pytest.skip("no port among the node ports is free")


def test_hosts_that_are_not_fit_end_the_run_with_one_table(
    tmp_path: Path, here: Callable[..., Path], node_port: int
) -> None:
    inventory = here(
        {
            "worker-0": {"gpu_backend": "nvidia", "nvidia_cards": [{"model": "NVIDIA L4", "count": 9}]},
            "worker-1": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9},
        },
        preflight_urls=["http://127.0.0.1:9/v2/"],
        preflight_host_disk_gib={"management": {}, "worker": {"/var/log": 10_000_000}},
        management_cluster_address="192.0.2.254",
    )
    run = run_playbook(tmp_path, inventory, "stages/2_nodes.yml", "--check")
    assert run.status
    found = {(severity, hosts): set() for severity, hosts, _finding, _remedy in table(run)}
    for severity, hosts, finding, _remedy in table(run):
        found[severity, hosts].add(finding)
    everywhere = found["error", "management-0, worker-0"]
    assert "http://127.0.0.1:9/v2/ gives it Connection refused" in everywhere
    alone = found["error", "management-0"]
    assert "management_cluster_address 192.0.2.254 is none of its addresses" in alone
    assert any(finding.startswith("cannot be reached: ") for finding in found["warning", "worker-1"])
    worker = found["error", "worker-0"]
    assert any(re.fullmatch(r"it has \d NVIDIA cards, and nvidia_cards says 9.*", finding) for finding in worker)
    assert any(re.fullmatch(r"/\S* has \d+ GiB free, and /var/log need 1e\+07 GiB", finding) for finding in worker)
    assert any(re.fullmatch(r"its host name \S+ is also that of management-0", finding) for finding in worker)
    told = f"listens on {node_port}, among the node ports 30000-32767"
    assert any(finding.endswith(told) for finding in found["warning", "management-0, worker-0"])
    assert all(remedy for _severity, _hosts, _finding, remedy in table(run))
    plays = re.findall(r"^PLAY \[(.+?)\]", run.output, re.MULTILINE)
    assert plays[-1] == "Every host is fit, before anything is changed", "a play ran after preflight's"
    recap = run.output.partition("PLAY RECAP")[2]
    assert set(re.findall(r"^(\S+) +: .*\bchanged=(\d+)", recap, re.MULTILINE)) == {
        ("management-0", "0"),
        ("worker-0", "0"),
        ("worker-1", "0"),
        ("localhost", "0"),
    }


def test_a_host_hears_its_api_server_s_version(control_plane: ControlPlane, tmp_path: Path) -> None:
    """From the server itself, without credentials of its own; another authority's server is not believed."""
    authority = base64.b64encode(control_plane.authority.certificate.read_bytes()).decode()
    kubeconfig = (
        f"clusters:\n- cluster:\n    certificate-authority-data: {authority}\n    server: {control_plane.server}\n"
    )
    path = tmp_path / "etc" / "kubernetes" / "kubelet.conf"
    path.parent.mkdir(parents=True)
    path.write_text(kubeconfig)
    found = membership(tmp_path, timeout_s=5)
    assert found is not None
    assert found.version == control_plane.api.get("/version")["gitVersion"]
    another = kubeconfig.replace("certificate-authority-data", "none")
    assert server_version(control_plane.server, another, timeout_s=5) == ""
