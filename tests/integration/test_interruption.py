"""A verification that is interrupted takes away what it made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from control_plane import ControlPlane
from playbook import PLAYBOOK

WITHIN_S = 60.0
RUN = "labelSelector=tenantry.gpu/verify-run"


def wait_for(seen: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not seen():
        assert time.monotonic() < deadline, f"not within {WITHIN_S:.0f} s: {what}"
        time.sleep(0.2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_verification_leaves_nothing(
    number: signal.Signals, control_plane: ControlPlane, tmp_path: Path
) -> None:
    options = {
        "kubeconfig": str(control_plane.kubeconfig_of_module("gpu_scheduling_verify")),
        "image": "none",
        "timeout_s": 300,
        "cases": [{"name": "waits", "replicas": 2, "memory_mib": 1, "expect": {"outcome": "placed"}}],
    }
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [{"tenantry.gpu.gpu_scheduling_verify": options}]}
    (tmp_path / "playbook.yml").write_text(yaml.safe_dump([play]))
    values = json.dumps({"ansible_python_interpreter": sys.executable})
    command = [str(PLAYBOOK), "-i", "localhost,", "-c", "local", "-e", values, "playbook.yml"]
    api = control_plane.api
    with (tmp_path / "output.log").open("wb") as output:
        running = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True)
        try:
            wait_for(lambda: len(api.items(f"/api/v1/pods?{RUN}")) == 2, "the pods are created")
            os.killpg(running.pid, number)  # as a terminal does
            running.wait(WITHIN_S)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    wait_for(lambda: not api.items(f"/api/v1/pods?{RUN}"), "the pods are gone")
    wait_for(
        lambda: all(each["metadata"].get("deletionTimestamp") for each in api.items(f"/api/v1/namespaces?{RUN}")),
        "the namespaces are being deleted",
    )
