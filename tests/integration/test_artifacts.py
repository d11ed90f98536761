"""The list of artifacts against what kubeadm and the charts that can be had here say themselves."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from control_plane import CACHE, ROOT, program
from playbook import PLAYBOOK

CHARTS = {
    "hami": ROOT / "images/standin-hami/chart",
    "kamaji": ROOT / "images/standin-kamaji/chart",
    "metallb": CACHE / "charts/metallb",
}


def run(state: Path, **variables: str) -> str:
    """What playbooks/artifacts.yml prints for the lab's inventory, its roles told that the originals are wanted."""
    values = {
        "tenantry_state_dir": str(state),
        "tenantry_helm_binary": str(program("helm", "helm")),
        "components_source": "upstream",
        **variables,
    }
    command = [str(PLAYBOOK), "playbooks/artifacts.yml", "-i", "inventories/lab"]
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
