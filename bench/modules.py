#!/usr/bin/env python3
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Times the modules on a real etcd and kube-apiserver with 1,000 nodes and 5,000 GPU pods, and prints ratios.

`make bench-modules` calls it. Nothing plays the nodes: no module reads anything that kwok would write after a node or
pod is created, and a kwok beside the API server would only take its cores. Nodes, pods, allocations and statuses are
written once, in the formats of HAMi 2.10. Figures of one run belong together; compare ratios, not seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "images"), str(ROOT / "tests" / "integration")]

from control_plane import ControlPlane
from playbook import run_play

Object = dict[str, Any]

NODES, PODS = 1000, 5000
SAMPLE = 50  # patches of kubernetes.core.k8s that are timed; a thousand would take most of an hour
NAMESPACES = 20
CARDS = 8
PROFILE = {"profile": "h100", "count": CARDS}
PATCHES_RATIO, INFO_S, INFO_MIB, PLACEMENTS, IMPORT_RATIO = 20.0, 5.0, 300.0, 5000.0, 1.0
LIMIT_S = 1800.0
IMPORTS, IMPORT_NOISE = 9, 0.05

# Runs a module as Ansible does once it has unpacked it, and says what it took.
RUN_ALONE = """
import ansible_collections, importlib, json, resource, sys, time
ansible_collections.__path__.append(sys.argv[1])
from ansible.module_utils.testing import patch_module_args
module = importlib.import_module(f"ansible_collections.tenantry.gpu.plugins.modules.{sys.argv[2]}")
begin = time.process_time()
try:
    with patch_module_args(json.load(sys.stdin)):
        module.main()
except SystemExit:
    pass
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"s": time.process_time() - begin, "mib": usage.ru_maxrss / 1024}), file=sys.stderr)
"""


class Table:
    """What was measured, one line as soon as it is known, and whether a budget was missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []
        print(f"{'measured':<66} {'figure':>14}  budget", flush=True)

    def line(self, what: str, figure: str, budget: str = "", *, met: bool = True) -> None:
        if not met:
            self.missed.append(what)
        print(f"{what:<66} {figure:>14}  {budget}{'' if met else '  MISSED'}".rstrip(), flush=True)


def nodes_without_cards() -> Iterator[Object]:
    for number in range(NODES):
        yield {"metadata": {"name": node_name(number), "labels": {"bench": "modules", "kubernetes.io/os": "linux"}}}


def node_name(number: int) -> str:
    return f"bench-{number:04d}"


def pods(cards: dict[str, list[str]]) -> Iterator[tuple[str, Object]]:
    """Namespace and pod; five pods on each node, each on a card of its own, as HAMi leaves them."""
    for number in range(PODS):
        node = node_name(number % NODES)
        share = f"{cards[node][number // NODES]},NVIDIA,10000,20:;"
        annotations = {
            "hami.io/vgpu-node": node,
            "hami.io/vgpu-time": "1790000000",
            "hami.io/bind-phase": "success",
            "hami.io/bind-time": "1790000000",
            "hami.io/vgpu-devices-to-allocate": ";",
            "hami.io/vgpu-devices-allocated": share,
        }
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10000", "nvidia.com/gpucores": "20"}
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        spec = {"nodeName": node, "schedulerName": "hami-scheduler", "containers": [container]}
        metadata = {"name": f"pod-{number}", "labels": {"hami.io/vgpu-node": node}, "annotations": annotations}
        yield f"bench-{number % NAMESPACES}", {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


def fill_with_pods(plane: ControlPlane) -> None:
    registers = {
        node["metadata"]["name"]: node["metadata"]["annotations"]["hami.io/node-nvidia-register"]
        for node in plane.api.items("/api/v1/nodes")
    }
    cards = {name: re.findall(r"GPU-[0-9a-f-]{36}", register) for name, register in registers.items()}
    by_namespace: dict[str, list[Object]] = {}
    for namespace, pod in pods(cards):
        by_namespace.setdefault(namespace, []).append(pod)
    for namespace, wanted in by_namespace.items():
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        path = f"/api/v1/namespaces/{namespace}"
        plane.api.ensure(f"{path}/serviceaccounts", {"metadata": {"name": "default"}})
        plane.api.create_all(f"{path}/pods", wanted)


def requests_of(plane: ControlPlane, resource: str) -> dict[str, int]:
    """How many requests for a resource the API server has answered so far, by verb."""
    counted: dict[str, int] = {}
    for line in plane.api.text("/metrics").splitlines():
        if line.startswith("apiserver_request_total{") and f'resource="{resource}"' in line:
            verb = re.findall(r'verb="(\w+)"', line)[0]
            counted[verb] = counted.get(verb, 0) + int(float(line.rsplit(" ", 1)[1]))
    return counted


def task_seconds(folder: Path, task: Object) -> float:
    """How long one task takes in a playbook, without the start of ansible-playbook."""
    os.environ["ANSIBLE_STDOUT_CALLBACK"] = "ansible.posix.json"
    run = run_play(folder, {"tasks": [{"name": "measured", **task}]}, {}, limit_s=LIMIT_S)
    answer, _end = json.JSONDecoder().raw_decode(run.output, run.output.index("{\n"))
    if run.status:
        raise SystemExit(json.dumps(answer["plays"][0]["tasks"][0]["hosts"]["localhost"].get("msg"), indent=2))
    duration = answer["plays"][0]["tasks"][0]["task"]["duration"]
    begin, end = (datetime.fromisoformat(duration[key]) for key in ("start", "end"))
    return (end - begin).total_seconds()


def alone(module: str, options: Object) -> tuple[Object, float, float]:
    """A module's answer, the processor's seconds for it (without its imports), and its largest memory in MiB."""
    command = [sys.executable, "-c", RUN_ALONE, str(ROOT / "collections" / "ansible_collections"), module]
    done = subprocess.run(command, input=json.dumps(options), capture_output=True, text=True, check=False)
    try:
        answer, usage = json.loads(done.stdout.splitlines()[-1]), json.loads(done.stderr.splitlines()[-1])
    except (ValueError, IndexError):
        raise SystemExit(f"{module} gave no answer:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}") from None
    if answer.get("failed"):
        raise SystemExit(f"{module} failed: {answer['msg']}")
    return answer, usage["s"], usage["mib"]


def measure_registering(plane: ControlPlane, folder: Path, table: Table) -> None:
    kubeconfig = str(plane.kubeconfig)
    patch = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "{{ item }}", "annotations": {"bench": "patched"}},
    }
    single = {
        "kubernetes.core.k8s": {"kubeconfig": kubeconfig, "state": "patched", "definition": patch},
        "loop": [node_name(number) for number in range(SAMPLE)],
    }
    loop_s = task_seconds(folder / "loop", single) * NODES / SAMPLE
    table.line(f"kubernetes.core.k8s patches {NODES} nodes in a loop ({SAMPLE} timed)", f"{loop_s:.0f} s")
    declare = {
        "tenantry.gpu.hami_node_devices": {
            "kubeconfig": kubeconfig,
            "label_selector": "bench=modules",
            "cards": [PROFILE],
            "allocatable": True,
        }
    }
    first_s = task_seconds(folder / "first", declare)
    ratio = loop_s / first_s
    table.line(
        f"hami_node_devices registers {NODES} nodes of {CARDS} cards in one task",
        f"{first_s:.1f} s",
    )
    budget = f"at least {PATCHES_RATIO:.0f} times faster"
    table.line("  as against the loop", f"{ratio:.0f} times", budget, met=ratio >= PATCHES_RATIO)
    before = requests_of(plane, "nodes")
    second_s = task_seconds(folder / "second", declare)
    sent = {verb: number - before.get(verb, 0) for verb, number in requests_of(plane, "nodes").items()}
    changed = sum(number for verb, number in sent.items() if verb not in ("GET", "LIST", "WATCH"))
    table.line("hami_node_devices again, nothing to change", f"{second_s:.1f} s")
    pages = -(-NODES // 500)
    table.line(
        "  its requests for nodes",
        f"{sent.get('LIST', 0)} LIST, {changed} other",
        f"one LIST ({pages} pages of 500), no patch",
        met=changed == 0 and sent.get("LIST", 0) == pages and not sent.get("GET"),
    )


def measure_reading(plane: ControlPlane, folder: Path, table: Table) -> None:
    options = {"kubeconfig": str(plane.kubeconfig)}
    answer, processor_s, mib = alone("hami_device_info", options)
    if len(answer["nodes"]) != NODES or answer["totals"]["allocated"]["slots"] != PODS:
        raise SystemExit(f"hami_device_info read {len(answer['nodes'])} nodes, {answer['totals']}")
    seconds = min(
        task_seconds(folder / f"info-{number}", {"tenantry.gpu.hami_device_info": options}) for number in "123"
    )
    what = f"hami_device_info reads {NODES} nodes, {PODS} pods (a task, best of 3)"
    table.line(what, f"{seconds:.2f} s", f"{INFO_S:.0f} s", met=seconds <= INFO_S)
    table.line("  the processor's part of it", f"{processor_s:.2f} s")
    table.line("  its memory", f"{mib:.0f} MiB", f"{INFO_MIB:.0f} MiB", met=mib <= INFO_MIB)


def measure_planning(table: Table) -> None:
    name = f"gpu_capacity_plan places {PODS} pods of 10 kinds on {NODES} nodes of {CARDS} cards"
    few_s, many_s = planning_seconds(PODS // 100), planning_seconds(PODS)
    rate = (PODS - PODS // 100) / (many_s - few_s)
    table.line(name, f"{rate:.0f} per s", f"{PLACEMENTS:.0f} per s of the processor", met=rate >= PLACEMENTS)
    table.line("  reading the nodes before that", f"{few_s:.2f} s")


def planning_seconds(number: int) -> float:
    """The processor's seconds for a plan of so many pods."""
    cases = [
        {"name": f"kind-{kind}", "replicas": number // 10, "memory_mib": 4000 + 500 * kind, "cores": 5 + kind}
        for kind in range(10)
    ]
    nodes = [{"name": node_name(number), "cards": [PROFILE]} for number in range(NODES)]
    answer, seconds, _mib = alone("gpu_capacity_plan", {"from_cluster": False, "nodes": nodes, "cases": cases})
    if not answer["fits"]:
        raise SystemExit(f"gpu_capacity_plan did not place all: {[case['verdict'] for case in answer['cases']]}")
    return seconds


def import_seconds(names: list[str]) -> dict[str, float]:
    """Seconds of the processor that importing each module costs, medians of tries in turn."""
    code = (
        "import ansible_collections, resource, sys; ansible_collections.__path__.append(sys.argv[1]);"
        "import importlib; importlib.import_module(sys.argv[2]); usage = resource.getrusage(resource.RUSAGE_SELF);"
        "print(usage.ru_utime + usage.ru_stime)"
    )
    tries: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(IMPORTS):
        for name in names:
            command = [sys.executable, "-c", code, str(ROOT / "collections" / "ansible_collections"), name]
            tries[name].append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return {name: statistics.median(seconds) for name, seconds in tries.items()}


def measure_imports(table: Table) -> None:
    theirs = "ansible_collections.kubernetes.core.plugins.modules.k8s_info"
    wanted = ("hami_node_devices", "hami_device_info", "hami_allocation", "gpu_scheduling_verify", "gpu_capacity_plan")
    ours = {f"ansible_collections.tenantry.gpu.plugins.modules.{name}": name for name in wanted}
    # What k8s_info imports when it runs, and what ours import at once.
    seconds = import_seconds([theirs, *ours])
    table.line("kubernetes.core.k8s_info is imported", f"{seconds[theirs]:.2f} s")
    for path, name in ours.items():
        ratio = seconds[path] / seconds[theirs]
        table.line(
            f"  {name} as against that",
            f"{ratio:.2f} times",
            f"{IMPORT_RATIO:.2f} (noise {IMPORT_NOISE})",
            met=ratio <= IMPORT_RATIO + IMPORT_NOISE,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["api", "planning", "imports"], help="one part alone")
    only = parser.parse_args().only
    os.environ.update(ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), ANSIBLE_CALLBACKS_ENABLED="ansible.posix.timer")
    table = Table()
    if only in (None, "api"):
        with tempfile.TemporaryDirectory(prefix="bench-modules-") as temporary:
            folder = Path(temporary)
            plane = ControlPlane(folder / "plane")
            try:
                plane.start()
                begin = time.monotonic()
                plane.api.create_all("/api/v1/nodes", nodes_without_cards())
                measure_registering(plane, folder, table)
                fill_with_pods(plane)
                print(
                    f"... {NODES} nodes and {PODS} pods are there after {time.monotonic() - begin:.0f} s",
                    file=sys.stderr,
                )
                measure_reading(plane, folder, table)
            finally:
                plane.stop()
    if only in (None, "planning"):
        measure_planning(table)
    if only in (None, "imports"):
        measure_imports(table)
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
