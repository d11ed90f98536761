# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A CUDA job without CUDA's toolkit: loads the driver's library and says what its own process got of a card.

    probe.py measure | memory | children | hold | ask | look | exhaust

It runs in a container of any image with Python 3.9 or newer and glibc. Every step is a line of JSON on its output; the
last one, which has everything that is judged, also goes to the container's termination message (at most 4,096 bytes),
so that no log has to be fetched. Symbols are looked up by name with dlsym, which is where HAMi-core's libvgpu.so takes
its place (src/libvgpu.c): each call here whose name stands in its table goes through it.

Ends with 0; with CUDA's own error number where a call was refused (2: out of memory), at most 125; with 126 where the
driver's library cannot be loaded.
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from typing import Any

MIB = 1024 * 1024
OUT_OF_MEMORY = 2
NO_LIBRARY = 126
HIGHEST_STATUS = 125
MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
RESULT = os.environ.get("PROBE_RESULT", "/dev/termination-log")
SHARED = os.environ.get("PROBE_SHARED", "/tmp")  # noqa: S108 - an emptyDir of the pod's own
WAIT_S = 60.0

# HAMi-core's limiter takes a token for each block of a launch (rate_limiter in multiprocess_utilization_watcher.c), and
# refills at most 32 for each resident thread of the card: many light blocks are held back at once, a few heavy ones
# would use up a full bucket for half a minute first.
THREADS = 256
BLOCKS_PER_MULTIPROCESSOR = 512
FMAS_PER_ITERATION = 16
LAUNCH_MS = 2.0

_FMA = "".join(f"    fma.rn.f32 %f{number % 4}, %f{number % 4}, %f4, %f5;\n" for number in range(FMAS_PER_ITERATION))
# Multiplies and adds; the result is stored only where it is a number that never comes, so that the loop has to be kept.
KERNEL = f""".version 6.0
.target sm_50
.address_size 64
.visible .entry burn(.param .u64 result, .param .u32 iterations)
{{
    .reg .pred %p<2>;
    .reg .f32 %f<6>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [result];
    ld.param.u32 %r0, [iterations];
    mov.u32 %r1, %tid.x;
    cvt.rn.f32.u32 %f0, %r1;
    mov.f32 %f1, %f0;
    mov.f32 %f2, %f0;
    mov.f32 %f3, %f0;
    mov.f32 %f4, 0f3F7FBE77;
    mov.f32 %f5, 0f3A83126F;
LOOP:
{_FMA}    add.s32 %r0, %r0, -1;
    setp.ne.s32 %p0, %r0, 0;
    @%p0 bra LOOP;
    add.f32 %f0, %f0, %f1;
    add.f32 %f2, %f2, %f3;
    add.f32 %f0, %f0, %f2;
    setp.eq.f32 %p1, %f0, 0fC2280000;
    cvta.to.global.u64 %rd1, %rd0;
    @%p1 st.global.f32 [%rd1], %f0;
    ret;
}}
"""


class CudaError(Exception):
    """A call that did not succeed: its name, CUDA's number and CUDA's name for it."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.facts = {"call": call, "code": code, "name": name}
        self.code = code


class Cuda:
    """The driver's library, and the context of the first card. Raises OSError where it cannot be loaded, CudaError."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", ctypes.c_uint(0))
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(0))
        context = ctypes.c_void_p()
        # The primary context is the one that CUDA's runtime, and so nearly every program, works in.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"unknown").decode())

    def facts(self) -> dict[str, Any]:
        raw = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", raw, self._device)
        name = ctypes.create_string_buffer(96)
        self._call("cuDeviceGetName", name, len(name), self._device)
        version, count = ctypes.c_int(), ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        self._call("cuDeviceGetCount", ctypes.byref(count))
        free, total = self.memory()
        return {
            "uuid": f"GPU-{uuid.UUID(bytes=bytes(raw))}",
            "card": name.value.decode(),
            "cards": count.value,
            "cuda": version.value,
            "free_mib": free // MIB,
            "total_mib": total // MIB,
        }

    def memory(self) -> tuple[int, int]:
        """Free and all memory of the share, in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def free(self, address: ctypes.c_uint64) -> None:
        self._call("cuMemFree_v2", address)

    def multiprocessors(self) -> int:
        count = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(count), ctypes.c_int(MULTIPROCESSORS), self._device)
        return count.value

    def kernel(self) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(KERNEL.encode()))
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"burn"))
        return function

    def launch(self, function: ctypes.c_void_p, blocks: int, result: ctypes.c_uint64, iterations: int) -> None:
        values = (result, ctypes.c_uint32(iterations))
        parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        sizes = [ctypes.c_uint(number) for number in (blocks, 1, 1, THREADS, 1, 1, 0)]
        self._call("cuLaunchKernel", function, *sizes, ctypes.c_void_p(), parameters, ctypes.c_void_p())

    def wait(self) -> None:
        self._call("cuCtxSynchronize")

    def event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        return event

    def record(self, event: ctypes.c_void_p) -> None:
        self._call("cuEventRecord", event, ctypes.c_void_p())

    def elapsed_ms(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> float:
        self._call("cuEventSynchronize", second)
        elapsed = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(elapsed), first, second)
        return elapsed.value


class Burner:
    """Launches the kernel: ``blocks`` of it at once, each thread so many iterations."""

    def __init__(self, cuda: Cuda, iterations: int) -> None:
        self._cuda = cuda
        self._function = cuda.kernel()
        self._result = cuda.allocate(4)
        self._blocks = cuda.multiprocessors() * BLOCKS_PER_MULTIPROCESSOR
        self.iterations = iterations or 64

    def gfma(self, launches: int) -> float:
        """The work of launches, in 10^9 multiplications with addition."""
        return self._blocks * THREADS * self.iterations * FMAS_PER_ITERATION * launches / 1e9

    def run(self, launches: int) -> None:
        for _launch in range(launches):
            self._cuda.launch(self._function, self._blocks, self._result, self.iterations)
        self._cuda.wait()

    def warm_up(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.run(5)

    def calibrate(self) -> None:
        """So many iterations that a launch takes about LAUNCH_MS; by the card's own clock, in which nobody waits."""
        first, second = self._cuda.event(), self._cuda.event()
        for _round in range(3):
            times = []
            for _launch in range(5):
                self._cuda.record(first)
                self._cuda.launch(self._function, self._blocks, self._result, self.iterations)
                self._cuda.record(second)
                times.append(self._cuda.elapsed_ms(first, second))
            self.iterations = max(1, min(10**6, round(self.iterations * LAUNCH_MS / max(min(times), 0.01))))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Times of the same work, again and again, after a warm-up."""
    cuda = Cuda()
    found = cuda.facts()
    say(found, step="ready")
    burner = Burner(cuda, options.iterations)
    burner.warm_up(options.warm_up_s)
    if not options.iterations:
        burner.calibrate()
    start, wall_start = time.monotonic(), time.time()
    say({}, step="start", at=start, wall=wall_start)
    repeats = []
    for _repeat in range(options.repeats):
        before = time.monotonic()
        burner.run(options.launches)
        repeats.append(round((time.monotonic() - before) * 1000, 2))
    end, wall_end = time.monotonic(), time.time()
    say({}, step="end", at=end, wall=wall_end)
    return {
        **found,
        "start": round(start, 3),
        "end": round(end, 3),
        "wall_start": round(wall_start, 3),
        "wall_end": round(wall_end, 3),
        "repeat_ms": repeats,
        "repeat_gfma": round(burner.gfma(options.launches), 3),
        "iterations": burner.iterations,
    }


def fill(cuda: Cuda, most: int, chunk: int) -> tuple[list[ctypes.c_uint64], CudaError | None]:
    """Allocate in chunks up to ``most`` bytes; what was got, and the refusal that came before."""
    held: list[ctypes.c_uint64] = []
    while len(held) * chunk < most:
        try:
            held.append(cuda.allocate(chunk))
        except CudaError as error:
            return held, error
    return held, None


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """How much of the card the process gets before it is refused, and whether it can go on afterwards."""
    cuda = Cuda()
    found = cuda.facts()
    say(found, step="ready")
    chunk = options.chunk_mib * MIB
    single = refusal(cuda, options.most_mib * MIB)
    held, error = fill(cuda, options.most_mib * MIB, chunk)
    granted = len(held) * options.chunk_mib
    for address in held:
        cuda.free(address)
    # A refusal is an answer, no death: the same context allocates again.
    cuda.free(cuda.allocate(chunk))
    return {**found, "single": single, "granted_mib": granted, "error": error.facts if error else None}


def refusal(cuda: Cuda, size: int) -> dict[str, Any] | None:
    """How one allocation is refused; None where it is not."""
    try:
        cuda.free(cuda.allocate(size))
    except CudaError as error:
        return error.facts
    return None


def held_part(options: argparse.Namespace) -> tuple[dict[str, Any], Cuda]:
    """Hold 60 % of the free share: a second process that asks the same must be refused."""
    cuda = Cuda()
    found = cuda.facts()
    part = found["free_mib"] * 6 // 10
    cuda.allocate(part * MIB)
    return {**found, "held_mib": part}, cuda


def children(options: argparse.Namespace) -> dict[str, Any]:
    """A child process that asks for more than its parent has left."""
    found, cuda = held_part(options)
    command = [sys.executable, os.path.abspath(__file__), "ask", "--ask-mib", str(found["held_mib"])]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, check=False, env={**os.environ, "PROBE_RESULT": ""}
    )
    cuda.wait()
    return {**found, "other": last_line(done.stdout), "other_status": done.returncode}


def hold(options: argparse.Namespace) -> dict[str, Any]:
    """Wait for a process that something else starts in this container (``ask --answer``), as kubectl exec does."""
    found, cuda = held_part(options)
    write(os.path.join(SHARED, "held"), str(found["held_mib"]))
    answer = os.path.join(SHARED, "answer")
    found["other"] = last_line(awaited(answer))
    cuda.wait()
    return found


def ask(options: argparse.Namespace) -> dict[str, Any]:
    """Ask for one piece of memory."""
    asked = options.ask_mib or int(awaited(os.path.join(SHARED, "held")) or 0)
    cuda = Cuda()
    found = cuda.facts()
    cuda.allocate(asked * MIB)
    return {"uuid": found["uuid"], "pid": os.getpid(), "asked_mib": asked, "error": None}


def look(options: argparse.Namespace) -> dict[str, Any]:
    """Which cards there are for a process that was given none."""
    try:
        return Cuda().facts()
    except OSError as error:
        return {"no_library": str(error)}
    except CudaError as error:
        return {"error": error.facts}


def exhaust(options: argparse.Namespace) -> dict[str, Any]:
    """Take memory of the host until the kernel ends the process: what no refused allocation looks like."""
    held = [os.urandom(MIB) for _piece in range(options.most_mib)]
    return {"host_mib": len(held)}


def awaited(path: str) -> str:
    """What stands in a file, as soon as it does; nothing after WAIT_S seconds."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            time.sleep(0.1)
    return ""


def write(path: str, text: str) -> None:
    """Write a file that is there only when it is whole."""
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.part", path)


def last_line(text: str) -> Any:
    lines = text.strip().splitlines()
    return json.loads(lines[-1]) if lines else None


def surroundings() -> dict[str, Any]:
    """What the process is and was given, as far as it tells whose hands its calls go through."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        mapped = file.read()
    limits = ("CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT", "GPU_CORE_UTILIZATION_POLICY")
    given = (*limits, "NVIDIA_VISIBLE_DEVICES")
    return {
        "libvgpu": "libvgpu.so" in mapped,
        "libc": " ".join(platform.libc_ver()).strip() or "not glibc",
        "uid": os.getuid(),
        "devices": sorted(glob.glob("/dev/nvidia*"))[:20],
        "env": {name: os.environ[name] for name in given if name in os.environ},
    }


def say(facts: dict[str, Any], **more: Any) -> str:
    line = json.dumps({**more, **facts}, separators=(",", ":"))
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    return line


MODES = {each.__name__: each for each in (measure, memory, children, hold, ask, look, exhaust)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--warm-up-s", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--launches", type=int, default=50, help="launches of a repeat")
    parser.add_argument("--iterations", type=int, default=0, help="of each thread of a launch; 0: find out")
    parser.add_argument("--chunk-mib", type=int, default=16)
    parser.add_argument("--most-mib", type=int, default=4096)
    parser.add_argument("--ask-mib", type=int, default=0, help="0: what another process says that it holds")
    parser.add_argument("--answer", action="store_true", help="answer the process in mode hold, and end with 0")
    options = parser.parse_args()
    status, found = 0, {}
    try:
        found = MODES[options.mode](options)
    except OSError as error:
        status, found = NO_LIBRARY, {"no_library": str(error)}
    except CudaError as error:
        status, found = min(error.code, HIGHEST_STATUS), {"error": error.facts}
    if found.get("error"):
        status = min(found["error"]["code"], HIGHEST_STATUS)
    line = say({**found, **surroundings()}, mode=options.mode)
    if options.answer:
        write(os.path.join(SHARED, "answer"), line)
        return 0
    if RESULT:
        with open(RESULT, "w", encoding="utf-8") as file:
            file.write(line)
    return 0 if options.mode == "look" else status


if __name__ == "__main__":
    sys.exit(main())
