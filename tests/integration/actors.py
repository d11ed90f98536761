"""Who acts in a cluster that has only an API: a scheduler with a kubelet, and a webhook behind a tunnel."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from control_plane import Api, ApiError, ControlPlane
from servers import Answer, serve
from urllib3.exceptions import HTTPError

Object = dict[str, Any]
POLL_S = 0.1


class Player:
    """Gives every new pod with a label what a function answers: a patch of its metadata, its node, and its status.

    The function's answer may have ``annotations``, ``node`` and ``status``; what it leaves out is not touched. A pod
    that is being deleted is let go at once, as a kubelet does whose containers have ended.
    """

    def __init__(self, api: Api, label: str, fate: Callable[[Object], Object]) -> None:
        self._api, self._label, self._fate = api, label, fate
        self._played: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(POLL_S):
            try:
                for pod in self._api.items(f"/api/v1/pods?labelSelector={self._label}"):
                    self._play(pod)
            except (ApiError, HTTPError):
                time.sleep(POLL_S)  # a pod went, or the API is being stopped by the test

    def _play(self, pod: Object) -> None:
        name, namespace, uid = (pod["metadata"][key] for key in ("name", "namespace", "uid"))
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        if pod["metadata"].get("deletionTimestamp"):
            self._api.delete(path)
            return
        if uid in self._played:
            return
        self._played.add(uid)
        fate = self._fate(pod)
        if "annotations" in fate:
            self._api.patch(path, {"metadata": {"annotations": fate["annotations"]}})
        if "node" in fate:
            target = {"apiVersion": "v1", "kind": "Node", "name": fate["node"]}
            self._api.create(f"{path}/binding", {"metadata": {"name": name}, "target": target})
        if "status" in fate:
            self._api.patch(f"{path}/status", {"status": fate["status"]})


class Tunnel:
    """HAMi's webhook behind its Service, and a tunnel's agent whose log says what the API server dialled.

    The API server dials through the control plane's Network, which stands for the tunnel: what the log and the
    metrics of the agent tell is what happened there.
    """

    SERVICE, KUBELET, AGENT = "10.112.77.7", "10.32.0.9", "10.32.0.8"
    NAMESPACE = "tunnel-hami"

    def __init__(self, control_plane: ControlPlane, probe_namespace: str = "default") -> None:
        self.metrics: Answer | None = None  # instead of the count
        self._control_plane, self._api = control_plane, control_plane.api
        self._begin = len(control_plane.network.dialled)
        names = [f"hami-scheduler.{self.NAMESPACE}.svc"]
        certificate = control_plane.authority.issue("hami-scheduler", hosts=names)
        self._servers = [
            serve(self._admit, certificate),
            serve(self._kubelet, certificate),
            serve(self._agent),
        ]
        addresses = [f"{self.SERVICE}:443", f"{self.KUBELET}:10250", f"{self.AGENT}:8134"]
        self._routes = dict(zip(addresses, (server.port for server in self._servers)))
        control_plane.network.routes.update(self._routes)
        self._create(probe_namespace)

    def stop(self) -> None:
        self._api.delete("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hami-webhook")
        self._api.delete(f"/api/v1/namespaces/{self.NAMESPACE}/services/hami-scheduler")
        self._api.delete("/api/v1/namespaces/kube-system/pods/konnectivity-agent-0")
        self._api.delete("/api/v1/nodes/tunnel-node")
        for server in self._servers:
            server.stop()
        for address in self._routes:
            del self._control_plane.network.routes[address]

    def _create(self, probe_namespace: str) -> None:
        api = self._api
        api.ensure("/api/v1/namespaces", {"metadata": {"name": self.NAMESPACE}})
        service = {"clusterIP": self.SERVICE, "ports": [{"port": 443}]}
        api.create(
            f"/api/v1/namespaces/{self.NAMESPACE}/services", {"metadata": {"name": "hami-scheduler"}, "spec": service}
        )
        api.create("/api/v1/nodes", {"metadata": {"name": "tunnel-node"}})
        node = {
            "addresses": [{"type": "InternalIP", "address": self.KUBELET}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        }
        api.patch("/api/v1/nodes/tunnel-node/status", {"status": node})
        api.ensure("/api/v1/namespaces/kube-system/serviceaccounts", {"metadata": {"name": "default"}})
        pod = {
            "metadata": {"name": "konnectivity-agent-0", "labels": {"k8s-app": "konnectivity-agent"}},
            "spec": {"nodeName": "tunnel-node", "containers": [{"name": "agent", "image": "none"}]},
        }
        api.create("/api/v1/namespaces/kube-system/pods", pod)
        status = {"phase": "Running", "podIP": self.AGENT, "podIPs": [{"ip": self.AGENT}]}
        api.patch("/api/v1/namespaces/kube-system/pods/konnectivity-agent-0/status", {"status": status})
        authority = base64.b64encode(self._control_plane.authority.certificate.read_bytes()).decode()
        reference = {"name": "hami-scheduler", "namespace": self.NAMESPACE, "path": "/webhook"}
        webhook = {
            "name": "vgpu.hami.io",
            "clientConfig": {"service": reference, "caBundle": authority},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": probe_namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        }
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        api.create(path, {"metadata": {"name": "hami-webhook"}, "webhooks": [webhook]})

    def _admit(self, _path: str, body: bytes) -> Answer:
        review = json.loads(body)
        patch = [{"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"}]
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        review["response"] = {
            "uid": review.pop("request")["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": encoded,
        }
        return 200, json.dumps(review).encode()

    def _dialled(self) -> list[str]:
        return self._control_plane.network.dialled[self._begin :]

    def _kubelet(self, path: str, _body: bytes) -> Answer:
        if not path.startswith("/containerLogs/kube-system/konnectivity-agent-0/"):
            return 404, b""
        lines = [f'"Received DIAL_REQ" dialID={number} dialAddress="{at}"' for number, at in enumerate(self._dialled())]
        return 200, "\n".join(lines).encode()

    def _agent(self, _path: str, _body: bytes) -> Answer:
        count = f"konnectivity_network_proxy_agent_dial_duration_seconds_count {len(self._dialled())}\n"
        return self.metrics or (200, count.encode())


def simple_scheduler(api: Api, node: str, uuid: str, memory_mib: int) -> Callable[[Object], Object]:
    """Places pods of one container on one card as long as memory and compute last, else refuses them as HAMi does."""

    def fate(pod: Object) -> Object:
        mine = pod["metadata"]["uid"]
        taken = [shares_of(other) for other in api.items("/api/v1/pods") if other["metadata"]["uid"] != mine]
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        memory = int(limits.get("nvidia.com/gpumem", memory_mib))
        cores = int(limits.get("nvidia.com/gpucores", 0))
        if cores > 100 - sum(share[1] for share in taken):
            return refused(api, pod, "CardInsufficientCore")
        if memory > memory_mib - sum(share[0] for share in taken):
            return refused(api, pod, "CardInsufficientMemory")
        annotations = {
            "hami.io/vgpu-node": node,
            "hami.io/bind-phase": "success",
            "hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,{memory},{cores}:;",
        }
        return {"annotations": annotations, "node": node, "status": {"phase": "Running"}}

    return fate


def shares_of(pod: Object) -> tuple[int, int]:
    """MiB and percent of compute that a pod of simple_scheduler has."""
    text = (pod["metadata"].get("annotations") or {}).get("hami.io/vgpu-devices-allocated", ",,0,0:;")
    memory, cores = text.partition(":")[0].split(",")[2:]
    return int(memory), int(cores)


def refused(api: Api, pod: Object, reason: str) -> Object:
    """A pod's fate when no card takes it; HAMi tells why in an event."""
    metadata = pod["metadata"]
    message = f"no available node, 1 nodes do not meet: 1/1 {reason}"
    event = {
        "metadata": {"generateName": "refused-"},
        "involvedObject": {"kind": "Pod", "name": metadata["name"], "namespace": metadata["namespace"]},
        "reason": "FilteringFailed",
        "type": "Warning",
        "message": message,
    }
    api.create(f"/api/v1/namespaces/{metadata['namespace']}/events", event)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"status": {"conditions": [condition]}}
