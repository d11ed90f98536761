# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe, run as in a container, on stand-ins in C for the driver's library and for HAMi-core."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._acceptance import percentile

Object = dict[str, Any]

HERE = Path(__file__).parent
PROBE = HERE.parents[2] / "roles" / "gpu_acceptance" / "files" / "probe.py"
UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
COMPILER = shutil.which("cc")
MESSAGE_LIMIT = 4096  # kubelet's, of a termination message

pytestmark = pytest.mark.skipif(not COMPILER, reason="no C compiler (cc) is here")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libcuda.so.1 and libvgpu.so."""
    folder = tmp_path_factory.mktemp("cuda")
    for source, library in (("libcuda.c", "libcuda.so.1"), ("libvgpu.c", "libvgpu.so")):
        command = [str(COMPILER), "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", str(HERE / source), "-o"]
        subprocess.run([*command, str(folder / library), "-ldl"], check=True)
    return folder


class Container:
    """Runs probes with one share; they find each other as processes of one container do."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        self.message = folder / "termination-log"
        self.environment = {
            "PATH": os.environ["PATH"],
            "PROBE_RESULT": str(self.message),
            "PROBE_SHARED": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LD_LIBRARY_PATH": str(libraries),
            "LD_PRELOAD": str(libraries / "libvgpu.so"),
            "STANDIN_LIBVGPU": str(libraries / "libvgpu.so"),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "usage"),
            "CUDA_DEVICE_MEMORY_LIMIT_0": "1024m",
            "CUDA_DEVICE_SM_LIMIT": "100",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROBE), *arguments]
        return subprocess.Popen(
            command, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *arguments: str) -> tuple[int, Object, list[Object]]:
        """The exit status, the termination message, and the lines of the log."""
        started = self.start(*arguments)
        output, errors = started.communicate(timeout=60)
        assert not errors, errors
        text = self.message.read_text()
        assert len(text.encode()) <= MESSAGE_LIMIT
        return started.returncode, json.loads(text), [json.loads(line) for line in output.splitlines()]


@pytest.fixture
def container(tmp_path: Path, libraries: Path) -> Container:
    return Container(tmp_path, libraries)


def measured(container: Container, *more: str) -> Object:
    status, result, _log = container.run("measure", "--warm-up-s", "0.1", "--repeats", "20", "--launches", "4", *more)
    assert status == 0
    return result


def test_a_job_says_what_it_did_on_which_card_and_when(container: Container) -> None:
    _status, result, log = container.run("measure", "--warm-up-s", "0.1", "--repeats", "20", "--launches", "4")
    assert [line.get("step") for line in log] == ["ready", "start", "end", None]
    assert log[-1] == result
    assert (result["uuid"], result["card"], result["total_mib"]) == (UUID, "Stand-in 0", 1024)
    assert result["libvgpu"] and result["libc"].startswith("glibc ")
    assert result["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"
    assert result["start"] < result["end"] and len(result["repeat_ms"]) == 20


def test_a_launch_is_made_to_last_two_milliseconds(container: Container) -> None:
    result = measured(container)
    # 4 multiprocessors x 512 blocks x 256 threads x 16 FMA, at 10^12 a second.
    assert result["iterations"] * 4 * 512 * 256 * 16 / 1e12 * 1000 == pytest.approx(2, rel=0.05)
    assert percentile(result["repeat_ms"], 50) == pytest.approx(8, rel=0.25)


def test_a_share_of_compute_shows_in_the_throughput_of_the_same_work(container: Container) -> None:
    whole = measured(container)
    container.environment["CUDA_DEVICE_SM_LIMIT"] = "50"
    half = measured(container, "--iterations", str(whole["iterations"]))
    assert half["repeat_gfma"] == whole["repeat_gfma"]
    # Of medians: a machine that has other work too slows single repeats.
    whole_ms, half_ms = (percentile(each["repeat_ms"], 50) for each in (whole, half))
    assert whole_ms / half_ms == pytest.approx(0.5, abs=0.1)


def test_an_allocation_above_the_share_ends_with_cuda_s_own_number(container: Container) -> None:
    status, result, _log = container.run("memory", "--chunk-mib", "16", "--most-mib", "1280")
    assert status == 2
    assert result["granted_mib"] == 1024
    refusal = {"call": "cuMemAlloc_v2", "code": 2, "name": "CUDA_ERROR_OUT_OF_MEMORY"}
    assert result["error"] == refusal and result["single"] == refusal


def test_without_hami_s_library_nothing_is_refused(container: Container) -> None:
    del container.environment["LD_PRELOAD"]
    status, result, _log = container.run("memory", "--chunk-mib", "16", "--most-mib", "1280")
    assert (status, result["granted_mib"], result["error"], result["single"]) == (0, 1280, None, None)
    assert not result["libvgpu"]


def test_a_child_process_asks_beside_its_parent(container: Container) -> None:
    status, result, _log = container.run("children")
    assert status == 0
    assert result["held_mib"] == 614
    assert result["other"]["error"]["code"] == 2 and result["other_status"] == 2


def test_a_process_that_is_started_in_the_container_answers_the_one_that_waits(container: Container) -> None:
    waiting = container.start("hold")
    asking = container.start("ask", "--answer")
    output, _errors = asking.communicate(timeout=60)
    assert asking.returncode == 0  # a hook that fails would end the container
    waiting.communicate(timeout=60)
    result = json.loads(container.message.read_text())
    assert waiting.returncode == 0
    assert result["other"] == json.loads(output.splitlines()[-1]) and result["other"]["error"]["code"] == 2


def test_a_child_that_is_granted_too_much_says_so(container: Container) -> None:
    del container.environment["LD_PRELOAD"]
    _status, result, _log = container.run("children")
    assert result["other"]["error"] is None and result["other_status"] == 0


def test_without_the_driver_s_library_a_look_finds_nothing_and_a_job_fails(container: Container) -> None:
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        del container.environment[name]
    status, result, _log = container.run("look")
    assert status == 0 and "libcuda.so.1" in result["no_library"] and result["devices"] == []
    status, result, _log = container.run("memory")
    assert status == 126 and "libcuda.so.1" in result["no_library"]


def test_without_a_card_a_look_tells_cuda_s_answer(container: Container) -> None:
    container.environment["STANDIN_CUDA_INIT"] = "100"
    status, result, _log = container.run("look")
    assert status == 0
    assert result["error"] == {"call": "cuInit", "code": 100, "name": "CUDA_ERROR_NO_DEVICE"}
    status, result, _log = container.run("measure")
    assert status == 100 and result["error"]["code"] == 100


def test_a_look_that_finds_a_card_tells_it(container: Container) -> None:
    assert container.run("look")[1]["uuid"] == UUID


def test_three_hundred_repeats_fit_a_termination_message(container: Container) -> None:
    _status, result, _log = container.run("measure", "--warm-up-s", "0", "--repeats", "300", "--launches", "1")
    # Times of a share are longer, at most four digits before the point.
    worst = {**result, "repeat_ms": [1234.56] * 300}
    assert len(json.dumps(worst, separators=(",", ":"))) <= MESSAGE_LIMIT


def test_the_host_s_memory_is_taken_without_the_driver(container: Container) -> None:
    command = [sys.executable, str(PROBE), "exhaust", "--most-mib", "4"]
    done = subprocess.run(command, env=container.environment, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["host_mib"] == 4
