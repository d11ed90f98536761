#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: hami_allocation
short_description: Finishes allocations that a device plugin without a lifecycle leaves behind
version_added: "0.1.0"
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - HAMi's scheduler locks a node when it binds a pod, and waits for the node's device plugin to hand out the cards
    and to release the lock. A plugin that does not, such as HAMi's mock, or a node without any lets every
    next pod wait for five minutes.
  - This module does what HAMi's own plugin does then. It empties V(hami.io/vgpu-devices-to-allocate) of the pod,
    sets its V(hami.io/bind-phase) to success, and releases the lock of its node.
  - It also frees a lock whose holder is gone, has ended, or has its cards already.
  - Several runs may meet. Each change holds only for what was read before it, and a lock that has changed hands stays.
  - A node with a plugin that completes allocations itself is left alone; that is HAMi's or NVIDIA's plugin or this
    collection's simulator where a pod of its DaemonSet runs, or any that answers HAMi's handshake.
notes:
  - The smallest ClusterRole with which it works is docs/reference/rights/hami_allocation.yml.
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - tenantry.gpu.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode it looks once, whatever O(wait) says.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  pod:
    description: The pod whose allocation is to be finished.
    type: str
  namespace:
    description: Namespace of the pods. Required with O(pod); all if not given.
    type: str
  nodes:
    description: Names of the nodes whose allocations are to be finished.
    type: list
    elements: str
  older_than_s:
    description:
      - Only what has waited for at least so many seconds, since it was bound or locked.
      - Alone, it means all nodes.
    type: int
  wait:
    description:
      - Whether to go on until no pod is left that waits for its allocation to be finished or for a lock.
      - A pod that HAMi refused is not waited for.
    type: bool
    default: false
  wait_timeout_s:
    description: How long to wait, in seconds.
    type: int
    default: 120
  scheduler_name:
    description: The name by which HAMi's scheduler is asked for, needed with O(wait).
    type: str
    default: hami-scheduler
  force:
    description: Whether to finish allocations on nodes that a plugin serves, too, for one that hangs.
    type: bool
    default: false
seealso:
  - module: tenantry.gpu.hami_device_info
  - module: tenantry.gpu.hami_node_devices
"""

EXAMPLES = r"""
- name: The pod has its cards
  tenantry.gpu.hami_allocation:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    namespace: team
    pod: train

- name: All pods that were just created come to run, one after the other
  tenantry.gpu.hami_allocation:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    nodes: [kwok-0]
    wait: true
    wait_timeout_s: 60

- name: What has hung for ten minutes is finished
  tenantry.gpu.hami_allocation:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    older_than_s: 600
"""

RETURN = r"""
pods:
  description: The pods whose allocation was finished, or would be in check mode.
  returned: always, once the cluster answered
  type: list
  elements: dict
  sample:
    - namespace: team
      pod: train
      node: kwok-0
      age_s: 12
      shares: [{container: 0, uuid: GPU-6d0c1c9b-6a53-5c6e-9d7f-0d7b1f0f6b0e, memory_mib: 3000, cores: 30}]
locks:
  description: The locks that were released, or would be in check mode.
  returned: always, once the cluster answered
  type: list
  elements: dict
  sample:
    - node: kwok-0
      namespace: team
      pod: train
      age_s: 12
      reason: its allocation is finished
left_alone:
  description: What was left as it is, and why.
  returned: always, once the cluster answered
  type: list
  elements: str
  sample: ["gpu-0: hami-system/hami-device-plugin completes the allocations of this node itself"]
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import (
    PASSING,
    Cluster,
    ClusterError,
    connect,
    new_module,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_LOCK,
    PHASE_ALLOCATING,
    PHASE_FAILED,
    PHASE_SUCCESS,
    POD_BIND_PHASE,
    POD_BIND_TIME,
    POD_NODE,
    POD_TO_ALLOCATE,
    Allocation,
    HamiFormatError,
    Lock,
    format_allocation,
    parse_allocation,
    parse_lock,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._plugins import Plugins

Object = dict[str, Any]

NODES = "/api/v1/nodes"
PARALLEL = 8
POLL_S = 0.5
PROBLEMS_TOLD = 5
ENDED = ("Succeeded", "Failed")
# Why the scheduler looks at a pod no more until something else happens.
NOT_COMING = ("Unschedulable", "SchedulingGated")
OPTIONS: Object = {
    "pod": {"type": "str"},
    "namespace": {"type": "str"},
    "nodes": {"type": "list", "elements": "str"},
    "older_than_s": {"type": "int"},
    "wait": {"type": "bool", "default": False},
    "wait_timeout_s": {"type": "int", "default": 120},
    "scheduler_name": {"type": "str", "default": "hami-scheduler"},
    "force": {"type": "bool", "default": False},
}


class AllocationError(Exception):
    """What was asked for cannot or must not be done."""


@dataclass(frozen=True)
class Scope:
    """Which pods and locks are meant. Ages in seconds."""

    pod: str | None
    namespace: str | None
    nodes: frozenset[str]
    older_than_s: int
    scheduler_name: str = "hami-scheduler"

    @property
    def explicit(self) -> bool:
        """Whether pod or node were called by name; then what cannot be done is an error."""
        return bool(self.pod or self.nodes)

    @property
    def pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods" if self.namespace else "/api/v1/pods"

    def holds(self, lock: Lock) -> bool:
        """Whether a lock's holder is one of the pods that are meant."""
        return self.namespace in (None, lock.namespace) and self.pod in (None, lock.pod)


@dataclass
class Done:
    """What was done, in the order in which it was."""

    finished: list[Object] = field(default_factory=list)
    released: list[Object] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    def result(self, diff: bool) -> Object:
        told: Object = {
            "changed": bool(self.finished or self.released),
            # Ansible itself knows "finished" and "skipped", and means something else.
            "pods": self.finished,
            "locks": self.released,
            "left_alone": [f"{what}: {why}" for what, why in sorted(self.skipped.items())],
        }
        if diff:
            told["diff"] = {"before": "".join(self.before), "after": "".join(self.after)}
        return told


# --- reading pods and locks ---


def annotations_of(thing: Mapping[str, Any]) -> dict[str, str]:
    return thing["metadata"].get("annotations") or {}


def name_of(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def path_of(namespace: str, pod: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{pod}"


def is_left(pod: Object) -> bool:
    """Whether a pod is bound to its node and still waits for a plugin to hand out its cards.

    One that has run to its end meanwhile had them; one that failed may have failed for want of them.
    """
    return (
        annotations_of(pod).get(POD_BIND_PHASE) == PHASE_ALLOCATING
        and bool((pod.get("spec") or {}).get("nodeName"))
        and (pod.get("status") or {}).get("phase") != "Failed"
    )


def is_coming(pod: Object, scope: Scope) -> bool:
    """Whether a pod that has no node yet may get one: it is HAMi's, and was not refused."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    node = annotations_of(pod).get(POD_NODE)
    return (
        not spec.get("nodeName")
        and spec.get("schedulerName") == scope.scheduler_name
        and not (scope.nodes and node and node not in scope.nodes)
        and not any(
            condition.get("type") == "PodScheduled" and condition.get("reason") in NOT_COMING
            for condition in status.get("conditions") or []
        )
    )


def age_of(pod: Object, now: datetime) -> int:
    """For how many seconds a pod has been bound, or has existed if that is not written."""
    bound_at = annotations_of(pod).get(POD_BIND_TIME, "")
    if bound_at.isascii() and bound_at.isdigit() and len(bound_at) <= 11:
        return int(now.timestamp()) - int(bound_at)
    created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"].replace("Z", "+00:00"))
    return int((now - created).total_seconds())


def finishing(pod: Object) -> Object:
    """The merge patch that ends a pod's allocation. Raises HamiFormatError.

    Empties each container's place and then sets the phase: patchErasedAnnotation and PodAllocationTrySuccess,
    HAMi 2.10 pkg/device-plugin/nvidiadevice/nvinternal/plugin/util.go; here in one patch, so that nobody sees the half.
    """
    shares = parse_allocation(annotations_of(pod).get(POD_TO_ALLOCATE, ""))
    erased = format_allocation(tuple(() for _container in shares))
    return {"metadata": {"annotations": {POD_TO_ALLOCATE: erased, POD_BIND_PHASE: PHASE_SUCCESS}}}


def why_free(holder: Object | None, node: str) -> str:
    """Why a lock may be taken from its holder; empty if it may not.

    A holder without a node is just being bound; HAMi itself takes its lock when it is five minutes old.
    """
    if holder is None:
        return "its holder is gone"
    if (holder.get("status") or {}).get("phase") in ENDED:
        return "its holder has ended"
    bound_to = (holder.get("spec") or {}).get("nodeName")
    if bound_to and bound_to != node:
        return f"its holder is on {bound_to}"
    if bound_to and annotations_of(holder).get(POD_BIND_PHASE) in (PHASE_SUCCESS, PHASE_FAILED):
        return "its holder's allocation has ended"
    return ""


def described_shares(allocation: Allocation) -> list[Object]:
    return [
        {"container": position, "uuid": share.uuid, "memory_mib": share.memory_mib, "cores": share.cores}
        for position, container in enumerate(allocation)
        for share in container
    ]


# --- doing it ---


class Finisher:
    """Finishes what is left in one cluster; with ``dry`` it only tells what it would do."""

    def __init__(self, cluster: Cluster, scope: Scope, force: bool, dry: bool) -> None:
        self._cluster, self._scope, self._dry = cluster, scope, dry
        self._force = force
        self._plugins: Plugins | None = None
        self.done = Done()

    def run(self, wait_s: float | None = None) -> None:
        """Finish what is left, once, or until nothing comes any more. Raises AllocationError, ClusterError."""
        if wait_s is None or self._dry:
            self._pass()
            self._raise_problems()
            return
        deadline = time.monotonic() + wait_s
        while True:
            waiting = self._waiting()
            self._raise_problems()
            if not waiting:
                return
            if time.monotonic() > deadline:
                told = [*waiting[:PROBLEMS_TOLD], *(f"{what}: {why}" for what, why in self.done.skipped.items())]
                raise AllocationError(f"There is still waiting after {wait_s:g} s: {'; '.join(told)}.")
            time.sleep(POLL_S)

    def _waiting(self) -> list[str]:
        """Finish what is left; gives what still waits, which may be the API itself."""
        try:
            # In this order: a pod that is bound meanwhile must not be missed by both.
            return [*self._coming(), *self._pass()]
        except ClusterError as error:
            if error.status not in PASSING:
                raise
            return [str(error)]

    def _pass(self) -> list[str]:
        """Finish what is old enough, free what may be freed; gives the pods that are still too young."""
        now = datetime.now(timezone.utc)
        pods = [pod for pod in self._pods() if is_left(pod)]
        nodes = self._nodes(pods)
        old = [pod for pod in pods if age_of(pod, now) >= self._scope.older_than_s]
        locked = [node for node in nodes.values() if NODE_LOCK in annotations_of(node)]
        if (old or locked) and not self._force:
            self._plugins = self._plugins or Plugins(self._cluster)
        young = [f"{name_of(pod)} (not old enough)" for pod in pods if pod not in old]
        work = [pod for pod in old if self._may_touch(nodes.get(pod["spec"]["nodeName"]))]
        so_far = len(self.done.finished)
        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(lambda pod: self._finish(pod, nodes[pod["spec"]["nodeName"]], now), work))
            mine = {(each["namespace"], each["pod"]) for each in self.done.finished[so_far:]}
            list(pool.map(lambda node: self._free(node, mine, now), locked))
        return young

    def _pods(self) -> Iterable[Object]:
        """The pods that are meant and that HAMi has placed."""
        scope = self._scope
        if scope.pod:
            try:
                return [self._cluster.get(f"{scope.pods_path}/{scope.pod}")]
            except ClusterError as error:
                if error.status != 404:
                    raise
                raise AllocationError(f"There is no pod {scope.pod} in namespace {scope.namespace}.") from error
        selector = f"{POD_NODE}={next(iter(scope.nodes))}" if len(scope.nodes) == 1 else POD_NODE
        pods = self._cluster.list(scope.pods_path, labelSelector=selector)
        return [pod for pod in pods if not scope.nodes or pod["spec"].get("nodeName") in scope.nodes]

    def _nodes(self, pods: Iterable[Object]) -> dict[str, Object]:
        """The nodes that are meant: those named, those of the pod named, or all."""
        scope = self._scope
        wanted = {pod["spec"]["nodeName"] for pod in pods} if scope.pod else set(scope.nodes)
        if scope.pod and not wanted:
            return {}
        query = {"fieldSelector": f"metadata.name={next(iter(wanted))}"} if len(wanted) == 1 else {}
        listed = self._cluster.list(NODES, metadata_only=True, **query)
        found = {node["metadata"]["name"]: node for node in listed}
        missing = sorted(scope.nodes - set(found))
        if missing:
            raise AllocationError(f"There is no node {', '.join(missing)}.")
        return {name: node for name, node in found.items() if not scope.explicit or name in wanted}

    def _coming(self) -> list[str]:
        """The pods that HAMi has still to bind."""
        query = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
        pods = self._cluster.list(self._scope.pods_path, **query)
        return [
            f"{name_of(pod)} (not bound)"
            for pod in pods
            if is_coming(pod, self._scope) and self._scope.pod in (None, pod["metadata"]["name"])
        ]

    def _may_touch(self, node: Object | None) -> bool:
        if node is None:
            return False
        plugin = self._plugins.completing(node) if self._plugins else ""
        if plugin:
            why = f"{plugin} completes the allocations of this node itself"
            if self._scope.explicit:
                self.done.problems[node["metadata"]["name"]] = f"{why}; use force: true if it hangs"
            else:
                self.done.skipped[node["metadata"]["name"]] = why
        return not plugin

    def _finish(self, pod: Object, node: Object, now: datetime) -> None:
        metadata = pod["metadata"]

        def change(newest: Object) -> Object | None:
            is_same = newest["metadata"]["uid"] == metadata["uid"] and is_left(newest)
            return finishing(newest) if is_same else None

        try:
            shares = parse_allocation(annotations_of(pod).get(POD_TO_ALLOCATE, ""))
            if not self._edit(path_of(metadata["namespace"], metadata["name"]), change, pod):
                return
        except HamiFormatError as error:
            self.done.problems[name_of(pod)] = str(error)
            return
        except ClusterError as error:
            if error.status != 404:
                raise
            return
        self.done.finished.append(
            {
                "namespace": metadata["namespace"],
                "pod": metadata["name"],
                "node": pod["spec"]["nodeName"],
                "age_s": age_of(pod, now),
                "shares": described_shares(shares),
            }
        )
        self.done.before.append(f"pod {name_of(pod)}: {PHASE_ALLOCATING}\n")
        self.done.after.append(f"pod {name_of(pod)}: {PHASE_SUCCESS}\n")
        text = annotations_of(node).get(NODE_LOCK, "")
        self._release(
            node,
            # The old format names no holder; then it must be the very lock that was seen.
            lambda lock, found: (
                (lock.namespace, lock.pod) == (metadata["namespace"], metadata["name"])
                or (not lock.pod and found == text)
            ),
            "its allocation is finished",
            now,
        )

    def _free(self, node: Object, finished: set[tuple[str, str]], now: datetime) -> None:
        """Free a node's lock if nobody needs it any more."""
        name, text = node["metadata"]["name"], annotations_of(node)[NODE_LOCK]
        try:
            lock = parse_lock(text)
        except HamiFormatError as error:
            self.done.skipped[name] = f"{error}; delete the annotation {NODE_LOCK} of the node"
            return
        age_s = (now - lock.taken_at).total_seconds()
        is_meant = self._scope.holds(lock) and age_s >= self._scope.older_than_s and lock.pod
        if not is_meant or (lock.namespace, lock.pod) in finished:
            return
        reason = why_free(self._holder(lock), name)
        if reason and self._may_touch(node):
            self._release(node, lambda _lock, found: found == text, reason, now)

    def _holder(self, lock: Lock) -> Object | None:
        try:
            return self._cluster.get(path_of(lock.namespace, lock.pod))
        except ClusterError as error:
            if error.status != 404:
                raise
            return None

    def _release(self, node: Object, is_due: Callable[[Lock, str], bool], reason: str, now: datetime) -> None:
        """Delete a node's lock, as long as it is the one that is due (ReleaseNodeLock, HAMi 2.10 pkg/util/nodelock)."""
        name = node["metadata"]["name"]
        taken: list[Lock] = []

        def change(newest: Object) -> Object | None:
            taken.clear()
            text = annotations_of(newest).get(NODE_LOCK)
            if not text:
                return None
            lock = parse_lock(text)
            if not is_due(lock, text):
                return None
            taken.append(lock)
            return {"metadata": {"annotations": {NODE_LOCK: None}}}

        try:
            if not self._edit(f"{NODES}/{name}", change, node):
                return
        except HamiFormatError as error:
            self.done.skipped[name] = f"{error}; delete the annotation {NODE_LOCK} of the node"
            return
        except ClusterError as error:
            if error.status != 404:
                raise
            return
        (lock,) = taken
        age_s = int((now - lock.taken_at).total_seconds())
        self.done.released.append(
            {"node": name, "namespace": lock.namespace, "pod": lock.pod, "age_s": age_s, "reason": reason}
        )
        holder = f"{lock.namespace}/{lock.pod}" if lock.pod else "nobody that is named"
        self.done.before.append(f"node {name}: locked by {holder}\n")
        self.done.after.append(f"node {name}: not locked\n")

    def _edit(self, path: str, change: Callable[[Object], Object | None], thing: Object) -> bool:
        """Whether something was changed, or would be."""
        return change(thing) is not None if self._dry else self._cluster.edit(path, change, thing)

    def _raise_problems(self) -> None:
        if self.done.problems:
            told = [f"{what}: {why}" for what, why in sorted(self.done.problems.items())]
            raise AllocationError(f"{'; '.join(told[:PROBLEMS_TOLD])}.")


def main() -> None:
    module = new_module(
        OPTIONS,
        required_one_of=[["pod", "nodes", "older_than_s"]],
        mutually_exclusive=[["pod", "nodes"]],
        required_by={"pod": ["namespace"]},
    )
    params = module.params
    scope = Scope(
        params["pod"],
        params["namespace"],
        frozenset(params["nodes"] or ()),
        params["older_than_s"] or 0,
        params["scheduler_name"],
    )
    try:
        finisher = Finisher(connect(module), scope, params["force"], module.check_mode)
    except ClusterError as error:
        module.fail_json(msg=str(error))
    try:
        finisher.run(params["wait_timeout_s"] if params["wait"] else None)
    except (AllocationError, ClusterError) as error:
        module.fail_json(msg=str(error), **finisher.done.result(module._diff))
    module.exit_json(**finisher.done.result(module._diff))


if __name__ == "__main__":
    main()
