# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lock of a node: taken at bind, given back by the device plugin once the cards are handed out."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_LOCK,
    HamiFormatError,
    Lock,
    format_lock,
    parse_lock,
)

from .api import Api, ApiError
from .cluster import annotations_of

log = logging.getLogger(__name__)

TRIES = 5


class LockError(Exception):
    """The lock cannot be had."""


class LockContentionError(LockError):
    """Another pod holds the lock."""


class NodeLocks:
    """LockNode, ReleaseNodeLock: HAMi 2.10 pkg/util/nodelock/nodelock.go."""

    def __init__(self, api: Api, timeout: timedelta, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._api, self._timeout, self._now = api, timeout, now
        self._mutexes: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def take(self, node: str, namespace: str, pod: str) -> None:
        """Take a node's lock for a pod, away from a holder that is gone or too old; LockError otherwise."""
        with self._mutexes[node]:
            for _try in range(TRIES):
                found = self._api.get(f"/api/v1/nodes/{node}")
                held = annotations_of(found).get(NODE_LOCK)
                if held is not None and self._is_ours(node, held, namespace, pod):
                    return
                lock = format_lock(Lock(self._now().replace(microsecond=0), namespace, pod))
                if self._write(node, lock, found["metadata"]["resourceVersion"]):
                    return
        raise LockError(f"failed to set node lock (node={node}): the node changed {TRIES} times in between")

    def release(self, node: str, namespace: str, pod: str) -> None:
        """Give a node's lock back, if this pod holds it."""
        with self._mutexes[node]:
            for _try in range(TRIES):
                found = self._api.get(f"/api/v1/nodes/{node}")
                if not annotations_of(found).get(NODE_LOCK, "").endswith(f",{namespace},{pod}"):
                    return
                if self._write(node, None, found["metadata"]["resourceVersion"]):
                    return
        raise LockError(f"failed to release node lock (node={node}): the node changed {TRIES} times in between")

    def _is_ours(self, node: str, held: str, namespace: str, pod: str) -> bool:
        """Whether the pod has the lock already; False means that it may take it."""
        try:
            lock = parse_lock(held)
        except HamiFormatError as error:
            raise LockError(str(error)) from error
        if self._now() - lock.taken_at > self._timeout:
            log.info("node %s: the lock %s has expired", node, held)
            return False
        if (lock.namespace, lock.pod) == (namespace, pod):
            return True
        if lock.pod and self._is_gone(lock):
            log.info("node %s: the holder of lock %s is gone", node, held)
            return False
        within = format_duration(self._timeout)
        raise LockContentionError(f"node {node} has been locked within {within}: node lock contention")

    def _is_gone(self, lock: Lock) -> bool:
        try:
            self._api.get(f"/api/v1/namespaces/{lock.namespace}/pods/{lock.pod}")
        except ApiError as error:
            if error.status == 404:
                return True
            raise
        return False

    def _write(self, node: str, lock: str | None, version: str) -> bool:
        """Write the annotation; False where the node has changed since it was read."""
        metadata = {"annotations": {NODE_LOCK: lock}, "resourceVersion": version}
        try:
            self._api.patch(f"/api/v1/nodes/{node}", {"metadata": metadata})
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True


def format_duration(duration: timedelta) -> str:
    """Write a duration as Go does: 5m0s, 1h0m0s, 30s."""
    seconds = duration.total_seconds()
    hours, rest = divmod(int(seconds), 3600)
    minutes = rest // 60
    tail = f"{seconds - hours * 3600 - minutes * 60:g}s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + tail
