# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The stand-in for HAMi's scheduler, part by part, against an API that lives in a dictionary."""

from __future__ import annotations

import base64
import copy
import http.client
import json
import threading
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standin_hami.api import ApiError, Reflector
from standin_hami.cluster import Cluster, NodeSink, PodSink, QuotaSink
from standin_hami.extender import Extender
from standin_hami.flags import parse_duration, parse_flags
from standin_hami.leader import Always, Leader, Lease
from standin_hami.metrics import exposition
from standin_hami.nodelock import LockContentionError, LockError, NodeLocks, format_duration
from standin_hami.server import handler, serve
from standin_hami.webhook import json_patch, review

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_HANDSHAKE,
    NODE_LOCK,
    NODE_REGISTER,
    Lock,
    cards_from_profiles,
    format_lock,
    format_register,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Quota, Rules, Usage

NOW = datetime(2026, 6, 14, 15, 5, 3, tzinfo=timezone.utc)
CARD = cards_from_profiles("n0", [{"profile": "a100-80g"}])[0]
NODE = "/api/v1/nodes/n0"
RULES = Rules()


def merge(old, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


class FakeApi:
    """Objects by path; every change gives an object a new version."""

    def __init__(self):
        self.objects, self.created, self.refuse, self.version = {}, [], {}, 0

    def put(self, path, obj):
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = obj
        return obj

    def get(self, path):
        if path.split("?")[0].endswith("/pods"):
            prefix = path.split("?")[0] + "/"
            return {"items": [obj for name, obj in self.objects.items() if name.startswith(prefix)]}
        if path not in self.objects:
            raise ApiError(404, f"{path} not found")
        return copy.deepcopy(self.objects[path])

    def patch(self, path, body):
        if path in self.refuse:
            raise ApiError(self.refuse[path], f"{path} refused")
        body = copy.deepcopy(body)
        version = body.get("metadata", {}).pop("resourceVersion", None)
        if version not in (None, self.get(path)["metadata"]["resourceVersion"]):
            raise ApiError(409, "the object has been modified")
        return self.put(path, merge(self.objects[path], body))

    def create(self, path, body):
        if path in self.refuse:
            raise ApiError(self.refuse[path], f"{path} refused")
        self.created.append((path, body))
        return body


class Heard:
    """Takes the place of the event writer."""

    def __init__(self):
        self.said = []

    def tell(self, _pod, reason, message):
        self.said.append((reason, message))


def node(name="n0", cards=(CARD,), allocatable="10", **annotations):
    register = {NODE_REGISTER: format_register(cards)} if cards else {}
    return {
        "metadata": {"name": name, "annotations": {**register, **annotations}},
        "status": {"allocatable": {"nvidia.com/gpu": allocatable}},
    }


def pod(name="p0", memory_mib=3000, cores=30, labels=None, **status):
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib), "nvidia.com/gpucores": str(cores)}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": status,
    }


class World:
    """An extender with one node, and what it wrote."""

    def __init__(self, rules=RULES, **waits):
        self.api, self.heard, self.woken = FakeApi(), Heard(), threading.Event()
        self.cluster = Cluster(on_node=self.woken.set)
        self.api.put(NODE, node())
        NodeSink(self.cluster).replace([node()])
        self.locks = NodeLocks(self.api, timedelta(minutes=5), lambda: NOW)
        self.extender = Extender(self.api, self.cluster, self.locks, self.heard, rules, **waits)

    def create(self, **more):
        created = pod(**more)
        return self.api.put(f"/api/v1/namespaces/default/pods/{created['metadata']['name']}", created)

    def filter(self, created, names=("n0",)):
        return self.extender.filter({"Pod": created, "NodeNames": list(names)})

    def bind(self, created):
        metadata = created["metadata"]
        args = {"PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"], "Node": "n0"}
        return self.extender.bind(args)

    def marks(self, name="p0"):
        return self.api.objects[f"/api/v1/namespaces/default/pods/{name}"]["metadata"]["annotations"]

    def lock(self):
        return self.api.objects[NODE]["metadata"]["annotations"].get(NODE_LOCK)


@pytest.fixture
def world():
    return World()


# --- filter ---


def test_filter_chooses_and_writes_the_choice_onto_the_pod(world):
    created = world.create()
    assert world.filter(created) == {"NodeNames": ["n0"]}
    marks = world.marks()
    share = f"{CARD.uuid},NVIDIA,3000,30:;"
    assert marks["hami.io/vgpu-node"] == "n0"
    assert marks["hami.io/vgpu-devices-allocated"] == marks["hami.io/vgpu-devices-to-allocate"] == share
    assert marks["hami.io/vgpu-time"].isdigit()
    assert world.heard.said == [
        ("FilteringSucceed", "find fit node(n0), 0 nodes not fit, 1 nodes fit(n0:0.00)"),
    ]


def test_a_chosen_share_counts_before_the_watch_brings_it_back(world):
    for number in range(3):
        assert world.filter(world.create(name=f"p{number}"))["NodeNames"] == ["n0"]
    assert world.filter(world.create(name="p3")) == {"FailedNodes": {"n0": "1/1 CardInsufficientCore"}}
    assert world.heard.said[-2:] == [
        ("FilteringFailed", "1 nodes CardInsufficientCore(n0)"),
        ("FilteringFailed", "no available node, 1 nodes do not meet"),
    ]


def test_a_pod_that_is_filtered_again_does_not_stand_in_its_own_way(world):
    created = world.create(cores=100)
    assert world.filter(created) == world.filter(created) == {"NodeNames": ["n0"]}


def test_a_choice_that_cannot_be_written_takes_nothing(world):
    created = world.create(cores=100)
    world.api.refuse["/api/v1/namespaces/default/pods/p0"] = 500
    assert "refused" in world.filter(created)["Error"]
    assert world.cluster.pods() == []


def test_a_pod_that_asks_for_no_card_passes(world):
    created = world.create()
    created["spec"]["containers"][0]["resources"] = {}
    assert world.filter(created, ("n0", "n1"))["NodeNames"] == ["n0", "n1"]


def test_weights_that_cannot_be_read_are_an_error(world):
    created = world.create()
    created["metadata"]["annotations"] = {"hami.io/device-scoring-weights": "heavy"}
    assert "expected slot, core, and memory weights" in world.filter(created)["Error"]
    assert world.heard.said[0][0] == "FilteringFailed"


def test_a_node_that_nobody_registered_is_refused(world):
    assert world.filter(world.create(), ("n1",)) == {"FailedNodes": {"n1": "node unregistered"}}


# --- bind and lock ---


def test_bind_locks_the_node_marks_the_pod_and_binds_it(world):
    created = world.create()
    assert world.bind(created) == {"Error": ""}
    assert world.lock() == "2026-06-14T15:05:03Z,default,p0"
    assert world.marks()["hami.io/bind-phase"] == "allocating"
    ((path, binding),) = world.api.created
    assert path.endswith("/pods/p0/binding")
    assert binding["target"]["name"] == "n0" and binding["metadata"]["uid"] == "uid-p0"
    assert world.heard.said == [("BindingSucceed", "Successfully binding node [n0] to default/p0")]


def hold(world, taken_at=NOW, name="holder"):
    text = format_lock(Lock(taken_at, "default", name))
    world.api.patch(NODE, {"metadata": {"annotations": {NODE_LOCK: text}}})
    return text


def test_bind_fails_while_another_pod_holds_the_lock(world):
    world.create(name="holder")
    held = hold(world)
    message = "node n0 has been locked within 5m0s: node lock contention"
    assert world.bind(world.create()) == {"Error": message}
    assert world.lock() == held
    assert world.heard.said == [("BindingFailed", message)]


@pytest.mark.parametrize(
    ("holder", "taken_at"),
    [("holder", NOW - timedelta(minutes=5, seconds=1)), ("gone", NOW), ("p0", NOW)],
    ids=["too old", "holder gone", "its own"],
)
def test_a_lock_that_does_not_hold(world, holder, taken_at):
    world.create(name="holder")
    hold(world, taken_at, holder)
    assert world.bind(world.create()) == {"Error": ""}
    assert world.lock() == "2026-06-14T15:05:03Z,default,p0"


def test_bind_waits_for_a_lock_that_is_given_back():
    world = World(wait=timedelta(seconds=5))
    world.create(name="holder")
    hold(world)
    threading.Timer(0.2, world.locks.release, ("n0", "default", "holder")).start()
    assert world.bind(world.create()) == {"Error": ""}


def test_members_of_a_pod_group_wait_longer():
    world = World(group_wait=timedelta(seconds=5))
    world.create(name="holder")
    hold(world)
    threading.Timer(0.2, world.locks.release, ("n0", "default", "holder")).start()
    assert world.bind(world.create(labels={"scheduling.x-k8s.io/pod-group": "g"})) == {"Error": ""}


def test_a_bind_that_fails_gives_the_lock_back(world):
    created = world.create()
    world.api.refuse["/api/v1/namespaces/default/pods/p0/binding"] = 409
    assert "refused" in world.bind(created)["Error"]
    assert world.lock() is None
    assert world.heard.said[0][0] == "BindingFailed"


def test_a_pod_that_is_gone_takes_nothing_any_more(world):
    created = world.create()
    world.filter(created)
    del world.api.objects["/api/v1/namespaces/default/pods/p0"]
    assert "not found" in world.bind(created)["Error"]
    assert world.cluster.pods() == []


def test_a_lock_is_not_given_back_for_another_pod(world):
    held = hold(world)
    world.locks.release("n0", "default", "p0")
    assert world.lock() == held


def test_a_lock_that_cannot_be_read_is_named(world):
    world.api.patch(NODE, {"metadata": {"annotations": {NODE_LOCK: "soon,a,b"}}})
    with pytest.raises(LockError, match="'soon,a,b'"):
        world.locks.take("n0", "default", "p0")


def test_of_many_at_once_one_gets_the_lock(world):
    for number in range(8):
        world.create(name=f"p{number}")
    outcomes = []

    def take(number):
        try:
            world.locks.take("n0", "default", f"p{number}")
            outcomes.append("taken")
        except LockContentionError:
            outcomes.append("held")

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["held"] * 7 + ["taken"]


@pytest.mark.parametrize(
    ("text", "written"), [("5m", "5m0s"), ("30s", "30s"), ("1h", "1h0m0s"), ("1m30s", "1m30s"), ("500ms", "0.5s")]
)
def test_durations_are_written_as_go_does(text, written):
    assert format_duration(parse_duration(text)) == written


# --- what is known of the cluster ---


def allocated(name="p0", text=f"{CARD.uuid},NVIDIA,3000,30:;", **status):
    made = pod(name, **status)
    made["metadata"]["annotations"] = {"hami.io/vgpu-node": "n0", "hami.io/vgpu-devices-allocated": text}
    return made


def taken(cluster):
    (only,) = cluster.nodes(["n0"])
    return only.usage.get(CARD.uuid, Usage())


def test_accounting_follows_pods(world):
    sink = PodSink(world.cluster)
    sink.replace([allocated("p0"), allocated("p1", phase="Running"), pod("other")])
    assert taken(world.cluster) == Usage(2, 6000, 60)
    sink.apply(allocated("p0", phase="Succeeded"), deleted=False)
    assert taken(world.cluster) == Usage(1, 3000, 30)
    sink.apply(allocated("p1"), deleted=True)
    assert taken(world.cluster) == Usage()


def test_a_list_after_a_gap_forgets_what_went_meanwhile(world):
    sink = PodSink(world.cluster)
    sink.replace([allocated("p0"), allocated("p1")])
    sink.replace([allocated("p1")])
    assert taken(world.cluster) == Usage(1, 3000, 30)


def test_older_news_do_not_undo_a_choice(world):
    created = world.create()
    world.filter(created)
    PodSink(world.cluster).apply(created, deleted=False)
    PodSink(world.cluster).replace([created])
    assert taken(world.cluster) == Usage(1, 3000, 30)


def test_an_allocation_that_cannot_be_read_takes_nothing(world):
    PodSink(world.cluster).replace([allocated(text="what?")])
    assert taken(world.cluster) == Usage()


def test_finished_init_containers_are_not_counted_any_more(world):
    made = allocated(text=f"{CARD.uuid},NVIDIA,9000,90:;{CARD.uuid},NVIDIA,1000,10:;")
    made["spec"]["initContainers"] = [{"name": "i"}]
    sink = PodSink(world.cluster)
    sink.apply(made, deleted=False)
    assert taken(world.cluster) == Usage(1, 9000, 90)
    made["status"] = {"initContainerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}
    sink.apply(made, deleted=False)
    assert taken(world.cluster) == Usage(1, 1000, 10)


@pytest.mark.parametrize(
    "unusable",
    [node(allocatable="0"), node(cards=()), {"metadata": {"name": "n0", "annotations": {NODE_REGISTER: "broken"}}}],
    ids=["nothing allocatable", "no register", "broken register"],
)
def test_a_node_that_offers_no_cards_is_not_registered(world, unusable):
    NodeSink(world.cluster).apply(unusable, deleted=False)
    assert world.cluster.nodes(["n0"])[0].cards == ()
    assert world.cluster.nodes() == []


def test_a_cordoned_card_is_seen_at_once(world):
    NodeSink(world.cluster).apply(node(**{"hami.io/device-cordon": CARD.uuid}), deleted=False)
    assert world.filter(world.create()) == {"FailedNodes": {"n0": "1/1 CardCordoned"}}


def test_a_quota_is_read_and_counted(world):
    hard = {"limits.nvidia.com/gpumem": "8k", "pods": "10"}
    quota = {"metadata": {"namespace": "default", "name": "q"}, "spec": {"hard": hard}}
    sink = QuotaSink(world.cluster)
    sink.replace([quota])
    world.filter(world.create())
    assert world.cluster.quota("default") == Quota(8000, None, Usage(0, 3000, 30))
    assert world.cluster.quota("other") is None
    assert world.filter(world.create(name="p1", memory_mib=6000)) == {"FailedNodes": {"n0": "1/1 ResourceQuotaNotFit"}}
    sink.apply(quota, deleted=True)
    assert world.cluster.quota("default") is None


# --- following the API ---


class Script:
    """An API whose watch plays a script: events, or an error."""

    def __init__(self, *watches):
        self.watches, self.lists, self.versions = list(watches), 0, []

    def list(self, _path, _query):
        self.lists += 1
        return [], str(100 * self.lists)

    def watch(self, _path, _query, version):
        self.versions.append(version)
        for step in self.watches.pop(0) if self.watches else ["stop"]:
            if step == "stop":
                raise SystemExit
            if isinstance(step, ApiError):
                raise step
            yield step


def event(kind, version, **obj):
    return {"type": kind, "object": {"metadata": {"resourceVersion": version}, **obj}}


class Log:
    def __init__(self):
        self.seen = []

    def replace(self, items):
        self.seen.append(("all", len(items)))

    def apply(self, obj, deleted):
        self.seen.append((obj["metadata"]["resourceVersion"], deleted))


def follow(*watches):
    api, log = Script(*watches), Log()
    with pytest.raises(SystemExit):
        Reflector(api, "/x", log).run()
    return api, log


def test_a_watch_goes_on_from_where_it_was():
    api, log = follow([event("ADDED", "101"), event("BOOKMARK", "107")], [event("DELETED", "108")])
    assert api.versions == ["100", "107", "108"]
    assert (api.lists, log.seen) == (1, [("all", 0), ("101", False), ("108", True)])


def test_an_api_that_is_away_for_a_while_costs_no_new_list():
    api, _log = follow([event("ADDED", "101"), ApiError(0, "connection refused")], [ApiError(0, "still away")])
    assert (api.lists, api.versions) == (1, ["100", "101", "101"])


@pytest.mark.parametrize("gone", [ApiError(410, "too old"), event("ERROR", "0", code=410, message="too old")])
def test_a_version_that_is_too_old_means_a_new_list(gone):
    api, _log = follow([event("ADDED", "101"), gone])
    assert (api.lists, api.versions) == (2, ["100", "200"])


# --- the leader ---


def lease(holder, seconds=15):
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds}
    return {"metadata": {"name": "hami-scheduler"}, "spec": spec}


def test_the_lease_s_holder_leads_while_the_lease_is_valid():
    changes = []
    own = Lease("hami-scheduler", "host-a", lambda: changes.append(1))
    assert not own.ours
    own.apply(lease("host-a_4711"), deleted=False)
    assert own.ours
    own.apply(lease("host-a_4711", seconds=0), deleted=False)
    assert not own.ours
    own.apply(lease("host-b_1"), deleted=False)
    own.replace([])
    assert not own.ours
    assert len(changes) == 2


def test_the_leader_marks_the_pods_and_greets_the_nodes(world):
    for name in ("me", "you"):
        world.api.put(f"/api/v1/namespaces/hami-system/pods/{name}", {"metadata": {"name": name}})
    leader = Leader(world.api, world.cluster, Always(), "hami-system", "me")
    leader._mark_pods()
    leader._greet_nodes()
    roles = [
        world.api.objects[f"/api/v1/namespaces/hami-system/pods/{name}"]["metadata"]["labels"] for name in ("me", "you")
    ]
    assert roles == [{"hami.io/scheduler-role": "leader"}, {"hami.io/scheduler-role": "follower"}]
    assert world.api.objects[NODE]["metadata"]["annotations"][NODE_HANDSHAKE].startswith("Requesting_")


# --- the webhook ---


def ask(cluster, created, rules=RULES):
    body = {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "namespace": "default", "object": created}}
    answer = review(body, cluster, rules)
    assert (answer["apiVersion"], answer["response"]["uid"]) == ("admission.k8s.io/v1", "u")
    return answer["response"]


def test_the_webhook_answers_with_a_patch(world):
    response = ask(world.cluster, pod(), Rules())
    patch = json.loads(base64.b64decode(response["patch"]))
    assert patch == [{"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"}]
    assert response["patchType"] == "JSONPatch" and response["allowed"]


def test_the_webhook_leaves_other_pods_alone(world):
    created = pod()
    created["spec"]["containers"][0]["resources"] = {}
    assert ask(world.cluster, created) == {"uid": "u", "allowed": True}


@pytest.mark.parametrize(
    ("change", "message", "code"),
    [
        ({"securityContext": {"privileged": True}}, "container c is privileged", 403),
        ({"resources": {"limits": {"nvidia.com/gpumem": "much"}}}, "'much' is no Kubernetes quantity", 400),
    ],
)
def test_the_webhook_says_why_it_denies(world, change, message, code):
    created = pod()
    created["spec"]["containers"][0].update(change)
    response = ask(world.cluster, created)
    assert (response["allowed"], response["status"]) == (False, {"message": message, "code": code})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/", max_size=3), inner, max_size=3),
)


def apply_patch(document, patch):
    root = {"": copy.deepcopy(document)}
    for change in patch:
        keys = [key.replace("~1", "/").replace("~0", "~") for key in change["path"].split("/")]
        place = root
        for key in keys[:-1]:
            place = place[int(key) if isinstance(place, list) else key]
        last = int(keys[-1]) if isinstance(place, list) else keys[-1]
        if change["op"] == "remove":
            del place[last]
        else:
            place[last] = change["value"]
    return root[""]


@given(JSON, JSON)
def test_a_patch_makes_one_value_into_the_other(before, after):
    assert json.dumps(apply_patch(before, json_patch(before, after)), sort_keys=True) == json.dumps(
        after, sort_keys=True
    )


# --- the program ---


def test_the_chart_s_flags_are_taken(tmp_path):
    config = tmp_path / "device-config.yaml"
    config.write_text(json.dumps({"nvidia": {"defaultMemory": 5000, "runtimeClassName": "nvidia", "memoryFactor": 1}}))
    settings = parse_flags(
        [
            "--http_bind=0.0.0.0:443",
            "--scheduler-name=hami-scheduler",
            "--force-overwrite-default-scheduler=false",
            "--leader-elect=true",
            f"--device-config-file={config}",
            "--node-lock-timeout=1m",
            "--kube-qps=100",
            "--debug",
            "-v=4",
        ]
    )
    assert settings.bind == "0.0.0.0:443" and settings.leader_elect
    assert settings.lock_timeout == timedelta(minutes=1) and settings.lock_wait == timedelta(0)
    assert settings.rules == Rules(
        overwrite_default_scheduler=False,
        default_memory_mib=5000,
        runtime_class="nvidia",
        scheduler_name="hami-scheduler",
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("nvidia: {}", "is not JSON with the key nvidia"),
        ('{"nvidia": {"resourceCountName": "example.org/gpu"}}', "resourceCountName 'example.org/gpu' cannot be had"),
        ('{"nvidia": {"memoryFactor": 10}}', "memoryFactor 10 cannot be had here"),
    ],
)
def test_a_configuration_that_cannot_be_had_is_named(tmp_path, capsys, config, message):
    path = tmp_path / "device-config.yaml"
    path.write_text(config)
    with pytest.raises(SystemExit):
        parse_flags([f"--device-config-file={path}"])
    assert message in capsys.readouterr().err


def test_metrics_have_the_original_s_names(world):
    world.filter(world.create())
    quota = {"metadata": {"namespace": "default", "name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpucores": "50"}}}
    QuotaSink(world.cluster).replace([quota])
    lines = exposition(world.cluster).splitlines()
    card = f'device_index="0",device_type="{CARD.type}",device_uuid="{CARD.uuid}",node="n0",zone="vGPU"'
    assert f"hami_gpu_memory_limit_bytes{{{card}}} {81920 * 1024 * 1024}" in lines
    assert f"hami_gpu_core_allocated_ratio{{{card}}} 30" in lines
    assert f"hami_gpu_shared_count{{{card}}} 1" in lines
    assert any(line.startswith("hami_vgpu_memory_allocated_bytes{") and line.endswith(" 3145728000") for line in lines)
    assert 'hami_resource_quota_limit{namespace="default",quota_name="nvidia.com/gpucores",zone="vGPU"} 50' in lines


def test_the_server_answers_and_survives_nonsense():
    def fail(_body):
        raise KeyError("Pod")

    posts = {"/echo": lambda body: body, "/fail": fail}
    server = serve("127.0.0.1:0", handler(posts, {"/healthz": lambda: "ok"}), None, None)

    def ask_server(method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()

    try:
        assert ask_server("GET", "/healthz") == (200, b"ok")
        assert ask_server("POST", "/echo", b'{"a": 1}') == (200, b'{"a": 1}')
        nonsense = [("/none", b"{}"), ("/echo", b"{"), ("/fail", b"{}"), ("/echo", b"")]
        assert [ask_server("POST", *asked)[0] for asked in nonsense] == [404, 400, 400, 400]
        assert ask_server("GET", "/healthz") == (200, b"ok")
    finally:
        server.shutdown()
        server.server_close()
