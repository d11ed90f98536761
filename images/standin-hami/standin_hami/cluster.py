# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the scheduler knows: registered nodes, the pods that take cards, quotas."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_CORDON,
    NODE_HANDSHAKE,
    NODE_PAIR_SCORES,
    NODE_REGISTER,
    POD_ALLOCATED,
    POD_NODE,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    HamiFormatError,
    parse_allocation,
    parse_cordon,
    parse_pair_scores,
    parse_register,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    Node,
    PlacementError,
    Quota,
    Usage,
    add_usage,
    parse_quantity,
    usage_of,
)

from .api import Json

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PodRecord:
    """A pod that takes cards of a node."""

    uid: str
    namespace: str
    name: str
    node: str
    usage: Mapping[str, Usage]


@dataclass(frozen=True)
class NodeRecord:
    """A node with a register. HAMi counts it only while its kubelet offers nvidia.com/gpu."""

    node: Node
    handshake: str
    allocatable: int

    @property
    def registered(self) -> bool:
        return bool(self.node.cards) and self.allocatable > 0


def annotations_of(obj: Json) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def read_pod(pod: Json) -> PodRecord | None:
    """What a pod takes; None for one that takes nothing (no longer, or has no allocation that can be read).

    onAddPod and onUpdatePod, HAMi 2.10 pkg/scheduler/scheduler.go.
    """
    metadata, annotations = pod["metadata"], annotations_of(pod)
    status = pod.get("status") or {}
    if POD_NODE not in annotations or status.get("phase") in ("Succeeded", "Failed"):
        return None
    try:
        written = parse_allocation(annotations.get(POD_ALLOCATED, ""))
    except HamiFormatError as error:
        log.warning("pod %s/%s: %s", metadata["namespace"], metadata["name"], error)
        return None
    init_count = len(pod["spec"].get("initContainers") or ())
    usage = usage_of(written, init_count, _init_finished(status))
    return PodRecord(metadata["uid"], metadata["namespace"], metadata["name"], annotations[POD_NODE], usage)


def _init_finished(status: Json) -> bool:
    states = [(entry.get("state") or {}).get("terminated") for entry in status.get("initContainerStatuses") or ()]
    return bool(states) and all(state is not None and state.get("exitCode") == 0 for state in states)


def read_node(obj: Json) -> NodeRecord | None:
    """A node's cards; None for one that declares none, or nothing that can be read."""
    name, annotations = obj["metadata"]["name"], annotations_of(obj)
    if NODE_REGISTER not in annotations:
        return None
    try:
        node = Node(
            name,
            tuple(parse_register(annotations[NODE_REGISTER])),
            cordoned=parse_cordon(annotations.get(NODE_CORDON, "")),
            pair_scores=parse_pair_scores(annotations.get(NODE_PAIR_SCORES, "[]")),
        )
    except HamiFormatError as error:
        log.warning("node %s: %s", name, error)
        return None
    allocatable = ((obj.get("status") or {}).get("allocatable") or {}).get(RESOURCE_COUNT, "0")
    return NodeRecord(node, annotations.get(NODE_HANDSHAKE, ""), int(parse_quantity(allocatable)))


def read_quota(obj: Json) -> Quota | None:
    """A ResourceQuota's limits of cards; None for one that has none. addQuotaLocked, HAMi 2.10 pkg/device/quota.go."""
    hard = (obj.get("spec") or {}).get("hard") or {}
    limits = [hard.get(f"limits.{resource}") for resource in (RESOURCE_MEMORY, RESOURCE_CORES)]
    if limits == [None, None]:
        return None
    try:
        memory_mib, cores = (None if limit is None else int(parse_quantity(limit)) for limit in limits)
    except PlacementError as error:
        log.warning("quota %s: %s", obj["metadata"]["name"], error)
        return None
    return Quota(memory_mib, cores)


class Cluster:
    """The state that filter and metrics read, kept by three watches. Safe to use from many threads."""

    def __init__(self, on_node: Callable[[], None]) -> None:
        self._lock = threading.RLock()
        self._on_node = on_node
        self._pods: dict[str, PodRecord] = {}
        self._nodes: dict[str, NodeRecord] = {}
        self._quotas: dict[tuple[str, str], Quota] = {}

    def pods(self) -> list[PodRecord]:
        with self._lock:
            return list(self._pods.values())

    def declared(self) -> list[NodeRecord]:
        """All nodes that declare cards, registered or not."""
        with self._lock:
            return list(self._nodes.values())

    def nodes(self, names: Iterable[str] | None = None) -> list[Node]:
        """The named nodes (or all registered ones) with what is taken of their cards.

        A node without registered cards has none here, too.
        """
        with self._lock:
            taken: dict[str, list[Mapping[str, Usage]]] = {}
            for pod in self._pods.values():
                taken.setdefault(pod.node, []).append(pod.usage)
            registered = {name: record.node for name, record in self._nodes.items() if record.registered}
        chosen = [registered.get(name, Node(name)) for name in (registered if names is None else names)]
        return [replace(node, usage=add_usage(taken.get(node.name, ()))) for node in chosen]

    def quota(self, namespace: str) -> Quota | None:
        """What a namespace may take and has taken; None where nothing limits it."""
        with self._lock:
            limits = [quota for (place, _name), quota in self._quotas.items() if place == namespace]
            pods = [pod.usage for pod in self._pods.values() if pod.namespace == namespace]
        if not limits:
            return None
        used = add_usage(pods).values()
        return Quota(
            _smallest([quota.memory_mib for quota in limits]),
            _smallest([quota.cores for quota in limits]),
            Usage(0, sum(usage.memory_mib for usage in used), sum(usage.cores for usage in used)),
        )

    def namespaces_with_quota(self) -> list[str]:
        with self._lock:
            return sorted({namespace for namespace, _name in self._quotas})

    def assume(self, pod: PodRecord) -> None:
        """Count a pod before its annotations have come back over the watch."""
        with self._lock:
            self._pods[pod.uid] = pod

    def forget(self, uid: str) -> None:
        with self._lock:
            self._pods.pop(uid, None)

    # What the watches call. A pod without annotations does not undo an assumed one: it is older news.

    def put_pod(self, obj: Json) -> None:
        record = read_pod(obj)
        with self._lock:
            if record is not None:
                self._pods[record.uid] = record
            elif POD_NODE in annotations_of(obj):
                self._pods.pop(obj["metadata"]["uid"], None)

    def keep_pods(self, uids: set[str]) -> None:
        with self._lock:
            self._pods = {uid: pod for uid, pod in self._pods.items() if uid in uids}

    def put_node(self, obj: Json) -> None:
        name, record = obj["metadata"]["name"], read_node(obj)
        with self._lock:
            before = self._nodes.get(name)
            if record is None:
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = record
        if record == before:
            return
        if (record is not None and record.registered) != (before is not None and before.registered):
            log.info("node %s is %s", name, "registered" if record and record.registered else "not registered any more")
        self._on_node()

    def drop_node(self, name: str) -> None:
        with self._lock:
            self._nodes.pop(name, None)

    def keep_nodes(self, names: set[str]) -> None:
        with self._lock:
            self._nodes = {name: node for name, node in self._nodes.items() if name in names}

    def put_quota(self, namespace: str, name: str, quota: Quota | None) -> None:
        with self._lock:
            if quota is None:
                self._quotas.pop((namespace, name), None)
            else:
                self._quotas[namespace, name] = quota

    def keep_quotas(self, keys: set[tuple[str, str]]) -> None:
        with self._lock:
            self._quotas = {key: quota for key, quota in self._quotas.items() if key in keys}


def _smallest(limits: Sequence[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


class PodSink:
    """Takes pods from a watch."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def replace(self, items: list[Json]) -> None:
        self._cluster.keep_pods({pod["metadata"]["uid"] for pod in items})
        for pod in items:
            self._cluster.put_pod(pod)

    def apply(self, obj: Json, deleted: bool) -> None:
        if deleted:
            self._cluster.forget(obj["metadata"]["uid"])
        else:
            self._cluster.put_pod(obj)


class NodeSink:
    """Takes nodes from a watch."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def replace(self, items: list[Json]) -> None:
        self._cluster.keep_nodes({node["metadata"]["name"] for node in items})
        for node in items:
            self._cluster.put_node(node)

    def apply(self, obj: Json, deleted: bool) -> None:
        if deleted:
            self._cluster.drop_node(obj["metadata"]["name"])
        else:
            self._cluster.put_node(obj)


class QuotaSink:
    """Takes ResourceQuotas from a watch."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def replace(self, items: list[Json]) -> None:
        self._cluster.keep_quotas({(quota["metadata"]["namespace"], quota["metadata"]["name"]) for quota in items})
        for quota in items:
            self.apply(quota, deleted=False)

    def apply(self, obj: Json, deleted: bool) -> None:
        metadata = obj["metadata"]
        self._cluster.put_quota(metadata["namespace"], metadata["name"], None if deleted else read_quota(obj))
