# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Events on pods, with the reasons and the component that HAMi uses."""

import logging
import queue
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime

from .api import Api, ApiError, Json

log = logging.getLogger(__name__)

FILTERING_FAILED = "FilteringFailed"
FILTERING_SUCCEED = "FilteringSucceed"
BINDING_FAILED = "BindingFailed"
BINDING_SUCCEED = "BindingSucceed"

REMEMBERED = 1000


@dataclass(frozen=True)
class _Note:
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    warning: bool


class Events(threading.Thread):
    """Writes events in the background; one said again is counted up, not written twice."""

    def __init__(self, api: Api, component: str) -> None:
        super().__init__(name="events", daemon=True)
        self._api, self._component = api, component
        self._queue: queue.Queue[_Note] = queue.Queue(maxsize=1000)
        self._written: OrderedDict[_Note, tuple[str, int]] = OrderedDict()

    def tell(self, pod: Json, reason: str, message: str) -> None:
        """Say something about a pod; never waits. Reasons that end in Failed are warnings."""
        metadata = pod["metadata"]
        note = _Note(
            metadata["namespace"], metadata["name"], metadata["uid"], reason, message, reason.endswith("Failed")
        )
        try:
            self._queue.put_nowait(note)
        except queue.Full:
            log.warning("event lost: %s", note)

    def run(self) -> None:
        while True:
            note = self._queue.get()
            try:
                self._write(note)
            except ApiError as error:
                log.warning("event %s of pod %s/%s: %s", note.reason, note.namespace, note.name, error)

    def _write(self, note: _Note) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = f"/api/v1/namespaces/{note.namespace}/events"
        if note in self._written:
            name, count = self._written[note]
            try:
                self._api.patch(f"{path}/{name}", {"count": count + 1, "lastTimestamp": now})
                self._written[note] = (name, count + 1)
                return
            except ApiError as error:
                if error.status != 404:
                    raise
        name = f"{note.name}.{time.time_ns():x}"
        self._api.create(path, self._event(note, name, now))
        self._written[note] = (name, 1)
        self._written.move_to_end(note)
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)

    def _event(self, note: _Note, name: str, now: str) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": note.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": note.namespace,
                "name": note.name,
                "uid": note.uid,
            },
            "reason": note.reason,
            "message": note.message[:1024],
            "type": "Warning" if note.warning else "Normal",
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
