# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the stand-in: `scheduler --http_bind=0.0.0.0:443 ...`."""

import logging
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType

from .api import Api, Json, Reflector
from .cluster import Cluster, NodeSink, PodSink, QuotaSink
from .events import Events
from .extender import Extender
from .flags import Settings, parse_flags
from .leader import Always, Leader, Lease
from .metrics import exposition
from .nodelock import NodeLocks
from .server import handler, serve
from .webhook import review

log = logging.getLogger("standin_hami")

# Less than the 30 s after which the kube-scheduler stops waiting for a filter.
SYNC_TIMEOUT_S = 25.0


class Scheduler:
    """All parts, put together."""

    def __init__(self, settings: Settings, api: Api) -> None:
        self._settings = settings
        rules = settings.rules
        self._cluster = Cluster(on_node=self._node_changed)
        self._events = Events(api, rules.scheduler_name)
        locks = NodeLocks(api, settings.lock_timeout)
        waits = {"wait": settings.lock_wait, "group_wait": settings.lock_group_wait}
        self._extender = Extender(api, self._cluster, locks, self._events, rules, **waits)
        selector = {"labelSelector": settings.node_selector} if settings.node_selector else {}
        self._reflectors = [
            Reflector(api, "/api/v1/nodes", NodeSink(self._cluster), selector),
            Reflector(api, "/api/v1/pods", PodSink(self._cluster)),
            Reflector(api, "/api/v1/resourcequotas", QuotaSink(self._cluster)),
        ]
        lease = self._follow_lease(api) if settings.leader_elect else Always()
        namespace, pod = os.environ.get("POD_NAMESPACE", ""), os.environ.get("POD_NAME", "")
        self._leader = Leader(api, self._cluster, lease, namespace, pod)

    def _follow_lease(self, api: Api) -> Lease:
        settings = self._settings
        lease = Lease(settings.lease_name, socket.gethostname(), self._node_changed)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{settings.lease_namespace}/leases"
        self._reflectors.append(Reflector(api, path, lease, {"fieldSelector": f"metadata.name={settings.lease_name}"}))
        return lease

    def _node_changed(self) -> None:
        self._leader.wake()

    def run(self) -> None:
        """Start everything; the threads go on until the process ends."""
        settings = self._settings
        for thread in (*self._reflectors, self._events, self._leader):
            thread.start()
        posts = {"/webhook": self._review, "/filter": self._filter, "/bind": self._extender.bind}
        gets = {"/healthz": lambda: "ok", "/readyz": lambda: "ok"}
        serve(settings.bind, handler(posts, gets), settings.certificate, settings.key)
        serve(settings.metrics_bind, handler({}, {"/metrics": lambda: exposition(self._cluster)}), None, None)
        log.info("serving at %s, metrics at %s", settings.bind, settings.metrics_bind)

    def _review(self, body: Json) -> Json:
        return review(body, self._cluster, self._settings.rules)

    def _filter(self, args: Json) -> Json:
        """Only the leader judges, and only once it knows the cluster."""
        deadline = time.monotonic() + SYNC_TIMEOUT_S
        while not (self._leader.lease.ours and all(reflector.synced.is_set() for reflector in self._reflectors)):
            if time.monotonic() > deadline:
                return {"Error": "the scheduler does not lead or has not seen the cluster yet"}
            time.sleep(0.1)
        return self._extender.filter(args)


def main() -> int:
    settings = parse_flags(sys.argv[1:])
    logging.basicConfig(
        level=logging.DEBUG if settings.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        log.info("stopping on %s", signal.Signals(number).name)
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    Scheduler(settings, Api.here(settings.api_timeout_s)).run()
    stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
