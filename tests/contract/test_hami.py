# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What we rely on in a cluster with HAMi, whoever serves it.

    TENANTRY_CONTRACT_KUBECONFIG=.state/lab/kubeconfigs/tenant-a.conf pytest tests/contract/test_hami.py

The tests make a node of their own with two declared cards and no kubelet, and play its device plugin.
They need the right to create nodes; everything they make is removed. HAMi is looked for in the namespace
hami-system ($TENANTRY_CONTRACT_HAMI_NAMESPACE).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_HANDSHAKE,
    NODE_LOCK,
    NODE_REGISTER,
    POD_ALLOCATED,
    POD_BIND_PHASE,
    POD_BIND_TIME,
    POD_NODE,
    POD_TIME,
    POD_TO_ALLOCATE,
    Lock,
    cards_from_profiles,
    format_lock,
    format_register,
    parse_allocation,
    parse_lock,
)

KUBECONFIG = os.environ.get("TENANTRY_CONTRACT_KUBECONFIG", "")
HAMI = os.environ.get("TENANTRY_CONTRACT_HAMI_NAMESPACE", "hami-system")
RUN = uuid.uuid4().hex[:6]
NODE = f"contract-{RUN}"
NAMESPACE = f"contract-{RUN}"
CARDS = cards_from_profiles(NODE, [{"profile": "a100-80g"}, {"profile": "l4", "slots": 2}])
A100, L4 = CARDS

pytestmark = pytest.mark.skipif(not KUBECONFIG, reason="TENANTRY_CONTRACT_KUBECONFIG names no cluster")

Result = TypeVar("Result")


def wait(look: Callable[[], Result], timeout_s: float = 30) -> Result:
    """The first look that is true; the last one when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return seen


@pytest.fixture(scope="module")
def api() -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(KUBECONFIG))


@pytest.fixture(scope="module", autouse=True)
def node(api: client.CoreV1Api) -> Iterator[None]:
    """A node with an A100 and an L4 of two slots, registered with HAMi."""
    metadata = {"name": NODE, "labels": {"contract": NODE}, "annotations": {NODE_REGISTER: format_register(CARDS)}}
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "50", "nvidia.com/gpu": "12"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    api.create_namespace({"metadata": {"name": NAMESPACE}})
    wait(lambda: has_service_account(api))
    api.create_node({"metadata": metadata})
    try:
        api.patch_node_status(NODE, {"status": status})
        assert wait(lambda: "Requesting_" in annotations(api.read_node(NODE)).get(NODE_HANDSHAKE, ""))
        yield
    finally:
        api.delete_node(NODE)
        api.delete_namespace(NAMESPACE)


def has_service_account(api: client.CoreV1Api) -> bool:
    try:
        api.read_namespaced_service_account("default", NAMESPACE)
    except ApiException:
        return False
    return True


def annotations(obj: Any) -> dict[str, str]:
    return obj.metadata.annotations or {}


class Pods:
    """Makes pods for one test and removes them."""

    def __init__(self, api: client.CoreV1Api) -> None:
        self.api, self.names = api, []

    def create(self, limits: dict[str, Any] | None, labels: dict | None = None, marks: dict | None = None, **spec: Any):
        asked = {resource: str(amount) for resource, amount in (limits or {}).items()}
        name = f"p{len(self.names)}-{uuid.uuid4().hex[:5]}"
        body = {
            "metadata": {"name": name, "labels": labels, "annotations": marks},
            "spec": {
                "nodeSelector": {"contract": NODE},
                "tolerations": [{"operator": "Exists"}],
                "automountServiceAccountToken": False,
                "containers": [{"name": "main", "image": "pause", "resources": {"limits": asked}}],
                **spec,
            },
        }
        pod = self.api.create_namespaced_pod(NAMESPACE, body)
        self.names.append(name)
        return pod

    def gpu(self, memory_mib: int = 1000, cores: int = 10, count: int = 1, **more: Any):
        """Create a pod that asks for cards; its name."""
        limits = {"nvidia.com/gpu": count, "nvidia.com/gpumem": memory_mib, "nvidia.com/gpucores": cores}
        return self.create(limits, **more).metadata.name

    def get(self, name: str):
        return self.api.read_namespaced_pod(name, NAMESPACE)

    def bound(self, name: str, timeout_s: float = 30):
        """The pod once it has a node; fails with its events."""
        pod = wait(lambda: (pod := self.get(name)).spec.node_name and pod, timeout_s)
        assert pod, self.events(name)
        return pod

    def events(self, name: str) -> list[tuple[str, str]]:
        listed = self.api.list_namespaced_event(NAMESPACE, field_selector=f"involvedObject.name={name}")
        return [(event.reason, event.message) for event in listed.items]

    def told(self, name: str, reason: str, part: str, timeout_s: float = 30) -> bool:
        def look() -> bool:
            return any(said == reason and part in text for said, text in self.events(name))

        return wait(look, timeout_s)

    def delete(self, name: str) -> None:
        self.api.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)
        self.names.remove(name)


@pytest.fixture
def pods(api: client.CoreV1Api) -> Iterator[Pods]:
    made = Pods(api)
    unlock(api)
    yield made
    for name in list(made.names):
        made.delete(name)
    unlock(api)


def lock_of(api: client.CoreV1Api) -> str:
    return annotations(api.read_node(NODE)).get(NODE_LOCK, "")


def set_lock(api: client.CoreV1Api, lock: str | None) -> None:
    api.patch_node(NODE, {"metadata": {"annotations": {NODE_LOCK: lock}}})


def unlock(api: client.CoreV1Api) -> None:
    set_lock(api, None)


def denied(create: Callable[[], object]) -> str:
    with pytest.raises(ApiException) as caught:
        create()
    return str(caught.value.body)


# --- the webhook ---


def test_a_pod_that_asks_for_a_card_gets_the_scheduler(pods):
    pod = pods.create({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000})
    assert pod.spec.scheduler_name == "hami-scheduler"
    assert "nvidia.com/gpucores" not in pod.spec.containers[0].resources.limits


@pytest.mark.parametrize(
    ("asked", "added"),
    [
        ({"nvidia.com/gpumem": 1000}, {"nvidia.com/gpu": "1"}),
        ({"nvidia.com/gpu": 1}, {"nvidia.com/gpucores": "100"}),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}, {"nvidia.com/gpucores": "100"}),
    ],
    ids=["count", "whole card", "all of its memory"],
)
def test_what_is_left_out_is_added(pods, asked, added):
    limits = pods.create(asked).spec.containers[0].resources.limits
    assert {key: limits.get(key) for key in added} == added


def test_other_pods_are_left_alone(pods):
    assert pods.create(None).spec.scheduler_name == "default-scheduler"
    assert pods.create({"nvidia.com/gpu": 1}, schedulerName="another").spec.scheduler_name == "another"
    ignored = pods.create({"nvidia.com/gpu": 1}, labels={"hami.io/webhook": "ignore"})
    assert ignored.spec.scheduler_name == "default-scheduler"


def test_pods_that_would_go_round_the_limits_are_denied(pods):
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
    container = {"name": "main", "image": "pause", "resources": {"limits": limits}}
    privileged = {**container, "securityContext": {"privileged": True}}
    assert "container main is privileged" in denied(lambda: pods.create(limits, containers=[privileged]))
    assert "pod has node assigned" in denied(lambda: pods.create(limits, nodeName=NODE, nodeSelector=None))
    percent = {"nvidia.com/gpumem-percentage": 120}
    assert "must be an integer between 0 and 100" in denied(lambda: pods.create(percent))


# --- placement, lock and events ---


def test_a_pod_is_placed_locked_and_bound(api, pods):
    name = pods.gpu(3000, 30, marks={"nvidia.com/use-gputype": "A100"})
    pod = pods.bound(name)
    assert pod.spec.node_name == NODE
    marks = annotations(pod)
    assert marks[POD_NODE] == pod.metadata.labels[POD_NODE] == NODE
    assert marks[POD_ALLOCATED] == marks[POD_TO_ALLOCATE] == f"{A100.uuid},NVIDIA,3000,30:;"
    assert marks[POD_BIND_PHASE] == "allocating"
    assert abs(int(marks[POD_TIME]) - int(marks[POD_BIND_TIME])) < 60
    lock = parse_lock(lock_of(api))
    assert (lock.namespace, lock.pod) == (NAMESPACE, name)
    assert pods.told(name, "FilteringSucceed", f"find fit node({NODE})")
    assert pods.told(name, "BindingSucceed", f"Successfully binding node [{NODE}] to {NAMESPACE}/{name}")


def test_a_second_pod_waits_for_the_lock(api, pods):
    first, second = pods.gpu(), None
    pods.bound(first)
    second = pods.gpu()
    assert pods.told(second, "BindingFailed", f"node {NODE} has been locked within 5m0s")
    assert pods.get(second).spec.node_name is None
    assert parse_lock(lock_of(api)).pod == first
    unlock(api)
    pods.bound(second, timeout_s=60)


def test_a_lock_whose_pod_is_gone_is_taken(api, pods):
    set_lock(api, format_lock(Lock(datetime.now(timezone.utc).replace(microsecond=0), NAMESPACE, "gone")))
    name = pods.gpu()
    pods.bound(name)
    assert parse_lock(lock_of(api)).pod == name


def test_a_lock_that_is_too_old_is_taken(api, pods):
    holder = pods.create(None).metadata.name
    taken_at = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(minutes=6)
    set_lock(api, format_lock(Lock(taken_at, NAMESPACE, holder)))
    name = pods.gpu()
    pods.bound(name)
    assert parse_lock(lock_of(api)).pod == name


def place(api: client.CoreV1Api, pods: Pods, *args: int, **more: Any) -> str:
    """A pod that is bound, and its cards handed out."""
    name = pods.gpu(*args, **more)
    pods.bound(name)
    unlock(api)
    return name


def uuids(pods: Pods, name: str) -> list[str]:
    return [
        share.uuid for container in parse_allocation(annotations(pods.get(name))[POD_ALLOCATED]) for share in container
    ]


def test_three_pods_share_a_card_and_a_fourth_finds_no_cores_until_one_is_gone(api, pods):
    a100 = {"marks": {"nvidia.com/use-gputype": "A100"}}
    sharers = [place(api, pods, 3000, 30, **a100) for _nth in range(3)]
    assert [uuids(pods, name) for name in sharers] == [[A100.uuid]] * 3
    fourth = pods.gpu(3000, 30, marks={"nvidia.com/use-gpuuuid": A100.uuid})
    assert pods.told(fourth, "FilteringFailed", f"1 nodes CardInsufficientCore({NODE})")
    assert pods.told(fourth, "FailedScheduling", "CardInsufficientCore")
    pods.delete(sharers[0])
    assert annotations(pods.bound(fourth, timeout_s=60))[POD_NODE] == NODE


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"memory_mib": 81921}, "CardInsufficientMemory"),
        ({"marks": {"nvidia.com/use-gputype": "H200"}}, "CardTypeMismatch"),
        ({"marks": {"nvidia.com/use-gpuuuid": "GPU-none"}}, "CardUuidMismatch"),
    ],
    ids=["memory", "type", "uuid"],
)
def test_a_refusal_names_its_reason(pods, asked, reason):
    name = pods.gpu(**asked)
    assert pods.told(name, "FilteringFailed", f"1 nodes {reason}({NODE})")
    assert pods.get(name).spec.node_name is None


def test_more_cards_than_the_node_has_are_refused(pods):
    assert pods.told(pods.gpu(count=3), "FailedScheduling", "NodeInsufficientDevice")


def test_two_cards_are_two_different_ones(api, pods):
    assert sorted(uuids(pods, place(api, pods, count=2))) == sorted(card.uuid for card in CARDS)


def test_a_card_s_slots_are_counted(api, pods):
    l4 = {"marks": {"nvidia.com/use-gpuuuid": L4.uuid}}
    for _nth in range(2):
        place(api, pods, **l4)
    assert pods.told(pods.gpu(**l4), "FilteringFailed", f"1 nodes CardTimeSlicingExhausted({NODE})")


def test_a_finished_pod_takes_nothing(api, pods):
    whole = {"cores": 100, "marks": {"nvidia.com/use-gpuuuid": A100.uuid}}
    first = place(api, pods, **whole)
    second = pods.gpu(**whole)
    assert pods.told(second, "FilteringFailed", NODE)
    api.patch_namespaced_pod_status(first, NAMESPACE, {"status": {"phase": "Succeeded"}})
    pods.bound(second, timeout_s=60)


# --- the installation ---


def test_only_the_leader_serves(api):
    running = api.list_namespaced_pod(HAMI, label_selector="app.kubernetes.io/component=hami-scheduler").items
    roles = sorted((pod.metadata.labels or {}).get("hami.io/scheduler-role", "") for pod in running)
    assert roles == ["follower"] * (len(running) - 1) + ["leader"]
    selector = api.read_namespaced_service("hami-scheduler", HAMI).spec.selector
    assert selector["hami.io/scheduler-role"] == "leader"


def test_the_webhook_is_registered_under_its_name(api):
    hooks = (
        client.AdmissionregistrationV1Api(api.api_client).read_mutating_webhook_configuration("hami-webhook").webhooks
    )
    (hook,) = hooks
    assert hook.name == "vgpu.hami.io"
    for selector in (hook.namespace_selector, hook.object_selector):
        assert ("hami.io/webhook", "NotIn", ["ignore"]) in [
            (rule.key, rule.operator, rule.values) for rule in selector.match_expressions
        ]


def test_the_metrics_say_what_is_taken(api, pods):
    try:
        api.connect_get_namespaced_service_proxy_with_path("hami-scheduler:monitor", HAMI, "metrics")
    except ApiException as error:
        pytest.skip(f"the service cannot be reached through the API server: {error.status}")
    name = place(api, pods, 3000, 30, marks={"nvidia.com/use-gpuuuid": A100.uuid})

    def taken() -> str:
        text = api.connect_get_namespaced_service_proxy_with_path("hami-scheduler:monitor", HAMI, "metrics")
        return next((line for line in text.splitlines() if name in line and "hami_vgpu_memory_allocated" in line), "")

    line = wait(taken)
    assert float(line.split()[-1]) == 3000 * 1024 * 1024
    assert f'device_uuid="{A100.uuid}"' in line
