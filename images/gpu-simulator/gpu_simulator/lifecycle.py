"""What HAMi's NVIDIA plugin does at Allocate: it ends what the scheduler's bind began.

Source: HAMi 2.10 pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go (Allocate), util.go
beside it, pkg/util/util.go (GetPendingPod) and pkg/util/nodelock/nodelock.go (ReleaseNodeLock).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_LOCK,
    PHASE_ALLOCATING,
    PHASE_FAILED,
    PHASE_SUCCESS,
    POD_BIND_PHASE,
    POD_BIND_TIME,
    POD_NODE,
    POD_TO_ALLOCATE,
    HamiFormatError,
    Share,
    format_allocation,
    parse_allocation,
    parse_lock,
)

from .kubernetes_api import ApiError, KubernetesApi

LOG = logging.getLogger(__name__)
CONFLICT_TRIES = 5

Object = dict[str, Any]


class AllocationError(Exception):
    """An Allocate call that cannot be answered; kubelet fails the pod with this message."""


def annotations_of(thing: Mapping[str, Any]) -> dict[str, str]:
    return thing.get("metadata", {}).get("annotations") or {}


def path_of(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def limits_of(shares: Sequence[Share]) -> dict[str, str]:
    """The environment that holds a container to its shares: memory of each card in MiB, cores in percent."""
    limits = {f"CUDA_DEVICE_MEMORY_LIMIT_{index}": f"{share.memory_mib}m" for index, share in enumerate(shares)}
    limits["CUDA_DEVICE_SM_LIMIT"] = str(shares[0].cores)
    limits["NVIDIA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(share.uuid for share in shares))
    return limits


class Lifecycle:
    """Completes allocations on one node. Not for concurrent use: the protocol allows one at a time."""

    def __init__(self, api: KubernetesApi, node: str) -> None:
        self._api = api
        self._node = node
        self._node_path = f"/api/v1/nodes/{node}"

    def allocate(self, counts: Sequence[int]) -> list[dict[str, str]]:
        """Answer kubelet for containers that take ``counts`` devices each: the environment of each.

        Raises AllocationError; the pod is then marked failed and the node's lock released.
        """
        pod = self._pending_pod()
        try:
            containers = list(parse_allocation(annotations_of(pod).get(POD_TO_ALLOCATE, "")))
            taken = [self._take(containers, count) for count in counts]
            phase = {} if any(containers) else {POD_BIND_PHASE: PHASE_SUCCESS}
            self._annotate(pod, {POD_TO_ALLOCATE: format_allocation(tuple(containers)), **phase})
            if phase:
                self._release_lock(pod)
        except (AllocationError, HamiFormatError, ApiError) as error:
            self._give_up(pod)
            raise AllocationError(f"{path_of(pod)}: {error}") from error
        LOG.info("allocated %s: %s", path_of(pod), taken)
        return [limits_of(shares) for shares in taken]

    @staticmethod
    def _take(containers: list[tuple[Share, ...]], count: int) -> tuple[Share, ...]:
        """The shares of the next container that still waits for its own; its place is emptied."""
        for position, shares in enumerate(containers):
            if shares:
                if len(shares) != count:
                    raise AllocationError(f"kubelet gives {count} devices, the scheduler gave {len(shares)}")
                containers[position] = ()
                return shares
        raise AllocationError(f"{POD_TO_ALLOCATE} holds no more shares")

    def _pending_pod(self) -> Object:
        """The pod that is being bound: the lock names it, else the one on this node that waits."""
        try:
            holder = self._lock_holder()
            if holder:
                return self._api.get("/api/v1/namespaces/{}/pods/{}".format(*holder))
            pods = self._api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node},status.phase=Pending")
        except (ApiError, HamiFormatError) as error:
            raise AllocationError(str(error)) from error
        for pod in pods["items"]:
            found = annotations_of(pod)
            if (
                found.get(POD_NODE) == self._node
                and POD_BIND_TIME in found
                # A pod of several containers is at success while its later ones still come here.
                and found.get(POD_BIND_PHASE) in (PHASE_ALLOCATING, PHASE_SUCCESS)
            ):
                return dict(pod)
        raise AllocationError(f"no pod is being bound to node {self._node}")

    def _lock_holder(self) -> tuple[str, str] | None:
        text = annotations_of(self._api.get(self._node_path)).get(NODE_LOCK)
        lock = parse_lock(text) if text else None
        return (lock.namespace, lock.pod) if lock and lock.namespace and lock.pod else None

    def _annotate(self, pod: Object, values: Mapping[str, str]) -> None:
        self._api.patch(path_of(pod), {"metadata": {"annotations": dict(values)}})

    def _release_lock(self, pod: Object) -> None:
        """Delete the node's lock if this pod still holds it; another's is never touched."""
        mine = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        for attempt in range(1, CONFLICT_TRIES + 1):
            node = self._api.get(self._node_path)
            text = annotations_of(node).get(NODE_LOCK)
            lock = parse_lock(text) if text else None
            # The old format names no holder: HAMi takes it for the pod's own.
            if lock is None or (lock.pod and (lock.namespace, lock.pod) != mine):
                return
            version = node["metadata"]["resourceVersion"]
            try:
                self._api.patch(
                    self._node_path, {"metadata": {"resourceVersion": version, "annotations": {NODE_LOCK: None}}}
                )
                return
            except ApiError as error:
                if error.status != 409 or attempt == CONFLICT_TRIES:
                    raise

    def _give_up(self, pod: Object) -> None:
        try:
            self._annotate(pod, {POD_BIND_PHASE: PHASE_FAILED})
            self._release_lock(pod)
        except (ApiError, HamiFormatError) as error:
            LOG.error("%s could not be marked failed: %s", path_of(pod), error)
