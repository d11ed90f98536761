"""Where a lab keeps its files, and how its hosts and API servers are reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import testinfra
import yaml
from kubernetes import config
from kubernetes.dynamic import DynamicClient
from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[2]
WORKERS = {"tenant-a": "a-worker-0", "tenant-b": "b-worker-0"}


@dataclass(frozen=True)
class Lab:
    """Where one lab keeps its files, and how its hosts are reached."""

    state_dir: Path
    engine: str

    @property
    def name(self) -> str:
        return self.state_dir.name

    def host(self, name: str) -> Host:
        return testinfra.get_host(f"{self.engine}://{self.name}-{name}")

    def kubeconfig(self, cluster: str) -> Path:
        return self.state_dir / "kubeconfigs" / f"{cluster}.conf"

    def api(self, cluster: str) -> DynamicClient:
        """A client with the administrator's credentials of the management cluster or of a tenant."""
        return DynamicClient(config.new_client_from_config(str(self.kubeconfig(cluster))))

    def server(self, cluster: str) -> str:
        return str(yaml.safe_load(self.kubeconfig(cluster).read_text())["clusters"][0]["cluster"]["server"])

    def play(self, playbook: str, *words: str) -> None:
        """Run a playbook of the project on this lab."""
        program = Path(sys.executable).with_name("ansible-playbook")
        command = [program, "-i", "inventories/lab", playbook, "-e", f"lab_name={self.name}", *words]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr

    def run_module(self, tenant: str, module: str, **options: Any) -> dict[str, Any]:
        """What a module of the collection answers for a tenant's cluster."""
        arguments = {"kubeconfig": str(self.kubeconfig(tenant)), **options}
        ansible = Path(sys.executable).with_name("ansible")
        command = [ansible, "localhost", "-i", "localhost,", "-c", "local", "-m", f"tenantry.gpu.{module}"]
        command += ["-e", f"ansible_python_interpreter={sys.executable}", "-a", json.dumps(arguments)]
        # Molecule asks for colours.
        environment = {**os.environ, "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = yaml.safe_load(done.stdout.partition("=>")[2])
        return answer
