"""The list of artifacts against what kubeadm and the charts that can be had here say themselves."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from control_plane import CACHE, ROOT, program
from playbook import PLAYBOOK, run_play

CHARTS = {
    "hami": ROOT / "images/standin-hami/chart",
    "kamaji": ROOT / "images/standin-kamaji/chart",
    "metallb": CACHE / "charts/metallb",
}


def run(state: Path, *options: str, **variables: str) -> str:
    """What playbooks/artifacts.yml prints for the lab's inventory, its roles told that the originals are wanted."""
    values = {
        "tenantry_state_dir": str(state),
        "tenantry_helm_binary": str(program("helm", "helm")),
        "components_source": "upstream",
        **variables,
    }
    command = [str(PLAYBOOK), "playbooks/artifacts.yml", "-i", "inventories/lab", *options]
    command += [word for name, value in values.items() for word in ("-e", f"{name}={value}")]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout


def listed(state: Path) -> set[str]:
    return {image["reference"] for image in yaml.safe_load((state / "artifacts.yml").read_text())["images"]}


def test_the_management_cluster_takes_what_kubeadm_says(tmp_path: Path) -> None:
    version = yaml.safe_load((ROOT / "inventories/production/group_vars/all/versions.yml").read_text())
    kubernetes = version["tenantry_versions"]["kubernetes"]
    command = [program("kubernetes", "kubeadm"), "config", "images", "list", "--kubernetes-version", f"v{kubernetes}"]
    said = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    run(tmp_path)
    assert said <= listed(tmp_path)


@pytest.mark.parametrize("name", CHARTS)
def test_every_image_that_a_chart_names_is_on_the_list(name: str, tmp_path: Path) -> None:
    if not CHARTS[name].exists():
        pytest.skip(f"the chart {name} was not built")
    folder = tmp_path / "artifacts"
    command = [program("helm", "helm"), "package", CHARTS[name].resolve(), "--destination", folder / "charts"]
    (folder / "charts").mkdir(parents=True)
    subprocess.run(command, check=True, capture_output=True)
    archive = next((folder / "charts").iterdir())
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{checksum}  charts/{archive.name}\n")
    said = run(
        tmp_path,
        artifacts_action="verify",
        tenantry_artifacts_dir=str(folder),
        tenantry_registry_mirror="127.0.0.1:9",  # not asked: nothing was mirrored
    )
    missing = set(re.findall(r"(\S+): was never mirrored, images\.json", said))
    assert f"charts/{archive.name}" not in said  # so it was found, and rendered
    assert missing == listed(tmp_path)


def test_a_look_at_a_mirroring_with_packages_is_green(tmp_path: Path) -> None:
    (tmp_path / "inventory").mkdir()
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "inventory/hosts.yml").write_text(yaml.safe_dump({"artifact_hosts": {"hosts": {"box": host}}}))
    said = run(
        tmp_path / "state",
        "--check",
        f"--inventory={tmp_path / 'inventory'}",
        artifacts_action="mirror",
        node_source="folder",
        tenantry_artifacts_dir=str(tmp_path / "artifacts"),
        tenantry_registry_mirror="127.0.0.1:9",  # not asked: nothing was mirrored
    )
    assert "artifacts were brought" in said
    assert re.search(r"^box .* failed=0 .* rescued=0 ", said, re.MULTILINE), said
    assert re.search(r"^localhost .* failed=0 ", said, re.MULTILINE), said


def test_a_folder_without_images_is_looked_at_before_hosts_are_touched(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    (folder / "files").mkdir(parents=True)
    (folder / "files/runc").write_text("damaged")
    (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(b'a program').hexdigest()}  files/runc\n")
    look = {"ansible.builtin.include_role": {"name": "tenantry.gpu.artifacts", "tasks_from": "locked"}}
    values = {"tenantry_artifacts_dir": str(folder), "tenantry_state_dir": str(tmp_path / "state")}
    done = run_play(tmp_path / "run", {"tasks": [look]}, values)
    assert done.status != 0
    assert "files/runc has checksum" in done.failure()
