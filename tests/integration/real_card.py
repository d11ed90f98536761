"""A worker whose kubelet really runs a pod's probe, on stand-ins in C for the driver's library and for HAMi-core."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from actors import Object, Worker, asked_of, refused
from control_plane import ROOT, ApiError, ControlPlane

SOURCES = ROOT / "tests" / "unit" / "gpu_acceptance"
LIMIT_S = 60
OOM_KILLED = {"exitCode": 137, "reason": "OOMKilled"}


def build_libraries(folder: Path) -> None:
    """libcuda.so.1 and libvgpu.so from the sources of the probe's unit tests."""
    folder.mkdir(parents=True, exist_ok=True)
    for source, library in (("libcuda.c", "libcuda.so.1"), ("libvgpu.c", "libvgpu.so")):
        command = [str(shutil.which("cc")), "-O1", "-shared", "-fPIC", str(SOURCES / source), "-o"]
        subprocess.run([*command, str(folder / library), "-ldl"], check=True)


class RealWorker(Worker):
    """A node with a card of 16 GiB. What a real worker's runtime and kernel would do is here:

    a container with a share gets the driver's library, HAMi's library unless it does without, and its limits; one with
    a small limit of host memory is killed. ``escapes`` are names of pods that HAMi's library does not hold.
    """

    UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    MEMORY_MIB = 16384

    def __init__(self, control_plane: ControlPlane, name: str = "a-worker-0") -> None:
        self.escapes: set[str] = set()
        self.ran: list[Object] = []
        self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._folder = Path(self._temporary.name)
        build_libraries(self._folder / "libraries")
        super().__init__(control_plane, name)

    def stop(self) -> None:
        super().stop()
        self._temporary.cleanup()

    def _fate(self, pod: Object) -> Object:
        self.ran.append(pod)
        asks = "nvidia.com/gpumem" in (pod["spec"]["containers"][0]["resources"].get("limits") or {})
        if asks and self._above_quota(pod):
            return refused(self._api, pod, "ResourceQuotaNotFit")
        fate = super()._fate(pod) if asks else {"node": self.name, "status": {"phase": "Running"}}
        if "node" in fate:
            threading.Thread(target=self._run_container, args=(pod,), daemon=True).start()
        return fate

    def _above_quota(self, pod: Object) -> bool:
        quotas = self._api.items(f"/api/v1/namespaces/{pod['metadata']['namespace']}/resourcequotas")
        limits = [quota["spec"]["hard"].get("limits.nvidia.com/gpumem") for quota in quotas]
        return any(asked_of(pod, self.MEMORY_MIB)[0] > int(limit.replace("k", "000")) for limit in limits if limit)

    def _run_container(self, pod: Object) -> None:
        (container,) = pod["spec"]["containers"]
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        while self._api.get(path)["status"].get("phase") != "Running":
            time.sleep(0.1)
        if "memory" in (container["resources"].get("limits") or {}):
            self._ended(pod, OOM_KILLED)
            return
        folder = self._folder / pod["metadata"]["uid"]
        folder.mkdir()
        script = folder / "probe.py"
        namespace = pod["metadata"]["namespace"]
        script.write_text(self._api.get(f"/api/v1/namespaces/{namespace}/configmaps/probe")["data"]["probe.py"])
        environment = self._environment(pod, folder)

        def start(command: list[str]) -> subprocess.Popen[bytes]:
            arguments = [sys.executable, str(script), *command[2:]]
            return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        process = start(container["command"])
        hook = (container.get("lifecycle") or {}).get("postStart")
        if hook:
            start(hook["exec"]["command"]).wait(LIMIT_S)
        status = process.wait(LIMIT_S)
        message = (folder / "message").read_text() if (folder / "message").exists() else ""
        self._ended(pod, {"exitCode": status, "reason": "Error" if status else "Completed", "message": message})

    def _environment(self, pod: Object, folder: Path) -> dict[str, str]:
        (container,) = pod["spec"]["containers"]
        libraries = self._folder / "libraries"
        environment = {each["name"]: each["value"] for each in container["env"]}
        environment.update(
            PATH=os.environ["PATH"],
            PYTHONDONTWRITEBYTECODE="1",
            PROBE_RESULT=str(folder / "message"),
            PROBE_SHARED=str(folder),
        )
        if "nvidia.com/gpumem" not in (container["resources"].get("limits") or {}):
            return environment
        memory, cores = asked_of(pod, self.MEMORY_MIB)
        environment.update(
            LD_LIBRARY_PATH=str(libraries),
            STANDIN_LIBVGPU=str(libraries / "libvgpu.so"),
            CUDA_DEVICE_MEMORY_SHARED_CACHE=str(folder / "usage"),
            CUDA_DEVICE_MEMORY_LIMIT_0=f"{memory}m",
            CUDA_DEVICE_SM_LIMIT=str(cores),
        )
        if "CUDA_DISABLE_CONTROL" not in environment and pod["metadata"]["name"] not in self.escapes:
            environment["LD_PRELOAD"] = str(libraries / "libvgpu.so")
        return environment

    def _ended(self, pod: Object, terminated: dict[str, Any]) -> None:
        namespace, name = (pod["metadata"][key] for key in ("namespace", "name"))
        status = {
            "phase": "Failed" if terminated["exitCode"] else "Succeeded",
            "containerStatuses": [
                {
                    "name": "c0",
                    "image": "",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": terminated},
                }
            ],
        }
        with suppress(ApiError):  # the run was over before
            self._api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})
