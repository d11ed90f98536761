"""Runs tasks with ansible-playbook, on this machine, as a user would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")


@dataclass(frozen=True)
class Run:
    """How a playbook ended, and what it printed."""

    status: int
    output: str

    def failure(self) -> str:
        """The task that failed and what it said; the last lines where no task did."""
        tasks = re.split(r"^(?=TASK \[)", self.output, flags=re.MULTILINE)
        failed = [task for task in tasks if re.search(r"^(fatal|failed|\[ERROR\]|ERROR)", task, re.MULTILINE)]
        return failed[0] if failed else "\n".join(self.output.splitlines()[-20:])


def run_play(
    folder: Path, play: Mapping[str, Any], variables: Mapping[str, Any], *options: str, limit_s: float = LIMIT_S
) -> Run:
    """Run one play on localhost in ``folder``; its playbook, variables and output stay there for a look."""
    folder.mkdir(parents=True, exist_ok=True)
    playbook, values = folder / "playbook.yml", folder / "variables.json"
    playbook.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, **play}], sort_keys=False))
    values.write_text(json.dumps({"ansible_python_interpreter": sys.executable, **variables}))
    command = [str(PLAYBOOK), "-i", "localhost,", "-c", "local", "-e", f"@{values}", *options, str(playbook)]
    done = subprocess.run(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=limit_s
    )
    (folder / "output.log").write_text(done.stdout)
    return Run(done.returncode, done.stdout)


def run_playbook(folder: Path, inventory: Path, playbook: str, *options: str, **variables: Any) -> Run:
    """Run a playbook of ours, in a folder that stands for the user's checkout."""
    given = json.dumps({"tenantry_state_dir": str(folder / ".state"), **variables})
    done = subprocess.run(
        [str(PLAYBOOK), str(ROOT / "playbooks" / playbook), "-i", str(inventory), *options, "-e", given],
        cwd=folder,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=LIMIT_S,
    )
    return Run(done.returncode, done.stdout)


def run_module(folder: Path, module: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What one of our modules returns, whether it fails or not."""
    result = folder / "answer.json"
    tasks = [
        {f"tenantry.gpu.{module}": options, "register": "answer", "ignore_errors": True},
        {"ansible.builtin.copy": {"content": "{{ answer | to_json }}", "dest": str(result), "mode": "0600"}},
    ]
    run = run_play(folder, {"tasks": tasks}, {})
    if run.status:
        raise AssertionError(run.failure())
    answer: dict[str, Any] = json.loads(result.read_text())
    return answer
