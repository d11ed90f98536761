# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Red Hat's family: what the GPU roles would write and install there, in check mode, from what such a host tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playbook import run_play

FOUND: dict[str, Any] = {
    "distribution": "rocky",
    "family": "redhat",
    "machine": "x86_64",
    "headers": False,
    "device_ids": ["2330"],
    "nvswitches": 4,
    "secure_boot": False,
    "dkms_key_enrolled": False,
    "nouveau_loaded": True,
    "module_loaded": "",
    "module_installed": "",
    "module_kernels": [],
    "library_installed": "",
    "module_stream": "",
    "failed_build": {"log": "", "error": ""},
    "packages": {},
    "package_sources": ["/etc/yum.repos.d/nvidia-docker.repo", "/etc/yum.repos.d/tenantry-nvidia-driver.repo"],
    "containerd_version": "2.3.7",
    "cards": [],
}
RELEASES = {
    "9": ({"distribution_version": "9.6", "kernel": "5.14.0-570.el9.x86_64"}, "rhel9", "D42D0685.pub"),
    "10": ({"distribution_version": "10.0", "kernel": "6.12.0-55.el10.x86_64"}, "rhel10", "CDF6BA43.pub"),
}


def check(folder: Path, role: str, tasks_from: str, variables: dict[str, Any]) -> str:
    """Run one file of a role's tasks in check mode. Returns what was printed, lines joined."""
    include = {"ansible.builtin.include_role": {"name": f"tenantry.gpu.{role}", "tasks_from": tasks_from}}
    versions = {"nvidia_driver_branch": "580", "nvidia_container_toolkit": "1.20.2"}
    run = run_play(folder, {"tasks": [include]}, {"tenantry_versions": versions, **variables}, "--check", "--diff")
    assert run.status == 0, run.failure()
    return run.output


@pytest.mark.parametrize("release", RELEASES)
def test_the_driver_of_red_hats_family(tmp_path: Path, release: str) -> None:
    own, folder, key = RELEASES[release]
    variables = {
        "__nvidia_driver_found": {**FOUND, **own},
        "nvidia_driver_source": "repository",
        "nvidia_driver_version": "580.95.05",
        "tenantry_state_dir": str(tmp_path),
    }
    output = check(tmp_path, "nvidia_driver", "redhat", variables)
    url = f"https://developer.download.nvidia.com/compute/cuda/repos/{folder}/x86_64"
    assert f"+baseurl={url}\n" in output and f"+gpgkey={url}/{key}\n" in output
    assert "+gpgcheck=1\n" in output and "+blacklist nouveau\n" in output
    packages = f"kernel-devel-{own['kernel']}, nvidia-open-580.95.05*, nvidia-fabricmanager-580.95.05*"
    assert f"localhost: {packages}" in " ".join(output.split())


def test_the_toolkit_of_red_hats_family(tmp_path: Path) -> None:
    found = {**FOUND, **RELEASES["9"][0]}
    output = check(tmp_path, "nvidia_container_toolkit", "install", {"__nvidia_container_toolkit_found": found})
    assert "+baseurl=https://nvidia.github.io/libnvidia-container/stable/rpm/x86_64\n" in output
    assert "+repo_gpgcheck=1\n" in output
    assert "item=/etc/yum.repos.d/nvidia-docker.repo" in output
    assert "tenantry-nvidia-driver.repo" not in output
    packages = (
        "nvidia-container-toolkit, nvidia-container-toolkit-base, libnvidia-container-tools, libnvidia-container1"
    )
    assert f"localhost: {packages} 1.20.2" in " ".join(output.split())
