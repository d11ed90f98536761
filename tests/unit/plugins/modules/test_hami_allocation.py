# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import ClusterError
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import Lock, format_lock
from ansible_collections.tenantry.gpu.plugins.modules import hami_allocation as module

Object = dict[str, Any]

LOCK, PHASE, TO_ALLOCATE = "hami.io/mutex.lock", "hami.io/bind-phase", "hami.io/vgpu-devices-to-allocate"
SHARES = "GPU-1,NVIDIA,3000,30:;"


def lock(pod: str, age_s: int = 100) -> str:
    return format_lock(Lock(datetime.now(timezone.utc) - timedelta(seconds=age_s), "team", pod))


def add_node(cluster: Any, name: str = "n1", holder: str = "", age_s: int = 100, text: str = "", **more: str) -> str:
    path = f"/api/v1/nodes/{name}"
    taken = text or (lock(holder, age_s) if holder else "")
    cluster.put(path, {"metadata": {"name": name, "annotations": {**({LOCK: taken} if taken else {}), **more}}})
    return path


def add_pod(
    cluster: Any,
    name: str,
    node: str = "n1",
    phase: str = "allocating",
    shares: str = SHARES,
    age_s: int = 100,
    **more: Any,
) -> str:
    path = f"/api/v1/namespaces/team/pods/{name}"
    marks = {
        "hami.io/vgpu-node": node,
        "hami.io/bind-time": str(int(time.time()) - age_s),
        PHASE: phase,
        TO_ALLOCATE: shares,
        "hami.io/vgpu-devices-allocated": shares,
    }
    cluster.put(
        path,
        {
            "metadata": {
                "namespace": "team",
                "name": name,
                "uid": f"uid-{name}",
                "creationTimestamp": "2026-06-14T15:05:03Z",
                "labels": {"hami.io/vgpu-node": node},
                "annotations": marks,
            },
            "spec": {"schedulerName": "hami-scheduler", "nodeName": node},
            "status": {"phase": "Pending"},
            **more,
        },
    )
    return path


def run(cluster: Any, dry: bool = False, force: bool = False, wait_s: float | None = None, **scope: Any) -> Object:
    meant = {"pod": None, "namespace": None, "nodes": frozenset(), "older_than_s": 0, **scope}
    finisher = module.Finisher(cluster, module.Scope(**meant), force, dry)
    finisher.run(wait_s)
    return finisher.done.result(diff=True)


def is_locked(cluster: Any, path: str = "/api/v1/nodes/n1") -> bool:
    return LOCK in cluster.annotations(path)


# --- one allocation ---


def test_an_allocation_is_finished_as_the_plugin_does_it(cluster: Any) -> None:
    node, pod = add_node(cluster, holder="a", other="stays"), add_pod(cluster, "a")
    result = run(cluster, pod="a", namespace="team")
    assert cluster.verbs("patch") == [pod, node]
    marks = cluster.annotations(pod)
    assert (marks[TO_ALLOCATE], marks[PHASE]) == (";", "success")
    assert marks["hami.io/vgpu-devices-allocated"] == SHARES
    assert cluster.annotations(node) == {"other": "stays"}
    (finished,), (released,) = result["pods"], result["locks"]
    assert finished.pop("age_s") in (100, 101)
    assert finished == {
        "namespace": "team",
        "pod": "a",
        "node": "n1",
        "shares": [{"container": 0, "uuid": "GPU-1", "memory_mib": 3000, "cores": 30}],
    }
    assert (released["node"], released["pod"], released["reason"]) == ("n1", "a", "its allocation is finished")
    assert result["diff"] == {
        "before": "pod team/a: allocating\nnode n1: locked by team/a\n",
        "after": "pod team/a: success\nnode n1: not locked\n",
    }
    cluster.calls.clear()
    assert not run(cluster, pod="a", namespace="team")["changed"]
    assert cluster.verbs("patch") == []


@pytest.mark.parametrize(
    ("shares", "erased"),
    [(";GPU-1,NVIDIA,3000,30:;", ";;"), ("GPU-1,NVIDIA,1,1:GPU-2,NVIDIA,1,1:;GPU-1,NVIDIA,1,1:;", ";;"), ("", "")],
    ids=["init container", "several containers", "nothing"],
)
def test_each_container_keeps_its_place(cluster: Any, shares: str, erased: str) -> None:
    add_node(cluster, holder="a")
    pod = add_pod(cluster, "a", shares=shares)
    assert run(cluster, nodes=frozenset(["n1"]))["changed"]
    assert cluster.annotations(pod)[TO_ALLOCATE] == erased


def test_check_mode_tells_the_same_and_does_nothing(cluster: Any) -> None:
    for name, holder in (("n1", "a"), ("n2", "gone")):
        add_node(cluster, name, holder)
    add_pod(cluster, "a")
    told = run(cluster, dry=True, wait_s=60)
    assert cluster.verbs("patch") == []
    assert run(cluster) == told
    assert told["changed"] and len(told["locks"]) == 2


def test_a_pod_that_ran_to_its_end_had_its_cards(cluster: Any) -> None:
    add_node(cluster, holder="a")
    pod = add_pod(cluster, "a", status={"phase": "Succeeded"})
    assert run(cluster)["changed"]
    assert cluster.annotations(pod)[PHASE] == "success"
    assert not is_locked(cluster)


def test_what_needs_nothing_is_left(cluster: Any) -> None:
    add_node(cluster)
    for phase in ("success", "failed"):
        add_pod(cluster, phase, phase=phase)
    add_pod(cluster, "unbound", spec={"schedulerName": "hami-scheduler"})
    add_pod(cluster, "ended", status={"phase": "Failed"})
    assert run(cluster)["pods"] == []
    assert cluster.verbs("patch") == []


# --- which are meant ---


def test_scopes(cluster: Any) -> None:
    for name, pod, age_s in (("n1", "a", 1000), ("n2", "b", 10), ("n3", "c", 1000)):
        add_node(cluster, name, pod, age_s)
        add_pod(cluster, pod, name, age_s=age_s)

    def pods(**scope: Any) -> list[str]:
        return sorted(each["pod"] for each in run(cluster, dry=True, **scope)["pods"])

    assert pods() == ["a", "b", "c"]
    assert pods(older_than_s=600) == ["a", "c"]
    assert pods(nodes=frozenset(["n1", "n2"])) == ["a", "b"]
    assert pods(nodes=frozenset(["n2"]), older_than_s=600) == []
    assert pods(pod="c", namespace="team") == ["c"]
    assert pods(namespace="team") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        ({"pod": "x", "namespace": "team"}, "There is no pod x in namespace team."),
        ({"nodes": frozenset(["n9"])}, "There is no node n9."),
    ],
)
def test_what_is_not_there(cluster: Any, scope: Object, said: str) -> None:
    add_node(cluster)
    with pytest.raises(module.AllocationError, match=said):
        run(cluster, **scope)


def test_age_without_bind_time_is_the_pods(cluster: Any) -> None:
    now = datetime(2026, 6, 14, 15, 6, 3, tzinfo=timezone.utc)
    pod = cluster.objects[add_pod(cluster, "a")]
    for text in ("", "nonsense", "9" * 20):
        pod["metadata"]["annotations"]["hami.io/bind-time"] = text
        assert module.age_of(pod, now) == 60


# --- locks ---


@pytest.mark.parametrize(
    ("holder", "reason"),
    [
        (None, "its holder is gone"),
        ({"status": {"phase": "Succeeded"}, "node": "n1"}, "its holder has ended"),
        ({"status": {"phase": "Failed"}}, "its holder has ended"),
        ({"node": "n2"}, "its holder is on n2"),
        ({"phase": "success"}, "its holder's allocation has ended"),
        ({"phase": "failed"}, "its holder's allocation has ended"),
        ({"spec": {"schedulerName": "hami-scheduler"}}, ""),
        ({"spec": {"schedulerName": "hami-scheduler"}, "phase": "success"}, ""),
    ],
    ids=["gone", "succeeded", "failed", "elsewhere", "finished", "refused", "being bound", "bound again"],
)
def test_a_lock_is_freed_when_nobody_needs_it(cluster: Any, holder: Object | None, reason: str) -> None:
    add_node(cluster, holder="a")
    add_node(cluster, "n2")
    if holder is not None:
        add_pod(cluster, "a", **{"phase": "success", **holder})
    result = run(cluster, nodes=frozenset(["n1"]))
    assert [each["reason"] for each in result["locks"]] == ([reason] if reason else [])
    assert is_locked(cluster) == (not reason)


def test_a_young_lock_stays(cluster: Any) -> None:
    add_node(cluster, holder="gone", age_s=10)
    assert not run(cluster, older_than_s=60)["changed"]
    assert not run(cluster, namespace="another")["changed"]
    assert run(cluster)["changed"]


def test_a_lock_without_a_holder_goes_with_the_pod_that_is_finished(cluster: Any) -> None:
    add_node(cluster, text="2026-06-14T15:05:03Z")
    assert not run(cluster)["changed"]
    add_pod(cluster, "a")
    assert len(run(cluster)["locks"]) == 1


def test_a_lock_that_cannot_be_read_is_named(cluster: Any) -> None:
    add_node(cluster, text="nonsense")
    add_pod(cluster, "a")
    result = run(cluster)
    assert len(result["pods"]) == 1
    assert result["left_alone"] == [
        "n1: lock 'nonsense' does not begin with a time such as 2026-06-14T15:05:03Z; "
        "delete the annotation hami.io/mutex.lock of the node"
    ]


# --- what happens meanwhile ---


def test_a_lock_that_changed_hands_stays(cluster: Any) -> None:
    node = add_node(cluster, holder="a")
    add_pod(cluster, "a")
    other = lock("b", 0)
    cluster.before_patch = lambda path: cluster.annotate(node, mutex_lock=other) if path == node else None
    result = run(cluster)
    assert (len(result["pods"]), result["locks"]) == (1, [])
    assert cluster.annotations(node)[LOCK] == other


def test_a_free_lock_that_changed_hands_stays(cluster: Any) -> None:
    node = add_node(cluster, holder="gone")
    other = lock("gone", 0)
    cluster.before_patch = lambda path: cluster.annotate(node, mutex_lock=other)
    assert not run(cluster)["changed"]
    assert cluster.annotations(node)[LOCK] == other


def test_another_run_was_faster(cluster: Any) -> None:
    node, pod = add_node(cluster, holder="a"), add_pod(cluster, "a")

    def meanwhile(path: str) -> None:
        cluster.before_patch = lambda path: None
        assert run(cluster)["changed"]

    cluster.before_patch = meanwhile
    assert not run(cluster)["changed"]
    assert sorted(set(cluster.verbs("patch"))) == sorted([pod, node])


def test_a_run_that_was_cut_off_leaves_a_lock_that_is_freed(cluster: Any) -> None:
    node, pod = add_node(cluster, holder="a"), add_pod(cluster, "a")
    # As another run that ends between its two steps, or as a patch whose answer was lost.
    cluster.before_patch = lambda path: cluster.annotate(pod, bind_phase="success") if path == pod else None
    result = run(cluster)
    assert result["pods"] == []
    assert [each["reason"] for each in result["locks"]] == ["its holder's allocation has ended"]
    assert not is_locked(cluster, node)


def test_a_pod_of_the_same_name_is_another_pod(cluster: Any) -> None:
    add_node(cluster, holder="a")
    pod = add_pod(cluster, "a")

    def meanwhile(path: str) -> None:
        cluster.before_patch = lambda path: None
        new = {**cluster.objects[pod], "metadata": {**cluster.objects[pod]["metadata"], "uid": "another"}}
        cluster.put(pod, new)

    cluster.before_patch = meanwhile
    assert run(cluster)["pods"] == []
    assert cluster.annotations(pod)[PHASE] == "allocating"


def test_a_pod_that_vanishes_is_no_error_and_its_lock_is_freed(cluster: Any) -> None:
    add_node(cluster, holder="a")
    pod = add_pod(cluster, "a")
    cluster.before_patch = lambda path: cluster.objects.pop(pod, None)
    result = run(cluster)
    assert result["pods"] == []
    assert [each["reason"] for each in result["locks"]] == ["its holder is gone"]


def test_a_refusal_of_the_api_is_told(cluster: Any) -> None:
    add_node(cluster, holder="a")
    add_pod(cluster, "a")

    def refuse(path: str) -> None:
        raise ClusterError(f"PATCH {path}: 403 pods is forbidden", 403)

    cluster.before_patch = refuse
    with pytest.raises(ClusterError, match="403 pods is forbidden"):
        run(cluster)


def test_an_allocation_that_cannot_be_read_is_named_and_the_others_finished(cluster: Any) -> None:
    for name in ("n1", "n2"):
        add_node(cluster, name)
    add_pod(cluster, "a", shares="nonsense")
    other = add_pod(cluster, "b", "n2")
    with pytest.raises(module.AllocationError, match="team/a: allocation 'nonsense' does not end with a semicolon"):
        run(cluster)
    assert cluster.annotations(other)[PHASE] == "success"


# --- nodes with a plugin ---

HAMI = ("hami-device-plugin", "n1", {"app.kubernetes.io/component": "hami-device-plugin"})
SIMULATOR = ("gpu-simulator", "n1", {"app.kubernetes.io/name": "gpu-simulator"})


@pytest.mark.parametrize("plugin", [HAMI, SIMULATOR], ids=["HAMi", "simulator"])
def test_a_node_with_a_plugin_is_left_alone(cluster: Any, daemon_set: Any, plugin: tuple[str, str, Object]) -> None:
    daemon_set(*plugin)
    for name, pod in (("n1", "a"), ("n2", "b")):
        add_node(cluster, name, pod)
        add_pod(cluster, pod, name)
    why = f"n1: kube-system/{plugin[0]} completes the allocations of this node itself"
    result = run(cluster)
    assert [each["pod"] for each in result["pods"]] == ["b"]
    assert result["left_alone"] == [why]
    for scope in ({"nodes": frozenset(["n1"])}, {"pod": "a", "namespace": "team"}):
        with pytest.raises(module.AllocationError, match=f"{why}; use force: true if it hangs."):
            run(cluster, **scope)
    assert is_locked(cluster)
    assert [each["pod"] for each in run(cluster, force=True)["pods"]] == ["a"]
    assert not is_locked(cluster)


@pytest.mark.parametrize(
    ("labels", "container"),
    [
        ({"app.kubernetes.io/component": "hami-mock-device-plugin"}, {}),
        (SIMULATOR[2], {"env": [{"name": "LIFECYCLE", "value": "none"}]}),
    ],
    ids=["mock", "simulator without lifecycle"],
)
def test_a_plugin_without_a_lifecycle_needs_it(
    cluster: Any, daemon_set: Any, labels: Object, container: Object
) -> None:
    daemon_set("plugin", "n1", labels, **container)
    add_node(cluster, holder="a")
    add_pod(cluster, "a")
    assert run(cluster)["changed"]


# --- waiting ---


def unbound(
    cluster: Any, name: str, reason: str = "SchedulerError", scheduler: str = "hami-scheduler", node: str = ""
) -> str:
    path = add_pod(cluster, name, node)
    pod = cluster.objects[path]
    pod["spec"] = {"schedulerName": scheduler}
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": reason}]
    if not node:
        pod["metadata"].update(labels={}, annotations={})
    cluster.put(path, pod)
    return path


@pytest.fixture
def scheduler(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Binds the next of the listed pods whenever n1 is not locked, each time that the module sleeps."""
    waiting: list[str] = []

    def bind(_seconds: float) -> None:
        if waiting and not is_locked(cluster):
            name = waiting.pop(0)
            add_pod(cluster, name)
            cluster.annotate("/api/v1/nodes/n1", mutex_lock=lock(name, 0))

    monkeypatch.setattr(module.time, "sleep", bind)
    return waiting


def test_three_pods_come_one_after_the_other(cluster: Any, scheduler: list[str]) -> None:
    add_node(cluster, holder="a")
    add_pod(cluster, "a")
    for name in ("b", "c"):
        unbound(cluster, name, node="n1")
        scheduler.append(name)
    result = run(cluster, nodes=frozenset(["n1"]), wait_s=60)
    assert [each["pod"] for each in result["pods"]] == ["a", "b", "c"]
    assert [each["pod"] for each in result["locks"]] == ["a", "b", "c"]


def test_only_pods_that_may_come_are_waited_for(cluster: Any) -> None:
    add_node(cluster)
    unbound(cluster, "refused", "Unschedulable")
    unbound(cluster, "gated", "SchedulingGated")
    unbound(cluster, "foreign", scheduler="default-scheduler")
    unbound(cluster, "elsewhere", node="n2")
    assert not run(cluster, nodes=frozenset(["n1"]), wait_s=60)["changed"]


def test_waiting_ends(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.001)
    add_node(cluster, text="nonsense")
    unbound(cluster, "a")
    add_pod(cluster, "b", age_s=10)
    with pytest.raises(module.AllocationError) as caught:
        run(cluster, older_than_s=60, wait_s=0.05)
    said = str(caught.value)
    assert said.startswith(
        "There is still waiting after 0.05 s: team/a (not bound); team/b (not old enough); n1: lock 'nonsense'"
    )


def test_waiting_outlasts_an_api_that_is_away(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.001)
    add_node(cluster, holder="a")
    add_pod(cluster, "a")
    refusals = iter([503, 0, 429])
    asked = cluster.list

    def refuse(path: str, **query: Any) -> Any:
        status = next(refusals, None)
        if status is not None:
            raise ClusterError("no answer", status)
        return asked(path, **query)

    monkeypatch.setattr(cluster, "list", refuse)
    assert len(run(cluster, wait_s=10)["pods"]) == 1

    def forbid(path: str, **query: Any) -> Any:
        raise ClusterError("forbidden", 403)

    monkeypatch.setattr(cluster, "list", forbid)
    with pytest.raises(ClusterError, match="forbidden"):
        run(cluster, wait_s=10)
