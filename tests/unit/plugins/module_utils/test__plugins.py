# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.tenantry.gpu.plugins.module_utils import _plugins as plugins

COMPONENT = "app.kubernetes.io/component"
SIMULATOR = {"app.kubernetes.io/name": "gpu-simulator"}


def daemon_set(labels: dict[str, str], **container: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", **container}]}}
    return {"metadata": {"namespace": "ns", "name": "d"}, "spec": {"template": template}}


@pytest.mark.parametrize(
    ("labels", "container", "does"),
    [
        ({COMPONENT: "hami-device-plugin"}, {}, (True, True)),
        ({COMPONENT: "hami-mock-device-plugin"}, {}, (False, False)),
        ({"app.kubernetes.io/name": "nvidia-device-plugin"}, {}, (True, True)),
        ({"name": "nvidia-device-plugin-ds"}, {}, (True, True)),
        ({}, {"command": ["nvidia-device-plugin"]}, (True, True)),
        ({}, {"args": ["/usr/bin/nvidia-device-plugin", "--x"]}, (True, True)),
        (SIMULATOR, {}, (True, True)),
        (SIMULATOR, {"env": [{"name": "LIFECYCLE", "value": "full"}]}, (True, True)),
        (
            SIMULATOR,
            {"env": [{"name": "NODE_NAME", "valueFrom": {}}, {"name": "LIFECYCLE", "value": "none"}]},
            (True, False),
        ),
        ({COMPONENT: "hami-scheduler"}, {"command": ["scheduler"]}, None),
        ({}, {}, None),
    ],
)
def test_a_plugin_is_known_by_its_labels_or_program(labels: Any, container: Any, does: Any) -> None:
    found = plugins.plugin_of(daemon_set(labels, **container))
    assert (found and (found.name, found.registers, found.completes)) == (does and ("ns/d", *does))


def test_a_selector_becomes_a_query() -> None:
    expressions = [
        {"key": "b", "operator": "In", "values": ["x", "y"]},
        {"key": "c", "operator": "NotIn", "values": ["z"]},
        {"key": "d", "operator": "Exists"},
        {"key": "e", "operator": "DoesNotExist"},
    ]
    query = plugins._selector({"matchLabels": {"a": "1"}, "matchExpressions": expressions})
    assert query == "a=1,b in (x,y),c notin (z),d,!e"


def test_only_running_pods_of_the_daemon_set_serve() -> None:
    def pod(node: str, owner: str = "u", phase: str = "Running") -> dict[str, Any]:
        return {
            "metadata": {"ownerReferences": [{"uid": owner}]},
            "spec": {"nodeName": node},
            "status": {"phase": phase},
        }

    class Cluster:
        def list(self, path: str, **query: str) -> Any:
            if path == "/apis/apps/v1/daemonsets":
                found = daemon_set({COMPONENT: "hami-device-plugin"})
                found["metadata"]["uid"] = "u"
                found["spec"]["selector"] = {"matchLabels": {"a": "1"}}
                return [found]
            assert (path, query) == ("/api/v1/namespaces/ns/pods", {"labelSelector": "a=1"})
            return [pod("n1"), pod("n2", owner="other"), pod("n3", phase="Pending"), pod("n4")]

    found = plugins.Plugins(Cluster())  # type: ignore[arg-type]

    def node(name: str, **annotations: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "annotations": annotations}}

    assert [found.registering(node(name)) for name in ("n1", "n2", "n3", "n4")] == ["ns/d", "", "", "ns/d"]
    assert found.completing(node("n1")) == "ns/d"
    assert found.completing(node("n1", **{"kwok.x-k8s.io/node": "fake"})) == ""
