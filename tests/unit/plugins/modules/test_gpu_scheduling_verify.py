# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of cases on a cluster in memory, whose scheduler does what a test tells it."""

from __future__ import annotations

import copy
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.tenantry.gpu.plugins.module_utils import _trial
from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import ClusterError
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import (
    LIMITS_END,
    Limit,
    Setting,
    case_from_options,
)
from ansible_collections.tenantry.gpu.plugins.modules import gpu_scheduling_verify as module

Object = dict[str, Any]

NO_LIMIT = Limit()
SHARE = "GPU-1,NVIDIA,20000,30:;"
LOG = f"CUDA_DEVICE_MEMORY_LIMIT_0=20000m\nCUDA_DEVICE_SM_LIMIT=30\n{LIMITS_END}\n"


def place(pod: Object) -> Object:
    annotations = {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-devices-allocated": SHARE,
        "hami.io/vgpu-devices-to-allocate": ";",
        "hami.io/bind-phase": "success",
    }
    return {"annotations": annotations, "nodeName": "n1", "phase": "Running"}


def refuse(reason: str) -> Callable[[Object], Object]:
    return lambda pod: {"condition": f"0/1 nodes are available: 1/1 {reason}", "event": f"1 nodes {reason}(n1)"}


class FakeCluster:
    """Pods get what ``scheduler`` says of them when they are created; DELETE removes them."""

    def __init__(self, scheduler: Callable[[Object], Object]) -> None:
        self.scheduler = scheduler
        self.namespaces: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.events: list[Object] = []
        self.created: list[str] = []
        self.log = LOG
        self.lock = ""
        self.quotas: list[Object] = []
        self.lose_answers = 0
        self.fail: dict[str, ClusterError] = {}
        self._changes: queue.Queue[tuple[str, Object]] = queue.Queue()

    def impatient(self) -> FakeCluster:
        return self

    def create(self, path: str, body: Object, **query: str) -> Object:
        self._maybe_fail(f"POST {path.rsplit('/', 1)[1]}")
        name = body["metadata"]["name"]
        if path.endswith("/namespaces"):
            self.namespaces[name] = body
        elif path.endswith("/pods"):
            if name in self.pods:
                raise ClusterError("already exists", 409)
            self.created.append(name)
            self.pods[name] = self._scheduled(body)
            self._changes.put(("ADDED", copy.deepcopy(self.pods[name])))
            if self.lose_answers:
                self.lose_answers -= 1
                raise ClusterError("connection reset")
        elif path.endswith("/resourcequotas"):
            self.quotas.append(body)
        return body

    def _scheduled(self, pod: Object) -> Object:
        fate = self.scheduler(pod)
        if "denied" in fate:
            raise ClusterError(f"POST pods: {fate['denied']}", 400)
        pod = copy.deepcopy(pod)
        pod["metadata"]["annotations"].update(fate.get("annotations", {}))
        pod["spec"].update(schedulerName=fate.get("scheduler", "hami-scheduler"))
        if fate.get("nodeName"):
            pod["spec"]["nodeName"] = fate["nodeName"]
        pod["status"] = {"phase": fate.get("phase", "Pending"), "conditions": []}
        if fate.get("waiting"):
            pod["status"]["containerStatuses"] = [{"name": "c0", "state": {"waiting": {"reason": fate["waiting"]}}}]
        if fate.get("condition"):
            condition = {"type": "PodScheduled", "status": "False", "message": fate["condition"]}
            pod["status"]["conditions"].append(condition)
        if fate.get("event"):
            event = {"involvedObject": {"name": pod["metadata"]["name"]}, "reason": "FilteringFailed"}
            self.events.append({**event, "message": fate["event"], "type": "Warning"})
        return pod

    def get(self, path: str, **query: str) -> Object:
        self._maybe_fail(f"GET {path.rsplit('/', 1)[1]}")
        if "/resourcequotas/" in path:
            return {**self.quotas[0], "status": {"hard": self.quotas[0]["spec"]["hard"]}}
        if "/pods/" in path:
            return self.pods[path.rsplit("/", 1)[1]]
        if "/nodes/" in path:
            return {"metadata": {"annotations": {"hami.io/mutex.lock": self.lock} if self.lock else {}}}
        return {"metadata": {"resourceVersion": "1"}, "items": list(self.pods.values())}

    def list(self, path: str, **query: str) -> Iterator[Object]:
        kinds = {"pods": self.pods.values(), "events": self.events, "namespaces": self.namespaces.values()}
        return iter([*kinds[path.rsplit("/", 1)[1]]])

    def text(self, path: str, **query: str) -> str:
        self._maybe_fail("GET log")
        return self.log

    def delete(self, path: str, **query: str) -> None:
        name = path.rsplit("/", 1)[1]
        self.namespaces.pop(name, None)
        for pod in [*self.pods] if name == "pods" else [name]:
            if pod in self.pods:
                self._changes.put(("DELETED", self.pods.pop(pod)))

    def watch(self, path: str, resource_version: str, **query: str) -> Iterator[tuple[str, Object]]:
        self._maybe_fail("WATCH pods")
        while True:
            yield self._changes.get()

    def _maybe_fail(self, call: str) -> None:
        if call in self.fail:
            raise self.fail[call]


def cases(*options: Object) -> list[Any]:
    base = {"replicas": 1, "memory_mib": 20000, "expect": {"outcome": "placed"}}
    return [case_from_options({"name": f"case-{number}", **base, **each}) for number, each in enumerate(options)]


def new_run(cluster: FakeCluster, *options: Object, limit: Limit = NO_LIMIT) -> Any:
    setting = Setting("1f3a", "gpu-verify-1f3a", "image")
    return module.Run(cluster, cases(*options), setting, True, limit, "hami-scheduler")  # type: ignore[arg-type]


def run(cluster: FakeCluster, *options: Object, timeout_s: float = 5) -> Any:
    run = new_run(cluster, *options)
    run.run(timeout_s)
    return run


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"POLL_S": 0.01, "OTHER_REASON_S": 0.2, "COMPLETION_S": 0.2}.items():
        monkeypatch.setattr(module, name, value)
    for name, value in {"POLL_S": 0.01, "CLEAN_UP_S": 1}.items():
        monkeypatch.setattr(_trial, name, value)


def test_pods_are_placed_and_everything_is_gone_afterwards() -> None:
    cluster = FakeCluster(place)
    done = run(cluster, {"name": "share", "replicas": 3, "expect": {"outcome": "placed", "spread": "one_card"}})
    (result,) = done.results()
    assert result["passed"], result
    assert result["verdict"] == "share: 3 pods placed on one card, as expected"
    assert result["pods"][0]["limits"] == [{"CUDA_DEVICE_MEMORY_LIMIT_0": "20000m", "CUDA_DEVICE_SM_LIMIT": "30"}]
    assert done.cleaned_up and not cluster.pods and not cluster.namespaces


def test_one_case_runs_while_another_does_and_one_after_it() -> None:
    states: dict[str, set[str]] = {}
    cluster = FakeCluster(lambda pod: {})

    def scheduler(pod: Object) -> Object:
        name = pod["metadata"]["name"]
        states[name] = set(cluster.pods)
        return refuse("CardInsufficientCore")(pod) if name.startswith("fourth") else place(pod)

    cluster.scheduler = scheduler
    done = run(
        cluster,
        {"name": "share", "replicas": 2},
        {
            "name": "fourth",
            "while_running": ["share"],
            "expect": {"outcome": "refused", "reason": "CardInsufficientCore"},
        },
        {"name": "freed", "after": ["share"]},
    )
    assert [result["passed"] for result in done.results()] == [True, True, True]
    assert states["fourth-0"] >= {"share-0", "share-1"}
    assert not states["freed-0"] & {"share-0", "share-1"}


def test_a_case_whose_forerunner_does_not_run_is_not_tried() -> None:
    cluster = FakeCluster(refuse("CardInsufficientMemory"))
    done = run(cluster, {}, {"name": "later", "while_running": ["case-0"]}, {"after": ["later"]}, timeout_s=0.5)
    first, later, last = done.results()
    assert (first["passed"], first["broke_at"]) == (False, "filter")
    assert "not tried, since case-0 did not come out as expected" in later["verdict"]
    assert not last["passed"]
    assert done.cleaned_up


def test_another_reason_than_expected_is_believed_after_a_while() -> None:
    cluster = FakeCluster(refuse("CardTypeMismatch"))
    done = run(cluster, {"expect": {"outcome": "refused", "reason": "CardInsufficientCore"}})
    (result,) = done.results()
    assert not result["passed"]
    assert result["pods"][0]["reasons"] == ["CardTypeMismatch"]
    assert 0.2 <= result["duration_s"] < 2


def test_a_denied_pod() -> None:
    message = 'admission webhook "vgpu.hami.io" denied the request: container c0 is privileged'
    cluster = FakeCluster(lambda pod: {"denied": message})
    done = run(cluster, {"expect": {"outcome": "denied", "denial": "is privileged"}}, {})
    denied, placed = done.results()
    assert denied["passed"]
    assert (placed["passed"], placed["broke_at"]) == (False, "webhook")
    assert message in placed["verdict"]


@pytest.mark.parametrize(
    ("fate", "broke_at"),
    [
        ({"scheduler": "default-scheduler"}, "webhook"),
        ({}, "scheduler"),
        ({**place({}), "phase": "Pending", "annotations": {"hami.io/bind-phase": "allocating"}}, "allocate"),
        ({**place({}), "phase": "Pending"}, "start"),
    ],
)
def test_at_the_timeout_a_case_is_judged_as_it_stands(fate: Object, broke_at: str) -> None:
    done = run(FakeCluster(lambda pod: fate), {}, timeout_s=0.2)
    (result,) = done.results()
    assert (result["passed"], result["broke_at"]) == (False, broke_at)
    assert done.cleaned_up


def test_a_lock_that_stays_is_a_failure() -> None:
    cluster = FakeCluster(place)
    done = new_run(cluster, {})
    cluster.lock = f"2026-06-14T15:05:03Z,{done.namespace},case-0-0"
    done.run(5)
    (result,) = done.results()
    assert (result["passed"], result["broke_at"]) == (False, "lock")


def test_another_pods_lock_is_none_of_ours() -> None:
    cluster = FakeCluster(place)
    cluster.lock = "2026-06-14T15:05:03Z,team,train"
    assert run(cluster, {}).results()[0]["passed"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("POST pods", ClusterError("cannot be reached")),
        ("POST pods", ClusterError("pods is forbidden: User x cannot create resource pods", 403)),
        ("POST serviceaccounts", ClusterError("no", 403)),
        ("GET n1", ClusterError("nodes is forbidden", 403)),
        ("WATCH pods", ClusterError("Unauthorized", 401)),
        ("GET log", ClusterError("cannot get resource pods/log", 403)),
    ],
)
def test_an_error_in_mid_run_cleans_up(call: str, error: ClusterError) -> None:
    cluster = FakeCluster(place)
    cluster.fail[call] = error
    # An interruption, like these, comes out of run() as an exception.
    with pytest.raises(ClusterError, match=str(error)):
        run(cluster, {})
    assert not cluster.namespaces and not cluster.pods


def test_an_interruption_cleans_up() -> None:
    def interrupt(pod: Object) -> Object:
        raise _trial.InterruptedRunError("interrupted by SIGTERM")

    cluster = FakeCluster(interrupt)
    with pytest.raises(_trial.InterruptedRunError):
        run(cluster, {})
    assert not cluster.namespaces


def test_what_a_killed_run_left_is_deleted_and_a_living_ones_is_not() -> None:
    cluster = FakeCluster(place)
    for name, expires in {"dead": time.time() - 1, "alive": time.time() + 60}.items():
        annotations = {_trial.EXPIRES: str(int(expires))}
        cluster.namespaces[name] = {"metadata": {"name": name, "annotations": annotations}}
    run(cluster, {})
    assert set(cluster.namespaces) == {"alive"}


def test_a_pod_that_nobody_waits_beside_ends_by_itself() -> None:
    cluster = FakeCluster(lambda pod: {})
    commands: dict[str, str] = {}

    def scheduler(pod: Object) -> Object:
        commands[pod["metadata"]["name"]] = pod["spec"]["containers"][0]["command"][-1]
        return {**place(pod), "phase": "Running" if "sleep" in commands[pod["metadata"]["name"]] else "Succeeded"}

    cluster.scheduler = scheduler
    done = run(cluster, {"name": "two", "replicas": 2}, {"name": "held"}, {"name": "beside", "while_running": ["held"]})
    assert all(result["passed"] for result in done.results())
    assert {name for name, command in commands.items() if "sleep" in command} == {"two-0", "two-1", "held-0"}


def test_a_pod_that_somebody_deletes_is_lost() -> None:
    cluster = FakeCluster(lambda pod: {**place(pod), "phase": "Pending"})
    create = cluster.create

    def created_and_deleted(path: str, body: Object, **query: str) -> Object:
        made = create(path, body, **query)
        if path.endswith("/pods"):
            cluster.delete(f"{path}/{body['metadata']['name']}")
        return made

    cluster.create = created_and_deleted  # type: ignore[method-assign]
    (result,) = run(cluster, {}).results()
    assert (result["passed"], result["broke_at"]) == (False, "start")
    assert "it was deleted by somebody else" in result["verdict"]


def test_a_node_that_vanishes_loses_its_pods() -> None:
    cluster = FakeCluster(place)
    cluster.fail["GET n1"] = ClusterError("not found", 404)
    (result,) = run(cluster, {}).results()
    assert (result["passed"], result["broke_at"]) == (False, "start")
    assert "node n1 is gone" in result["verdict"]


def test_a_pod_whose_creation_got_no_answer_is_there_once() -> None:
    cluster = FakeCluster(place)
    cluster.lose_answers = 1
    assert run(cluster, {}).results()[0]["passed"]
    assert cluster.created == ["case-0-0"]


def test_an_image_that_cannot_be_had_is_not_waited_for_to_the_end() -> None:
    cluster = FakeCluster(lambda pod: {**place(pod), "phase": "Pending", "waiting": "ImagePullBackOff"})
    (result,) = run(cluster, {}, timeout_s=20).results()
    assert (result["passed"], result["broke_at"]) == (False, "start")
    assert "ImagePullBackOff" in result["verdict"] and result["duration_s"] < 5


@pytest.mark.parametrize("fate", [{"denied": "exceeding resource quota"}, refuse("ResourceQuotaNotFit")({})])
def test_a_quota_is_there_before_the_pods_and_refuses(fate: Object) -> None:
    cluster = FakeCluster(lambda pod: fate if cluster.quotas else {})
    done = new_run(cluster, {"expect": {"outcome": "over_quota"}}, limit=Limit(memory_mib=1000))
    done.run(5)
    assert done.results()[0]["passed"]
    assert cluster.quotas[0]["spec"]["hard"] == {"limits.nvidia.com/gpumem": "1000"}


def test_a_signal_while_cleaning_up_does_not_stop_it() -> None:
    cluster = FakeCluster(place)
    before = signal.signal(signal.SIGTERM, _trial.interrupt)
    delete = cluster.delete

    def interrupted(path: str, **query: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        delete(path, **query)

    try:
        done = new_run(cluster, {"expect": {"outcome": "denied"}})
        cluster.scheduler = lambda pod: {"denied": "no"}
        cluster.delete = interrupted  # type: ignore[method-assign]
        done.run(5)
        assert signal.getsignal(signal.SIGTERM) is _trial.interrupt
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.cleaned_up and not cluster.namespaces
