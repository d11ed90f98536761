# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The namespace in which a module tries pods: made for one run, and gone after it however the run ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import Cluster, ClusterError
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import LABEL_RUN, SERVICE_ACCOUNT

Object = dict[str, Any]

POLL_S = 0.25
CLEAN_UP_S = 20
STALE_AFTER_S = 3600
EXPIRES = "tenantry.gpu/verify-expires"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class InterruptedRunError(Exception):
    """A signal asked the module to end."""


class TrialNamespace:
    """A namespace with a service account of its own, for as long as a run needs it."""

    def __init__(self, cluster: Cluster, run: str, name: str) -> None:
        self._cluster, self._run = cluster, run
        self.name = name
        self.path = f"/api/v1/namespaces/{name}"

    def create(self, lifetime_s: float, labels: Mapping[str, str] | None = None) -> None:
        """Create it, and delete what killed runs have left for more than an hour. Raises ClusterError."""
        self._delete_stale()
        metadata = {
            "name": self.name,
            "labels": {**(labels or {}), LABEL_RUN: self._run},
            "annotations": {EXPIRES: str(int(time.time() + lifetime_s + STALE_AFTER_S))},
        }
        self._cluster.create("/api/v1/namespaces", {"metadata": metadata})
        self._cluster.create(f"{self.path}/serviceaccounts", {"metadata": {"name": SERVICE_ACCOUNT}})

    def _delete_stale(self) -> None:
        for namespace in self._cluster.list("/api/v1/namespaces", labelSelector=LABEL_RUN):
            expires = (namespace["metadata"].get("annotations") or {}).get(EXPIRES, "")
            if expires.isdigit() and int(expires) < time.time():
                self._cluster.delete(f"/api/v1/namespaces/{namespace['metadata']['name']}")

    def submit(self, pod: Object) -> Object:
        """Create a pod. One whose answer was lost is sent again: its name is nobody else's. Raises ClusterError."""
        path = f"{self.path}/pods"
        try:
            return self._cluster.create(path, pod)
        except ClusterError as error:
            if error.status not in (0, 409, 502, 503, 504):
                raise
        try:
            return self._cluster.create(path, pod)
        except ClusterError as error:
            if error.status != 409:
                raise
        return self._cluster.get(f"{path}/{pod['metadata']['name']}")

    def clean_up(self) -> bool:
        """Delete all that was created; wait, within bounds, until no pod is left. Whether that was seen."""
        started = time.monotonic()
        asked_at, gone = 0.0, False
        while time.monotonic() - started < CLEAN_UP_S and not gone:
            # A pod whose kubelet does not answer goes only by force.
            by_force = time.monotonic() - started > CLEAN_UP_S / 2
            with suppress(ClusterError):
                if not asked_at or by_force:
                    more = {"gracePeriodSeconds": "0"} if by_force else {}
                    self._cluster.delete(f"{self.path}/pods", **more)
                    self._cluster.delete(self.path)
                    asked_at = time.monotonic()
                gone = not any(self._cluster.list(f"{self.path}/pods"))
            if not gone:
                time.sleep(POLL_S)
        return gone


def denial_of(error: ClusterError) -> str:
    """What kept a pod from being admitted. Raises the error where it did not reach admission."""
    if error.status not in (400, 403, 422, 500) or "cannot create resource" in str(error):
        raise error
    return str(error)


def interrupt(number: int, frame: Any) -> None:
    """A handler of SIGNALS: the run ends, cleans up, and hears no second one meanwhile."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise InterruptedRunError(f"interrupted by {signal.Signals(number).name}")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals wait, for good, until what must be done is done."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
