# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who leads: the replica beside the kube-scheduler that holds the lease. The leader marks itself and greets nodes."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from urllib.parse import urlencode

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    LABEL_ROLE,
    NODE_HANDSHAKE,
    ROLE_FOLLOWER,
    ROLE_LEADER,
    format_handshake,
)

from .api import Api, ApiError, Json
from .cluster import Cluster

log = logging.getLogger(__name__)

BEAT_S = 15.0
COMPONENT = urlencode({"labelSelector": "app.kubernetes.io/component=hami-scheduler"})


class Lease:
    """The lease that the kube-scheduler beside us holds or not; takes it from a watch.

    IsLeader, HAMi 2.10 pkg/util/leaderelection/leaderelection.go.
    """

    def __init__(self, name: str, host: str, on_change: Callable[[], None]) -> None:
        self._name, self._host, self._on_change = name, host, on_change
        self._holder, self._valid_until = "", 0.0

    @property
    def ours(self) -> bool:
        return self._holder.startswith(self._host) and time.monotonic() < self._valid_until

    def replace(self, items: list[Json]) -> None:
        if not items:
            self._valid_until = 0.0
        for lease in items:
            self.apply(lease, deleted=False)

    def apply(self, obj: Json, deleted: bool) -> None:
        if obj["metadata"]["name"] != self._name:
            return
        before, spec = self._holder, obj.get("spec") or {}
        self._holder = "" if deleted else spec.get("holderIdentity") or ""
        self._valid_until = time.monotonic() + (spec.get("leaseDurationSeconds") or 0)
        if before != self._holder:
            log.info("the lease %s is held by %s", self._name, self._holder or "nobody")
            self._on_change()


class Always:
    """Without leader election the only replica leads."""

    ours = True


class Leader(threading.Thread):
    """While we lead: marks this pod as leader and the others as followers, and stamps the nodes' handshake.

    register, updateSchedulerLabel, HAMi 2.10 pkg/scheduler/scheduler.go; at once, not only at each beat.
    """

    def __init__(self, api: Api, cluster: Cluster, lease: Lease | Always, namespace: str, pod: str) -> None:
        super().__init__(name="leader", daemon=True)
        self._api, self._cluster, self.lease = api, cluster, lease
        self._namespace, self._pod = namespace, pod
        self._wake = threading.Event()

    def wake(self) -> None:
        self._wake.set()

    def run(self) -> None:
        while True:
            pause_s = BEAT_S
            if self.lease.ours:
                try:
                    self._mark_pods()
                    self._greet_nodes()
                except ApiError as error:
                    log.warning("as leader: %s", error)
                    pause_s = 1.0
            self._wake.wait(pause_s)
            self._wake.clear()

    def _mark_pods(self) -> None:
        if not self._pod:
            return
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        for pod in self._api.get(f"{path}?{COMPONENT}")["items"]:
            name = pod["metadata"]["name"]
            role = ROLE_LEADER if name == self._pod else ROLE_FOLLOWER
            if (pod["metadata"].get("labels") or {}).get(LABEL_ROLE) != role:
                self._api.patch(f"{path}/{name}", {"metadata": {"labels": {LABEL_ROLE: role}}})
                log.info("pod %s is marked as %s", name, role)

    def _greet_nodes(self) -> None:
        """CheckHealth, HAMi 2.10 pkg/device/devices.go."""
        for record in self._cluster.declared():
            if "Requesting" not in record.handshake:
                stamp = format_handshake(datetime.now())
                patch = {"metadata": {"annotations": {NODE_HANDSHAKE: stamp}}}
                self._api.patch(f"/api/v1/nodes/{record.node.name}", patch)
