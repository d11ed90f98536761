"""The hosts of this scenario, their cluster and its tenants, as a user reaches them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from kubernetes import config
from kubernetes.dynamic import DynamicClient

ROOT = Path(__file__).resolve().parents[3]
MANAGEMENT = ("management-0", "management-1", "management-2")


@dataclass(frozen=True)
class Site:
    """What stands after playbooks/site.yml."""

    state: Path

    def api(self, cluster: str) -> DynamicClient:
        return DynamicClient(config.new_client_from_config(str(self.state / "kubeconfigs" / f"{cluster}.conf")))

    @property
    def server(self) -> str:
        """The management cluster's address, which is the virtual one."""
        kubeconfig = yaml.safe_load((self.state / "kubeconfigs" / "management.conf").read_text())
        return str(kubeconfig["clusters"][0]["cluster"]["server"])

    def podman(self, *words: str) -> str:
        done = subprocess.run(["podman", *words], check=True, text=True, capture_output=True)
        return done.stdout

    def on(self, host: str, command: str) -> str:
        """What a shell command prints on a host."""
        return self.podman("exec", f"{self.state.name}-{host}", "sh", "-c", command)

    def run(self, *words: str) -> subprocess.Popen[str]:
        """Start playbooks of the project with this scenario's inventory and the later tenant's."""
        parts = ("hosts/inventory", "production-ha/inventory", "production-ha/grown", "production-ha/later")
        inventories = [f"--inventory=molecule/{part}" for part in parts]
        program = Path(sys.executable).with_name("ansible-playbook")
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
        return subprocess.Popen(
            [str(program), *inventories, *words],
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def finish(self, run: subprocess.Popen[str], within_s: float) -> str:
        """What a run prints to its end; one that takes longer is killed, and what it printed is in the failure."""
        try:
            return run.communicate(timeout=within_s)[0]
        except subprocess.TimeoutExpired:
            run.kill()
            pytest.fail(f"not at its end after {within_s:.0f} s: {run.communicate()[0]}")
