# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the kube-scheduler asks its extender: to filter nodes, and to bind."""

import logging
import threading
import time
from datetime import timedelta
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    PHASE_ALLOCATING,
    POD_ALLOCATED,
    POD_BIND_PHASE,
    POD_BIND_TIME,
    POD_NODE,
    POD_TIME,
    POD_TO_ALLOCATE,
    format_allocation,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    Placement,
    PlacementError,
    PodRequest,
    Refusal,
    Rules,
    place,
    refusal_messages,
    success_message,
    usage_of,
)

from .api import Api, ApiError, Json
from .cluster import Cluster, PodRecord
from .events import BINDING_FAILED, BINDING_SUCCEED, FILTERING_FAILED, FILTERING_SUCCEED, Events
from .nodelock import LockContentionError, LockError, NodeLocks

log = logging.getLogger(__name__)

LABEL_POD_GROUP = "scheduling.x-k8s.io/pod-group"
RETRY_S = 0.1
# How long the news that a pod is gone may take to reach us after it has reached the kube-scheduler.
NEWS_S = 0.1


class Extender:
    """Filter and Bind, HAMi 2.10 pkg/scheduler/scheduler.go."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        locks: NodeLocks,
        events: Events,
        rules: Rules,
        *,
        wait: timedelta = timedelta(0),
        group_wait: timedelta = timedelta(seconds=28),
    ) -> None:
        self._api, self._cluster, self._locks, self._events, self._rules = api, cluster, locks, events, rules
        self._wait, self._group_wait = wait, group_wait
        self._filtering = threading.Lock()

    def filter(self, args: Json) -> Json:
        """Choose one of the nodes for a pod and write the choice onto the pod; ExtenderArgs, ExtenderFilterResult."""
        pod, names = args["Pod"], args.get("NodeNames")
        request = PodRequest.of(pod, self._rules)
        if not request.asks_cards:
            return {"NodeNames": names, "Nodes": args.get("Nodes")}
        if names is None:
            return {"Error": "the extender needs node names: set nodeCacheCapable"}
        # One pod after the other: what the first takes the second must see as taken.
        with self._filtering:
            return self._place(pod, request, names)

    def _place(self, pod: Json, request: PodRequest, names: list[str]) -> Json:
        metadata = pod["metadata"]
        self._cluster.forget(metadata["uid"])
        try:
            chosen = self._judge(pod, request, names)
            if isinstance(chosen, Refusal):
                # It asks again because a pod is gone, and would not ask once more if we had not heard of that yet.
                time.sleep(NEWS_S)
                chosen = self._judge(pod, request, names)
        except PlacementError as error:
            message = f"calcScore failed {error} for pod {metadata['name']}"
            self._events.tell(pod, FILTERING_FAILED, message)
            return {"Error": message}
        if isinstance(chosen, Refusal):
            for message in refusal_messages(chosen.failed, len(names)):
                self._events.tell(pod, FILTERING_FAILED, message)
            log.info("pod %s/%s fits no node: %s", metadata["namespace"], metadata["name"], dict(chosen.failed))
            return {"FailedNodes": dict(chosen.failed)}
        try:
            self._write_choice(pod, request, chosen)
        except ApiError as error:
            self._events.tell(pod, FILTERING_FAILED, str(error))
            return {"Error": str(error)}
        self._events.tell(pod, FILTERING_SUCCEED, success_message(chosen, len(names)))
        return {"NodeNames": [chosen.node]}

    def _judge(self, pod: Json, request: PodRequest, names: list[str]) -> Placement | Refusal:
        quota = self._cluster.quota(pod["metadata"]["namespace"])
        return place(request, self._cluster.nodes(names), self._rules, quota)

    def _write_choice(self, pod: Json, request: PodRequest, chosen: Placement) -> None:
        metadata, allocation = pod["metadata"], format_allocation(chosen.written)
        usage = usage_of(chosen.written, len(request.init))
        log.info("pod %s/%s goes to node %s: %s", metadata["namespace"], metadata["name"], chosen.node, allocation)
        self._cluster.assume(PodRecord(metadata["uid"], metadata["namespace"], metadata["name"], chosen.node, usage))
        annotations = {
            POD_NODE: chosen.node,
            POD_TIME: str(int(time.time())),
            POD_TO_ALLOCATE: allocation,
            POD_ALLOCATED: allocation,
        }
        try:
            self._annotate(pod, {"annotations": annotations, "labels": {POD_NODE: chosen.node}})
        except ApiError:
            self._cluster.forget(metadata["uid"])
            raise

    def bind(self, args: Json) -> Json:
        """Lock a node, mark a pod as allocating and bind it; ExtenderBindingArgs, ExtenderBindingResult."""
        namespace, name, node = args["PodNamespace"], args["PodName"], args["Node"]
        try:
            pod = self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        except ApiError as error:
            if error.status == 404:
                self._cluster.forget(args["PodUID"])
            return {"Error": str(error)}
        try:
            self._lock(pod, node)
            self._annotate(
                pod, {"annotations": {POD_BIND_PHASE: PHASE_ALLOCATING, POD_BIND_TIME: str(int(time.time()))}}
            )
            self._api.create(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", _binding(args))
        except (ApiError, LockError) as error:
            log.warning("pod %s/%s is not bound to node %s: %s", namespace, name, node, error)
            self._unlock(pod, node)
            self._events.tell(pod, BINDING_FAILED, str(error))
            return {"Error": str(error)}
        self._events.tell(pod, BINDING_SUCCEED, f"Successfully binding node [{node}] to {namespace}/{name}")
        return {"Error": ""}

    def _lock(self, pod: Json, node: str) -> None:
        """Take the node's lock; wait for it a while if another pod holds it, a member of a pod group longer."""
        if not self._needs_lock(pod):
            return
        metadata = pod["metadata"]
        in_group = (metadata.get("labels") or {}).get(LABEL_POD_GROUP)
        wait = max(self._wait, self._group_wait) if in_group else self._wait
        deadline = time.monotonic() + wait.total_seconds()
        while True:
            try:
                self._locks.take(node, metadata["namespace"], metadata["name"])
            except LockContentionError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_S)
            else:
                return

    def _unlock(self, pod: Json, node: str) -> None:
        if not self._needs_lock(pod):
            return
        try:
            self._locks.release(node, pod["metadata"]["namespace"], pod["metadata"]["name"])
        except (ApiError, LockError) as error:
            log.warning("node %s stays locked: %s", node, error)

    def _needs_lock(self, pod: Json) -> bool:
        return any(request.count for request in PodRequest.of(pod, self._rules).containers)

    def _annotate(self, pod: Json, metadata: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        self._api.patch(path, {"metadata": metadata})


def _binding(args: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": args["PodName"], "namespace": args["PodNamespace"], "uid": args["PodUID"]},
        "target": {"apiVersion": "v1", "kind": "Node", "name": args["Node"]},
    }
