# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which device plugin serves a node, and what it does by itself: the one place that recognises them.

A plugin is a DaemonSet that one knows by its chart's labels or by its program; it serves the nodes on which
a pod of it runs. A node that kwok plays has no kubelet, so nothing serves it, whatever pods it shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import Cluster
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_HANDSHAKE,
    HamiFormatError,
    parse_handshake,
)

Object = dict[str, Any]

KWOK_NODE = "kwok.x-k8s.io/node"

# HAMi's chart 2.6 to 2.10 (templates/device-plugin/daemonsetnvidia.yaml and daemonsetmock.yaml).
_COMPONENT = "app.kubernetes.io/component"
_HAMI, _HAMI_MOCK = "hami-device-plugin", "hami-mock-device-plugin"
# NVIDIA's own, as its chart, its manifest and its operator label it.
_NVIDIA_LABELS = (
    ("app.kubernetes.io/name", "nvidia-device-plugin"),
    ("name", "nvidia-device-plugin-ds"),
    ("app", "nvidia-device-plugin-daemonset"),
)
# The program of both HAMi's and NVIDIA's plugin.
_PROGRAM = "nvidia-device-plugin"
_SIMULATOR = ("app.kubernetes.io/name", "gpu-simulator")
_SIMULATOR_LIFECYCLE = "LIFECYCLE"


@dataclass(frozen=True)
class Plugin:
    """A device plugin: registers means that it writes its node's register, completes that it ends allocations."""

    name: str
    registers: bool = True
    completes: bool = True


def plugin_of(daemon_set: Mapping[str, Any]) -> Plugin | None:
    """The plugin that a DaemonSet is, if it is one."""
    metadata, template = daemon_set["metadata"], daemon_set["spec"]["template"]
    labels = (template.get("metadata") or {}).get("labels") or {}
    containers = template["spec"].get("containers") or []
    name = f"{metadata['namespace']}/{metadata['name']}"
    if labels.get(_COMPONENT) == _HAMI_MOCK:
        # It writes no annotation and its Allocate answers with nothing (internal/pkg/mock/server.go, version 1.0.1).
        return Plugin(name, registers=False, completes=False)
    if labels.get(_SIMULATOR[0]) == _SIMULATOR[1]:
        return Plugin(name, completes=_environment(containers).get(_SIMULATOR_LIFECYCLE, "full") == "full")
    if labels.get(_COMPONENT) == _HAMI or any(labels.get(key) == value for key, value in _NVIDIA_LABELS):
        return Plugin(name)
    return Plugin(name) if any(_program(container) == _PROGRAM for container in containers) else None


def _environment(containers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {
        variable["name"]: variable.get("value", "")
        for container in containers
        for variable in container.get("env") or []
    }


def _program(container: Mapping[str, Any]) -> str:
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    return str(command[0]).rsplit("/", 1)[-1] if command else ""


class Plugins:
    """The plugins of one cluster. Needs to list DaemonSets, and the pods of those that are plugins."""

    def __init__(self, cluster: Cluster) -> None:
        self._serving: dict[str, list[Plugin]] = {}
        for daemon_set in cluster.list("/apis/apps/v1/daemonsets"):
            plugin = plugin_of(daemon_set)
            if plugin is not None:
                for node in _nodes_of(cluster, daemon_set):
                    self._serving.setdefault(node, []).append(plugin)

    def registering(self, node: Mapping[str, Any]) -> str:
        """The plugin that writes the register of a node; empty if none does."""
        return self._find(node, "registers")

    def completing(self, node: Mapping[str, Any]) -> str:
        """The plugin that completes the allocations of a node; empty if none does."""
        return self._find(node, "completes")

    def _find(self, node: Mapping[str, Any], what: str) -> str:
        annotations = node["metadata"].get("annotations") or {}
        if KWOK_NODE in annotations:
            return ""
        found = [plugin.name for plugin in self._serving.get(node["metadata"]["name"], ()) if getattr(plugin, what)]
        if not found and _has_reported(annotations.get(NODE_HANDSHAKE, "")):
            return "a plugin of HAMi 2.7 or older (its handshake says so)"
        return found[0] if found else ""


def _has_reported(handshake: str) -> bool:
    """Whether a plugin of HAMi 2.6 or 2.7 has just answered; the scheduler overwrites it within seconds."""
    try:
        return parse_handshake(handshake).state == "reported"
    except HamiFormatError:
        return False


def _nodes_of(cluster: Cluster, daemon_set: Mapping[str, Any]) -> Iterable[str]:
    """The nodes on which a DaemonSet's pods run; one that never started serves nothing yet."""
    metadata = daemon_set["metadata"]
    selector = _selector(daemon_set["spec"]["selector"])
    for pod in cluster.list(f"/api/v1/namespaces/{metadata['namespace']}/pods", labelSelector=selector):
        owners = {owner["uid"] for owner in pod["metadata"].get("ownerReferences") or []}
        if metadata["uid"] in owners and (pod.get("status") or {}).get("phase") == "Running":
            yield pod["spec"]["nodeName"]


def _selector(selector: Mapping[str, Any]) -> str:
    """A LabelSelector as the query of a list."""
    terms = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or []:
        key, values = expression["key"], ",".join(expression.get("values") or [])
        operator = expression["operator"]
        if operator in ("In", "NotIn"):
            terms.append(f"{key} {operator.lower()} ({values})")
        else:
            terms.append(key if operator == "Exists" else f"!{key}")
    return ",".join(terms)
