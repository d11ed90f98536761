# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of jobs on a cluster in memory, on which a pod becomes what a test says of it."""

from __future__ import annotations

import copy
import json
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.tenantry.gpu.plugins.module_utils import _trial
from ansible_collections.tenantry.gpu.plugins.module_utils._acceptance import Plan, TrialCard
from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import ClusterError
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import Setting
from ansible_collections.tenantry.gpu.plugins.modules import gpu_acceptance_verify as module

Object = dict[str, Any]

UUID = "GPU-6d0c1c9b-6a53-5c6e-9d7f-0d7b1f0f6b0e"
IMAGE = "registry.example.com/python@sha256:" + 64 * "a"
PLAN = Plan(TrialCard("gpu-0", UUID, 16384), IMAGE, native=False)
STAGES = [["whole"], ["share"], ["half-0", "half-1"], ["memory", "children", "exec", "bare", "bare-all", "exhaust"]]


def ended(pod: Object) -> Object:
    """The state of a pod whose probe went well and told nothing but its work."""
    message = json.dumps({"iterations": 77, "repeat_ms": [1.0], "repeat_gfma": 1.0})
    terminated = {"exitCode": 0, "reason": "Completed", "message": message}
    return {"phase": "Succeeded", "containerStatuses": [{"name": "c0", "state": {"terminated": terminated}}]}


def stays(pod: Object) -> Object:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    return {"phase": "Pending", "conditions": [condition]}


class FakeCluster:
    """``state`` gives the status of every new pod, or raises; DELETE removes pods."""

    def __init__(self, state: Callable[[Object], Object] = ended) -> None:
        self.state = state
        self.namespaces: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.configmaps: dict[str, Object] = {}
        self.created: list[Object] = []
        self.together: list[list[str]] = []
        self.fail: dict[str, ClusterError] = {}
        self._changes: queue.Queue[tuple[str, Object]] = queue.Queue()

    def impatient(self) -> FakeCluster:
        return self

    def create(self, path: str, body: Object, **query: str) -> Object:
        kind, name = path.rsplit("/", 1)[1], body["metadata"]["name"]
        if kind in self.fail:
            raise self.fail[kind]
        if kind == "namespaces":
            self.namespaces[name] = body
        elif kind == "configmaps":
            self.configmaps[name] = body
        elif kind == "pods":
            pod = copy.deepcopy(body)
            self.created.append(body)
            pod["status"] = self.state(pod)
            pod["spec"]["schedulerName"] = "hami-scheduler"
            self.pods[name] = pod
            self.together.append(sorted(self.pods))
            self._changes.put(("ADDED", copy.deepcopy(pod)))
        return body

    def get(self, path: str, **query: str) -> Object:
        return {"metadata": {"resourceVersion": "1"}, "items": list(self.pods.values())}

    def list(self, path: str, **query: str) -> Iterator[Object]:
        kinds: dict[str, Any] = {"pods": self.pods, "namespaces": self.namespaces, "events": {}}
        return iter([*kinds[path.rsplit("/", 1)[1]].values()])

    def delete(self, path: str, **query: str) -> None:
        name = path.rsplit("/", 1)[1]
        self.namespaces.pop(name, None)
        for pod in [*self.pods] if name == "pods" else [name]:
            if pod in self.pods:
                self._changes.put(("DELETED", self.pods.pop(pod)))

    def watch(self, path: str, resource_version: str, **query: str) -> Iterator[tuple[str, Object]]:
        while True:
            yield self._changes.get()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"POLL_S": 0.01, "PATIENCE_S": 0.1, "GONE_S": 1}.items():
        monkeypatch.setattr(module, name, value)
    for name, value in {"POLL_S": 0.01, "CLEAN_UP_S": 1}.items():
        monkeypatch.setattr(_trial, name, value)


def run(cluster: FakeCluster, timeout_s: float = 10) -> module.Run:
    setting = Setting("1f3a", "gpu-verify-1f3a", IMAGE)
    made = module.Run(cluster, PLAN, setting, "hami-scheduler")  # type: ignore[arg-type]
    made.run("the script", timeout_s)
    return made


def test_stages_follow_one_another_and_everything_is_gone_afterwards() -> None:
    cluster = FakeCluster()
    done = run(cluster)
    assert [pod["metadata"]["name"] for pod in cluster.created] == [name for stage in STAGES for name in stage]
    # No job of a stage meets one of another.
    for names in cluster.together:
        assert any(set(names) <= set(stage) for stage in STAGES)
    assert done.cleaned_up and not cluster.pods and not cluster.namespaces
    assert cluster.configmaps["probe"]["data"] == {"probe.py": "the script"}


def test_the_namespace_enforces_the_restricted_standard() -> None:
    labels: list[Object] = []
    cluster = FakeCluster(lambda pod: labels.append(next(iter(cluster.namespaces.values()))["metadata"]) or ended(pod))
    run(cluster)
    assert labels[0]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_later_jobs_get_the_work_of_the_first() -> None:
    cluster = FakeCluster()
    run(cluster)
    commands = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["command"] for pod in cluster.created}
    assert "--iterations" not in commands["whole"]
    assert commands["half-1"][-2:] == ["--iterations", "77"]


def test_pods_that_nobody_takes_end_after_a_while_and_shares_are_not_tried() -> None:
    cluster = FakeCluster(stays)
    done = run(cluster)
    assert done.outcomes["whole"].problem == "0/1 nodes are available"
    assert done.outcomes["share"].problem.startswith("not tried, since there is nothing to compare with: whole: it did")
    assert [pod["metadata"]["name"] for pod in cluster.created] == ["whole", *STAGES[-1]]


def test_a_pod_that_is_denied_is_no_error_of_the_run() -> None:
    def deny(pod: Object) -> Object:
        if pod["metadata"]["name"] == "bare-all":
            raise ClusterError("POST pods: 403 NVIDIA_VISIBLE_DEVICES is not allowed", 403)
        return ended(pod)

    done = run(FakeCluster(deny))
    assert done.outcomes["bare-all"].denied
    assert "NVIDIA_VISIBLE_DEVICES is not allowed" in done.outcomes["bare-all"].problem


def test_a_job_that_is_deleted_by_somebody_else_is_told() -> None:
    cluster = FakeCluster()

    def state(pod: Object) -> Object:
        if pod["metadata"]["name"] == "share":
            cluster._changes.put(("DELETED", pod))
            return {"phase": "Running"}
        return ended(pod)

    cluster.state = state
    assert run(cluster).outcomes["share"].problem == "it was deleted by somebody else"


def test_what_has_not_ended_when_the_time_is_over_says_so() -> None:
    done = run(FakeCluster(lambda pod: {"phase": "Running"}), timeout_s=0.3)
    assert done.outcomes["whole"].problem == "the time was over"
    assert done.cleaned_up


def test_a_run_that_cannot_go_on_cleans_up() -> None:
    cluster = FakeCluster()
    cluster.fail["pods"] = ClusterError("POST pods: 401 the token has expired", 401)
    with pytest.raises(ClusterError, match="the token has expired"):
        run(cluster)
    assert not cluster.namespaces


def test_an_interrupted_run_cleans_up() -> None:
    cluster = FakeCluster()

    def interrupt(pod: Object) -> Object:
        if pod["metadata"]["name"] == "share":
            raise _trial.InterruptedRunError("interrupted by SIGTERM")
        return ended(pod)

    cluster.state = interrupt
    with pytest.raises(_trial.InterruptedRunError):
        run(cluster)
    assert not cluster.pods and not cluster.namespaces
