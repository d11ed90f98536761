# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The same random cases to a scheduler, over HTTP and on a real API, and to the model.

Without more the scheduler is the stand-in, whose answers come from the model too: what is compared then are its
wire, its watches and its accounting. HAMi itself runs here unchanged where its program is given:

    HAMI_SCHEDULER=/path/to/scheduler HAMI_VERSION=2.10.0 HAMI_SCENARIOS=1000 HAMI_SEED=1 HAMI_RECORDING=/tmp/r.jsonl \\
        pytest tests/integration/test_differential.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPException
from itertools import islice
from pathlib import Path

import pytest
from control_plane import ROOT, ControlPlane, free_ports
from record import Cases, Recorder, Scheduler
from replay import KINDS, replay, report

PROGRAM = os.environ.get("HAMI_SCHEDULER")
VERSION = os.environ.get("HAMI_VERSION", "2.10.0")
SCENARIOS = int(os.environ.get("HAMI_SCENARIOS", "20"))
SEED = int(os.environ.get("HAMI_SEED", "0"))
READY_S = 30.0

# What the chart's defaults come to, for the card maker that is tested.
DEVICE_CONFIG = {
    "nvidia": {
        "resourceCountName": "nvidia.com/gpu",
        "resourceMemoryName": "nvidia.com/gpumem",
        "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
        "resourceCoreName": "nvidia.com/gpucores",
        "resourcePriorityName": "nvidia.com/priority",
        "overwriteEnv": False,
        "defaultMemory": 0,
        "defaultCores": 0,
        "defaultGPUNum": 1,
        "memoryFactor": 1,
        "gpuCorePolicy": "default",
        "runtimeClassName": "",
    }
}


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    config = folder / "device-config.yaml"
    config.write_text(json.dumps(DEVICE_CONFIG))
    port, metrics = free_ports(2)
    command = [PROGRAM] if PROGRAM else [sys.executable, "-m", "standin_hami"]
    flags = {
        "http_bind": f"127.0.0.1:{port}",
        "metrics-bind-address": f"127.0.0.1:{metrics}",
        "scheduler-name": "hami-scheduler",
        "device-config-file": config,
        "leader-elect": "false",
        "kube-qps": 1000,
        "kube-burst": 1000,
    }
    environment = {
        **os.environ,
        "KUBECONFIG": str(control_plane.kubeconfig),
        "POD_NAME": "scheduler",
        "POD_NAMESPACE": "kube-system",
        "PYTHONPATH": f"{ROOT / 'images/standin-hami'}:{ROOT / 'collections'}",
    }
    arguments = [*command, *(f"--{name}={value}" for name, value in flags.items())]
    with (folder / "scheduler.log").open("wb") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log, env=environment, cwd=folder)
    try:
        yield ready(process, f"http://127.0.0.1:{port}", Path(log.name))
    finally:
        process.terminate()
        process.wait(READY_S)


def ready(process: subprocess.Popen[bytes], url: str, log: Path) -> Scheduler:
    """A scheduler that answers; its log where it does not."""
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        scheduler = Scheduler(url)
        try:
            scheduler.review({"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": []}})
        except (OSError, HTTPException):
            time.sleep(0.1)
        else:
            return scheduler
    pytest.fail(f"{url} does not answer; {log} ends with {log.read_text()[-2000:]}")


def test_the_model_decides_as_the_scheduler_does(
    control_plane: ControlPlane, scheduler: Scheduler, tmp_path: Path
) -> None:
    recording = Path(os.environ.get("HAMI_RECORDING") or tmp_path / "recording.jsonl")
    cases = Cases(SEED, prefix=f"s{SEED}-")
    with Recorder(control_plane.kubeconfig, scheduler, VERSION) as recorder, recording.open("w") as lines:
        for scenario in islice(cases, SCENARIOS):
            print(json.dumps(recorder.record(scenario), separators=(",", ":")), file=lines)
    tally = replay([recording])
    print(report(tally))
    assert [str(difference) for difference in tally.differences] == []
    assert (tally.unreadable, tally.scenarios) == ([], SCENARIOS)
    assert all(tally.compared[kind] for kind in KINDS)
