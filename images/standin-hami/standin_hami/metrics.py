# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What Prometheus reads: cmd/scheduler/metrics.go of HAMi 2.10, without the legacy names."""

from collections.abc import Iterator

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import RESOURCE_CORES, RESOURCE_MEMORY
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Usage

from .cluster import Cluster

MIB = 1024 * 1024

HELP = {
    "hami_build_info": "hami build metadata exposed as labels with a constant value of 1.",
    "hami_gpu_memory_limit_bytes": "Device memory limit for a certain GPU",
    "hami_gpu_core_limit_ratio": "Device core limit for a certain GPU",
    "hami_gpu_memory_allocated_bytes": "Device memory allocated for a certain GPU",
    "hami_gpu_shared_count": "Number of containers sharing this GPU",
    "hami_gpu_core_allocated_ratio": "Device core allocated for a certain GPU",
    "hami_node_gpu_overview": "GPU overview on a certain node",
    "hami_node_gpu_memory_allocated_ratio": "GPU Memory Allocated Percentage on a certain GPU",
    "hami_resource_quota_used": "resourcequota usage for a certain device",
    "hami_resource_quota_limit": "resourcequota limit for a certain device",
    "hami_vgpu_memory_allocated_bytes": "vGPU memory allocated from a container",
    "hami_vgpu_core_allocated_ratio": "vGPU core allocated from a container",
}

Sample = tuple[str, dict[str, object], float]


def exposition(cluster: Cluster) -> str:
    """All metrics in Prometheus' text format."""
    samples: dict[str, list[str]] = {name: [] for name in HELP}
    for name, labels, value in (*_build(), *_cards(cluster), *_quotas(cluster), *_pods(cluster)):
        text = ",".join(f'{label}="{_escape(str(labels[label]))}"' for label in sorted(labels))
        samples[name].append(f"{name}{{{text}}} {value:g}" if value < 1e6 else f"{name}{{{text}}} {value!r}")
    lines = []
    for name, series in samples.items():
        if series:
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} gauge", *series]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _build() -> Iterator[Sample]:
    yield "hami_build_info", {"version": "v2.10.0", "revision": "standin"}, 1


def _cards(cluster: Cluster) -> Iterator[Sample]:
    for node in cluster.nodes():
        for card in node.cards:
            taken = node.usage.get(card.uuid, Usage())
            of: dict[str, object] = {
                "zone": "vGPU",
                "node": node.name,
                "device_uuid": card.uuid,
                "device_index": card.index,
                "device_type": card.type,
            }
            cores = {"device_cores": card.cores}
            yield "hami_gpu_memory_limit_bytes", of, card.memory_mib * MIB
            yield "hami_gpu_core_limit_ratio", of, card.cores
            yield "hami_gpu_memory_allocated_bytes", {**of, **cores}, taken.memory_mib * MIB
            yield "hami_gpu_shared_count", of, taken.slots
            yield "hami_gpu_core_allocated_ratio", of, taken.cores
            overview = {**of, **cores, "device_memory_limit": card.memory_mib}
            yield "hami_node_gpu_overview", overview, taken.memory_mib * MIB
            if card.memory_mib:
                yield "hami_node_gpu_memory_allocated_ratio", of, taken.memory_mib / card.memory_mib


def _quotas(cluster: Cluster) -> Iterator[Sample]:
    for namespace in cluster.namespaces_with_quota():
        quota = cluster.quota(namespace)
        if quota is None:
            continue
        for resource, used, limit in (
            (RESOURCE_MEMORY, quota.used.memory_mib, quota.memory_mib),
            (RESOURCE_CORES, quota.used.cores, quota.cores),
        ):
            if limit is not None:
                of: dict[str, object] = {"zone": "vGPU", "namespace": namespace, "quota_name": resource}
                yield "hami_resource_quota_used", {**of, "limit": limit}, used
                yield "hami_resource_quota_limit", of, limit


def _pods(cluster: Cluster) -> Iterator[Sample]:
    for pod in cluster.pods():
        for uuid, taken in pod.usage.items():
            # The original's index is that of a pod's collapsed usage: always 0.
            of: dict[str, object] = {
                "zone": "vGPU",
                "namespace": pod.namespace,
                "node": pod.node,
                "pod": pod.name,
                "container_index": 0,
                "device_uuid": uuid,
            }
            yield "hami_vgpu_memory_allocated_bytes", of, taken.memory_mib * MIB
            yield "hami_vgpu_core_allocated_ratio", of, taken.cores
