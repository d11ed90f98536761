"""The hosts of the scenario, the API server they joined, and runs of playbooks against them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
import testinfra
import yaml
from kubernetes import config
from kubernetes.dynamic import DynamicClient
from node_scenario import ENVIRONMENT, ROOT, STATE, ansible, container
from testinfra.host import Host


@pytest.fixture(scope="session")
def host() -> Callable[[str], Host]:
    """A host by its name in the inventory."""
    return lambda name: testinfra.get_host(f"podman://{container(name)}")


@pytest.fixture(scope="session")
def play() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a playbook, and gives back how it ended and what it printed."""

    def run(playbook: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ansible("ansible-playbook", str(ROOT / playbook), *arguments)
        return subprocess.run(
            command, env=ENVIRONMENT, cwd=ROOT, text=True, capture_output=True, check=False, timeout=300
        )

    return run


@pytest.fixture(scope="session")
def api() -> DynamicClient:
    """The API server that the workers joined."""
    return DynamicClient(config.new_client_from_config(str(STATE / "kubeconfigs" / "management.conf")))


@pytest.fixture(scope="session")
def versions() -> dict[str, str]:
    """The version matrix."""
    matrix = yaml.safe_load((ROOT / "inventories/production/group_vars/all/versions.yml").read_text())
    found: dict[str, str] = matrix["tenantry_versions"]
    return found
