# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An API in memory, for modules that read, change and race."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.tenantry.gpu.plugins.module_utils import _cluster

Object = dict[str, Any]


class MemoryCluster(_cluster.Cluster):
    """Objects by path, with resource versions and merge patches.

    ``calls`` records (verb, path). ``before_patch`` is called with each patch's path, to change things
    meanwhile or to raise.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.objects: dict[str, Object] = {}
        self.calls: list[tuple[str, str]] = []
        self.before_patch: Callable[[str], None] = lambda path: None
        self._version = 0
        self._mutex = threading.RLock()

    def put(self, path: str, thing: Object) -> Object:
        """Store an object under a version of its own."""
        with self._mutex:
            self._version += 1
            thing["metadata"]["resourceVersion"] = str(self._version)
            self.objects[path] = thing
            return thing

    def annotate(self, path: str, **annotations: str | None) -> None:
        """Change annotations of hami.io, as somebody else does it; ``mutex_lock`` is mutex.lock."""
        thing = self.objects[path]
        names = {
            f"hami.io/{key.replace('mutex_lock', 'mutex.lock').replace('_', '-')}": annotations[key]
            for key in annotations
        }
        merged = _merged(thing["metadata"].get("annotations") or {}, names)
        self.put(path, {**thing, "metadata": {**thing["metadata"], "annotations": merged}})

    def annotations(self, path: str) -> dict[str, str]:
        return dict(self.objects[path]["metadata"].get("annotations") or {})

    def verbs(self, verb: str) -> list[str]:
        return [path for called, path in self.calls if called == verb]

    def get(self, path: str, **query: str) -> Object:
        self.calls.append(("get", path))
        return copy.deepcopy(self._at(path))

    def list(self, path: str, metadata_only: bool = False, **query: str) -> Iterator[Object]:
        self.calls.append(("list", path))
        parent = path.replace("/api/v1/pods", "/api/v1/namespaces/").replace("/apis/apps/v1/daemonsets", "daemonsets")
        kind = path.rsplit("/", 1)[-1]
        with self._mutex:
            things = [
                thing
                for key, thing in self.objects.items()
                if key.startswith(parent) and key.split("/")[-2] == kind and _selected(thing, query)
            ]
        kept = ("metadata",) if metadata_only else ("metadata", "spec", "status")
        return iter([copy.deepcopy({key: thing[key] for key in kept if key in thing}) for thing in things])

    def patch(self, path: str, body: Object) -> Object:
        self.calls.append(("patch", path))
        self.before_patch(path)
        with self._mutex:
            path = path.removesuffix("/status")
            thing = self._at(path)
            version = body["metadata"].get("resourceVersion")
            if version not in (None, thing["metadata"]["resourceVersion"]):
                raise _cluster.ClusterError(f"PATCH {path}: 409 the object has been modified", 409)
            return self.put(path, _merged(thing, body))

    def _at(self, path: str) -> Object:
        if path not in self.objects:
            raise _cluster.ClusterError(f"{path} not found", 404)
        return self.objects[path]


def _merged(thing: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(thing) if isinstance(thing, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _selected(thing: Object, query: dict[str, str]) -> bool:
    labels = thing["metadata"].get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, equals, value = term.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        field, _equals, value = term.partition("=")
        found: Any = thing
        for part in field.split("."):
            found = (found or {}).get(part)
        if (found or "") != value:
            return False
    return True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    monkeypatch.setattr(_cluster, "EDIT_PAUSE_S", 0.001)
    monkeypatch.setattr(_cluster, "EDIT_PATIENCE_S", 0.2)
    return MemoryCluster()


def _daemon_set(cluster: MemoryCluster, name: str, node: str, labels: dict[str, str], **container: Any) -> None:
    selector = {"daemon": name}
    cluster.put(
        f"daemonsets/{name}",
        {
            "metadata": {"namespace": "kube-system", "name": name, "uid": name},
            "spec": {
                "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": {**selector, **labels}}, "spec": {"containers": [container]}},
            },
        },
    )
    cluster.put(
        f"/api/v1/namespaces/kube-system/pods/{name}-{node}",
        {
            "metadata": {
                "namespace": "kube-system",
                "name": f"{name}-{node}",
                "labels": {**selector, **labels},
                "ownerReferences": [{"uid": name}],
            },
            "spec": {"nodeName": node},
            "status": {"phase": "Running"},
        },
    )


@pytest.fixture
def daemon_set(cluster: MemoryCluster) -> Callable[..., None]:
    """Run a DaemonSet on a node: its name, the node, its labels, and its container's fields."""

    def run(name: str, node: str, labels: dict[str, str], **container: Any) -> None:
        _daemon_set(cluster, name, node, labels, **container)

    return run
