"""Where the scenario keeps its files, and how its hosts and playbooks are reached."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STATE = Path(os.environ["TENANTRY_STATE_DIR"])
INVENTORIES = [f"--inventory={ROOT}/molecule/{part}/inventory" for part in ("hosts", "node")]
ENVIRONMENT = {
    **os.environ,
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "ANSIBLE_FORCE_COLOR": "0",
    "ANSIBLE_NOCOLOR": "1",
    "CONTAINERS_CONF": str(STATE / "containers.conf"),
}


def container(name: str) -> str:
    return f"{STATE.name}-{name}"


def ansible(program: str, *arguments: str) -> list[str]:
    """The command line of one of Ansible's programs, with the scenario's inventory."""
    return [str(Path(sys.executable).with_name(program)), *INVENTORIES, *arguments]
