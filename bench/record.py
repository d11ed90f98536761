#!/usr/bin/env python3
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Record what a HAMi scheduler decides in random cases, in the format that replay.py reads.

Asks a running scheduler over its own HTTP interface (/webhook, /filter, /bind), on a Kubernetes API whose nodes are
plain objects: no kubelet, no kube-scheduler, no device plugin. Everything that is made bears the scenario's name and
is removed after it. Point it at a cluster for tests only.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import checkout  # noqa: F401
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_CORDON,
    NODE_LOCK,
    NODE_PAIR_SCORES,
    NODE_REGISTER,
    POD_ALLOCATED,
    POD_GPU_POLICY,
    POD_MODE,
    POD_NODE,
    POD_NODE_POLICY,
    POD_NOUSE_TYPE,
    POD_NOUSE_UUID,
    POD_NUMA_BIND,
    POD_SCORING_WEIGHTS,
    POD_USE_TYPE,
    POD_USE_UUID,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    RESOURCE_MEMORY_PERCENT,
    SCHEDULER_NAME,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import NODE_UNREGISTERED

Json = dict[str, Any]

LABEL = "scenario"
TIMEOUT_S = 30.0
POLL_S = 0.005


class RecordError(Exception):
    """The scheduler or the API did not do what is needed to go on."""


# --- random cases ------------------------------------------------------------------------

CARD_TYPES = (
    ("NVIDIA-NVIDIA A100-SXM4-80GB", 81920),
    ("NVIDIA-NVIDIA H100 80GB HBM3", 81559),
    ("NVIDIA-NVIDIA L4", 24576),
    ("NVIDIA-Tesla T4", 15360),
)
# A type that no plugin registers, but for which HAMi has rules of its own.
BARE_TYPE = ("NVIDIA", 40960)
GPU_POLICIES = (
    "binpack",
    "spread",
    "mutex",
    "topology-aware",
    "numa",
    "numa,binpack",
    "spread,mutex",
    "binpack, topology-aware",
    "nonsense",
)
WEIGHTS = (
    "slot=1,core=0,memory=0",
    "slot=0, core=1, memory=3",
    "memory=2,slot=0,core=5",
    "slot=0,core=0,memory=0",
    "slot=1",
)
TYPE_LISTS = ("A100", "a100,L4", "H100 , T4", "", " ", "L4,", "A100,,T4", "NVIDIA", "none")
COUNTS = ("1", "1", "1", "1", "2", "2", "3", "4", "0")
MEMORIES = ("1000", "3000", "8k", "10000", "20000", "40000", "90000", "3Gi", "4Gi", "5Gi", "0")
PERCENTS = ("0", "1", "25", "33", "50", "100", "101", "120", "30000")
CORES = ("0", "10", "30", "50", "99", "100", "120")


class Cases:
    """Random scenarios, as the recording's format has them but without answers; one seed gives the same ones."""

    def __init__(self, seed: int, prefix: str = "r") -> None:
        self._random = random.Random(seed)  # noqa: S311  # nothing secret
        self._prefix = prefix

    def __iter__(self) -> Iterator[Json]:
        number = 0
        while True:
            yield self.scenario(f"{self._prefix}{number:05d}")
            number += 1

    def scenario(self, name: str) -> Json:
        nodes = [self._node(f"{name}-n{number}") for number in range(self._random.randint(1, 3))]
        scenario: Json = {"scenario": name, "policy": {"node": "binpack", "gpu": "spread"}, "nodes": nodes}
        namespace = "default"
        if self._maybe(0.25):
            namespace = scenario["namespace"] = name
            scenario["quota"] = self._quota()
        pods = [self._pod(f"{name}-p{number}", namespace, nodes) for number in range(self._random.randint(3, 9))]
        scenario["steps"] = list(self._steps(pods))
        return scenario

    def _maybe(self, probability: float) -> bool:
        return self._random.random() < probability

    def _steps(self, pods: list[Json]) -> Iterator[Json]:
        alive: list[str] = []
        for pod in pods:
            yield {"create": pod}
            alive.append(pod["metadata"]["name"])
            if self._maybe(0.15):
                yield {"delete": alive.pop(self._random.randrange(len(alive)))}

    def _node(self, name: str) -> Json:
        pick = self._random
        number = pick.choice((0, 1, 1, 2, 2, 2, 3, 4, 4, 8, 8, 16))
        kind, memory_mib = BARE_TYPE if self._maybe(0.1) else pick.choice(CARD_TYPES)
        cards = []
        for index in range(number):
            if self._maybe(0.15):
                kind, memory_mib = pick.choice(CARD_TYPES)
            cards.append(
                {
                    "id": f"GPU-{name}-{index}",
                    "index": index,
                    "count": pick.choice((1, 2, 3, 10, 10, 10)),
                    "devmem": memory_mib,
                    "devcore": pick.choice((100, 100, 100, 100, 100, 100, 100, 60, 200, 0)),
                    "type": kind,
                    "numa": pick.choice((0, index % 2, index * 2 // max(number, 1))),
                    "mode": "mig" if self._maybe(0.02) else "hami-core",
                    "health": not self._maybe(0.06),
                }
            )
        node: Json = {"name": name, "cards": cards}
        uuids = [card["id"] for card in cards]
        if uuids and self._maybe(0.15):
            node["cordon"] = pick.sample(uuids, 1)
        if uuids and self._maybe(0.4):
            node["pair_scores"] = [
                {"uuid": one, "score": {other: pick.choice((0, 10, 20, 100)) for other in uuids if other != one}}
                for one in uuids
            ]
        return node

    def _quota(self) -> Json:
        limits = {}
        if self._maybe(0.7):
            limits[f"limits.{RESOURCE_MEMORY}"] = self._random.choice(("8000", "20k", "60000", "120000", "0"))
        if not limits or self._maybe(0.4):
            limits[f"limits.{RESOURCE_CORES}"] = self._random.choice(("50", "100", "150", "0"))
        return limits

    def _pod(self, name: str, namespace: str, nodes: list[Json]) -> Json:
        pick = self._random
        containers = [self._container(f"c{index}") for index in range(pick.choice((1, 1, 1, 2, 3)))]
        spec: Json = {"containers": containers}
        if self._maybe(0.2):
            spec["initContainers"] = [self._container(f"i{index}") for index in range(pick.choice((1, 1, 2)))]
        if self._maybe(0.08):
            spec["schedulerName"] = pick.choice(("default-scheduler", SCHEDULER_NAME, "other"))
        if self._maybe(0.02):
            spec["nodeName"] = nodes[0]["name"]
        annotations = self._annotations([card["id"] for node in nodes for card in node["cards"]])
        metadata: Json = {"name": name, "namespace": namespace}
        if annotations:
            metadata["annotations"] = annotations
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _container(self, name: str) -> Json:
        pick, limits = self._random, {}
        for resource, probability, amounts in (
            (RESOURCE_COUNT, 0.75, COUNTS),
            (RESOURCE_MEMORY, 0.65, MEMORIES),
            (RESOURCE_MEMORY_PERCENT, 0.15, PERCENTS),
            (RESOURCE_CORES, 0.55, CORES),
            ("cpu", 0.1, ("1", "100m")),
        ):
            if self._maybe(probability):
                limits[resource] = pick.choice(amounts)
        container: Json = {"name": name, "image": "pause"}
        if limits and not self._maybe(0.1):
            container["resources"] = {"limits": limits}
        if self._maybe(0.02):
            container["securityContext"] = {"privileged": True}
        return container

    def _annotations(self, uuids: list[str]) -> dict[str, str]:
        pick = self._random

        def some_uuids() -> str:
            chosen = pick.sample(uuids, pick.randint(0, min(3, len(uuids))))
            return pick.choice((",", ", ")).join(chosen)

        wishes: tuple[tuple[str, float, Callable[[], str]], ...] = (
            (POD_NODE_POLICY, 0.4, lambda: pick.choice(("binpack", "spread", "spread", "nonsense"))),
            (POD_GPU_POLICY, 0.5, lambda: pick.choice(GPU_POLICIES)),
            (POD_SCORING_WEIGHTS, 0.08, lambda: pick.choice(WEIGHTS)),
            (POD_USE_TYPE, 0.12, lambda: pick.choice(TYPE_LISTS)),
            (POD_NOUSE_TYPE, 0.12, lambda: pick.choice(TYPE_LISTS)),
            (POD_USE_UUID, 0.1, some_uuids),
            (POD_NOUSE_UUID, 0.12, some_uuids),
            (POD_NUMA_BIND, 0.15, lambda: pick.choice(("true", "1", "false", "yes"))),
            (POD_MODE, 0.05, lambda: pick.choice(("hami-core", "mig", "hami-core,mig"))),
        )
        return {key: make() for key, probability, make in wishes if self._maybe(probability)}


# --- a scheduler, asked as the API server and the kube-scheduler ask it -------------------


class Scheduler:
    """HAMi's HTTP interface at a URL; a certificate is not looked at."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        host, port = address.hostname or "", address.port
        if address.scheme == "https":
            context = ssl._create_unverified_context()  # noqa: S323  # the URL is the user's own
            self._connection: HTTPConnection = HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
        else:
            self._connection = HTTPConnection(host, port, timeout=TIMEOUT_S)

    def review(self, pod: Json) -> tuple[Json, Json]:
        """The webhook's answer as it is recorded, and the pod as it goes on."""
        request = {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": pod["metadata"]["name"],
            "namespace": pod["metadata"]["namespace"],
            "operation": "CREATE",
            "userInfo": {},
            "object": pod,
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        response = self._post("/webhook", review)["response"]
        if not response["allowed"]:
            return {"allowed": False, "message": response["status"]["message"]}, pod
        mutated = patched(pod, json.loads(base64.b64decode(response.get("patch") or "") or "[]"))
        spec = mutated["spec"]
        containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
        limits = [(container.get("resources") or {}).get("limits") or {} for container in containers]
        return {"allowed": True, "scheduler": spec.get("schedulerName"), "limits": limits}, mutated

    def filter(self, pod: Json, nodes: Sequence[str]) -> Json:
        return self._post("/filter", {"Pod": pod, "NodeNames": list(nodes)})

    def bind(self, pod: Json, node: str) -> str:
        """Bind a pod; the error, or nothing."""
        metadata = pod["metadata"]
        names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        return str(self._post("/bind", {**names, "Node": node}).get("Error") or "")

    def _post(self, path: str, body: Json) -> Json:
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        text = response.read()
        try:
            answer: Json = json.loads(text)
        except ValueError as error:
            raise RecordError(f"{path} answered {response.status} with {text[:200]!r}") from error
        return answer


def patched(document: Json, patch: Sequence[Json]) -> Json:
    """A document after a JSON patch of add, replace and remove, which is all that webhooks send."""
    result: Json = json.loads(json.dumps(document))
    for change in patch:
        *path, last = (key.replace("~1", "/").replace("~0", "~") for key in change["path"].split("/")[1:])
        place: Any = result
        for key in path:
            place = place[int(key) if isinstance(place, list) else key]
        if isinstance(place, list):
            index = len(place) if last == "-" else int(last)
            place[index : index + (change["op"] != "add")] = [] if change["op"] == "remove" else [change["value"]]
        elif change["op"] == "remove":
            del place[last]
        else:
            place[last] = change["value"]
    return result


def probe(namespace: str, **limits: int) -> Json:
    """A pod that is in no API: asking about it changes nothing."""
    names = {"memory": RESOURCE_MEMORY, "cores": RESOURCE_CORES}
    amounts = {RESOURCE_COUNT: "1", **{names[key]: str(amount) for key, amount in limits.items()}}
    container = {"name": "c", "image": "pause", "resources": {"limits": amounts}}
    metadata = {"name": "probe", "namespace": namespace, "uid": str(uuid.uuid4())}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def _shares(container: str) -> list[Json]:
    """The shares of one container in an allocation, whatever numbers HAMi wrote."""
    fields = [share.split(",") for share in container.split(":") if share]
    return [{"uuid": each[0], "memory_mib": int(each[2]), "cores": int(each[3])} for each in fields]


def wait_until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not reached():
        if time.monotonic() > deadline:
            raise RecordError(f"{what} within {TIMEOUT_S:.0f} s: has the scheduler the rights to watch, and does it?")
        time.sleep(POLL_S)


class Recorder:
    """Plays scenarios on an API and notes what the scheduler (of a version such as 2.10.0) says to them."""

    def __init__(self, kubeconfig: Path, scheduler: Scheduler, version: str) -> None:
        self._api = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        self._scheduler = scheduler
        self._version = version
        # A node and a pod of that name, see _wait_for_news; others may record here as well, or have been killed.
        self._barrier = f"barrier-{uuid.uuid4().hex[:8]}"
        self._barrier_taken = False

    def __enter__(self) -> Recorder:
        card = {"id": self._barrier, "count": 1, "devmem": 1, "devcore": 100, "type": "NVIDIA", "health": True}
        self._create_node({"name": self._barrier, "cards": [card]})
        return self

    def __exit__(self, *_error: object) -> None:
        if self._barrier_taken:
            self._delete_pod(self._barrier, "default")
        self._api.delete_node(self._barrier)

    def record(self, scenario: Json) -> Json:
        """Play a scenario; the scenario with the answers."""
        namespace = scenario.get("namespace", "default")
        try:
            self._prepare(scenario, namespace)
            names = [node["name"] for node in scenario["nodes"]]
            steps = [self._step(step, namespace, names) for step in scenario["steps"]]
        finally:
            self._clean_up(scenario, namespace)
        return {**scenario, "hami": self._version, "steps": steps}

    def _prepare(self, scenario: Json, namespace: str) -> None:
        for node in scenario["nodes"]:
            self._create_node(node)
        if "quota" in scenario:
            self._create_quota(namespace, scenario["quota"])

    def _create_node(self, node: Json) -> None:
        annotations = {}
        if node["cards"]:
            annotations[NODE_REGISTER] = json.dumps(node["cards"])
        if node.get("cordon"):
            annotations[NODE_CORDON] = ",".join(node["cordon"])
        if node.get("pair_scores"):
            annotations[NODE_PAIR_SCORES] = json.dumps(node["pair_scores"])
        allocatable = {RESOURCE_COUNT: str(sum(card["count"] for card in node["cards"]))}
        metadata = {"name": node["name"], "annotations": annotations}
        self._api.create_node({"metadata": metadata, "status": {"allocatable": allocatable, "capacity": allocatable}})
        if node["cards"]:
            # More than any card has: a registered node refuses it for another reason than that.
            wait_until(
                lambda: NODE_UNREGISTERED not in self._reasons(probe("default", memory=2**31 - 1), node["name"]),
                f"the scheduler did not register node {node['name']}",
            )

    def _reasons(self, pod: Json, node: str) -> list[str]:
        return list((self._scheduler.filter(pod, [node]).get("FailedNodes") or {}).values())

    def _create_quota(self, namespace: str, limits: Json) -> None:
        self._api.create_namespace({"metadata": {"name": namespace}})
        # No pod without it; a controller makes it too, where there is one.
        self._ignoring(409, self._api.create_namespaced_service_account, namespace, {"metadata": {"name": "default"}})
        self._api.create_namespaced_resource_quota(namespace, {"metadata": {"name": "cards"}, "spec": {"hard": limits}})
        beyond = probe(namespace, memory=2**31 - 1, cores=2**31 - 1)
        # For 2.9 a limit of 0 is none, so there is nothing that one could wait for.
        if set(limits.values()) != {"0"} or not self._version.startswith("2.9."):
            wait_until(
                lambda: not self._scheduler.review(beyond)[0]["allowed"],
                f"the scheduler did not see the quota of namespace {namespace}",
            )

    def _step(self, step: Json, namespace: str, nodes: list[str]) -> Json:
        if "delete" in step:
            self._delete_pod(step["delete"], namespace)
            self._wait_for_news()
            return step
        answer, pod = self._scheduler.review(step["create"])
        recorded = {**step, "webhook": answer}
        if not answer["allowed"]:
            return recorded
        try:
            pod = self._create_pod(namespace, pod)
        except ApiException as error:
            return {**recorded, "api_refused": json.loads(error.body)["message"]}
        if pod["spec"].get("schedulerName") == SCHEDULER_NAME:
            recorded["filter"] = self._filter(pod, namespace, nodes)
            if recorded["filter"]["node"]:
                recorded["bind"] = self._bind(pod, namespace, recorded["filter"]["node"])
        return recorded

    def _filter(self, pod: Json, namespace: str, nodes: list[str]) -> Json:
        result = self._scheduler.filter(pod, nodes)
        answer: Json = {"node": None, "allocated": None, "failed": result.get("FailedNodes") or {}}
        if result.get("Error"):
            return {**answer, "error": result["Error"]}
        annotations = self._read_pod(namespace, pod)["metadata"].get("annotations") or {}
        passed = bool(result.get("NodeNames")) and POD_NODE not in annotations
        if result.get("NodeNames") and not passed:
            answer["node"] = annotations[POD_NODE]
            answer["allocated"] = [_shares(container) for container in annotations[POD_ALLOCATED].split(";")[:-1]]
        return {**answer, "passed_without_cards": passed}

    def _bind(self, pod: Json, namespace: str, node: str) -> Json:
        """Bind, and take the lock away again as a device plugin would."""
        self._wait_for_news()
        error = self._scheduler.bind(pod, node)
        bound = self._read_pod(namespace, pod)
        lock = (self._json(self._api.read_node, node)["metadata"].get("annotations") or {}).get(NODE_LOCK) or ""
        self._api.patch_node(node, {"metadata": {"annotations": {NODE_LOCK: None}}})
        return {"error": error, "node": bound["spec"].get("nodeName"), "locked_for": lock.rpartition(",")[2]}

    def _wait_for_news(self) -> None:
        """Return once the scheduler has heard of all pods up to now: it hears of them in their order.

        A pod that takes the barrier's only slot comes or goes, and is seen or not by another that asks for it.
        """
        self._barrier_taken = not self._barrier_taken
        if self._barrier_taken:
            annotations = {POD_NODE: self._barrier, POD_ALLOCATED: f"{self._barrier},NVIDIA,1,0:;"}
            container = {"name": "c", "image": "pause"}
            metadata = {"name": self._barrier, "annotations": annotations}
            self._create_pod("default", {"metadata": metadata, "spec": {"containers": [container]}})
        else:
            self._delete_pod(self._barrier, "default")
        wait_until(
            lambda: bool(self._reasons(probe("default", memory=1), self._barrier)) == self._barrier_taken,
            "the scheduler did not hear of a pod",
        )

    def _create_pod(self, namespace: str, pod: Json) -> Json:
        metadata = {**pod["metadata"], "labels": {LABEL: "yes"}}
        return self._json(self._api.create_namespaced_pod, namespace, {**pod, "metadata": metadata})

    def _read_pod(self, namespace: str, pod: Json) -> Json:
        return self._json(self._api.read_namespaced_pod, pod["metadata"]["name"], namespace)

    def _delete_pod(self, name: str, namespace: str) -> None:
        self._ignoring(404, self._api.delete_namespaced_pod, name, namespace, grace_period_seconds=0)

    @staticmethod
    def _ignoring(status: int, call: Callable[..., Any], *arguments: object, **options: object) -> None:
        try:
            call(*arguments, **options)
        except ApiException as error:
            if error.status != status:
                raise

    @staticmethod
    def _json(call: Callable[..., Any], *arguments: object) -> Json:
        """An answer of the API as it is, not as the client's classes."""
        answer: Json = json.loads(call(*arguments, _preload_content=False).data)
        return answer

    def _clean_up(self, scenario: Json, namespace: str) -> None:
        for step in scenario["steps"]:
            if "create" in step:
                self._delete_pod(step["create"]["metadata"]["name"], namespace)
        if namespace != "default":
            self._api.delete_namespace(namespace)
        for node in scenario["nodes"]:
            self._api.delete_node(node["name"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--kubeconfig", type=Path, required=True, help="of a user who may do everything")
    add("--scheduler", required=True, metavar="URL", help="where the scheduler listens: http://127.0.0.1:8080")
    add("--hami", required=True, metavar="VERSION", help="the scheduler's version, such as 2.10.0")
    add("--scenarios", type=int, default=100)
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    cases = iter(Cases(options.seed, prefix=f"r{options.seed}-"))
    try:
        with Recorder(options.kubeconfig, Scheduler(options.scheduler), options.hami) as recorder:
            for _nth in range(options.scenarios):
                print(json.dumps(recorder.record(next(cases)), separators=(",", ":")), flush=True)
    except (RecordError, ApiException, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
