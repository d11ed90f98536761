"""Who acts in a cluster that has only an API: a worker with a scheduler, and a webhook behind a tunnel."""

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
LIMITS_END = "tenantry.gpu: end of limits"


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

    def __init__(self, control_plane: ControlPlane, selector: Object | None = None) -> None:
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
        self._create(selector or {"matchLabels": {"kubernetes.io/metadata.name": "default"}})

    def stop(self) -> None:
        self._api.delete("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hami-webhook")
        self._api.delete(f"/api/v1/namespaces/{self.NAMESPACE}/services/hami-scheduler")
        self._api.delete("/api/v1/namespaces/kube-system/pods/konnectivity-agent-0")
        self._api.delete("/api/v1/nodes/tunnel-node")
        for address in self._routes:
            self._control_plane.network.unroute(address)
        for server in self._servers:
            server.stop()

    def _create(self, selector: Object) -> None:
        api = self._api
        api.ensure("/api/v1/namespaces", {"metadata": {"name": self.NAMESPACE}})
        service = {"clusterIP": self.SERVICE, "ports": [{"port": 443}]}
        api.create(
            f"/api/v1/namespaces/{self.NAMESPACE}/services", {"metadata": {"name": "hami-scheduler"}, "spec": service}
        )
        api.create("/api/v1/nodes", {"metadata": {"name": "tunnel-node"}})
        api.patch("/api/v1/nodes/tunnel-node/status", {"status": node_address(self.KUBELET)})
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
            "namespaceSelector": selector,
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


class Worker:
    """A node with one card, HAMi's webhook, and who places gpu_scheduling_verify's pods on the card and runs them.

    Pods of one container are placed as long as the card's memory and compute last, and refused as HAMi refuses them.
    """

    LABEL, KUBELET = "tenantry.gpu/verify-run", "10.32.0.7"
    UUID = "GPU-6d0c1c9b-6a53-5c6e-9d7f-0d7b1f0f6b0e"
    MEMORY_MIB, CORES, SLOTS = 81920, 100, "10"

    def __init__(self, control_plane: ControlPlane, name: str = "a-worker-0") -> None:
        self.name = name
        self.before_placing: Callable[[Object], None] = lambda pod: None
        self._control_plane, self._api = control_plane, control_plane.api
        selector = {"matchExpressions": [{"key": self.LABEL, "operator": "Exists"}]}
        self._tunnel = Tunnel(control_plane, selector)
        self._server = serve(self._log, control_plane.authority.issue("kubelet"))
        control_plane.network.routes[f"{self.KUBELET}:10250"] = self._server.port
        self._create()
        self._player = Player(self._api, self.LABEL, self._fate)

    def stop(self) -> None:
        self._player.stop()
        self._api.delete(f"/api/v1/nodes/{self.name}")
        self._control_plane.network.unroute(f"{self.KUBELET}:10250")
        self._server.stop()
        self._tunnel.stop()

    def _create(self) -> None:
        card = (
            f"{self.UUID},{self.SLOTS},{self.MEMORY_MIB},{self.CORES},NVIDIA-NVIDIA A100-SXM4-80GB,0,true,0,hami-core:"
        )
        metadata = {"name": self.name, "annotations": {"hami.io/node-nvidia-register": card}}
        self._api.create("/api/v1/nodes", {"metadata": metadata})
        resources = {"nvidia.com/gpu": self.SLOTS, "pods": "110"}
        status = {**node_address(self.KUBELET), "allocatable": resources, "capacity": resources}
        self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})

    def _fate(self, pod: Object) -> Object:
        self.before_placing(pod)
        memory, cores = asked_of(pod, self.MEMORY_MIB)
        taken = [shares_of(other) for other in self._api.items("/api/v1/pods")]
        if cores > self.CORES - sum(share[1] for share in taken):
            return refused(self._api, pod, "CardInsufficientCore")
        if memory > self.MEMORY_MIB - sum(share[0] for share in taken):
            return refused(self._api, pod, "CardInsufficientMemory")
        annotations = {
            "hami.io/vgpu-node": self.name,
            "hami.io/bind-phase": "success",
            "hami.io/vgpu-devices-allocated": f"{self.UUID},NVIDIA,{memory},{cores}:;",
        }
        return {"annotations": annotations, "node": self.name, "status": {"phase": "Running"}}

    def _log(self, path: str, _body: bytes) -> Answer:
        _empty, _logs, namespace, name, _container = path.partition("?")[0].split("/")
        memory, cores = shares_of(self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}"))
        limits = f"CUDA_DEVICE_MEMORY_LIMIT_0={memory}m\nCUDA_DEVICE_SM_LIMIT={cores}\n{LIMITS_END}\n"
        return 200, limits.encode()


class SimulatedNodes:
    """Nodes of kwok, and on the first a pod that HAMi bound and whose allocation nobody finished."""

    NAMES, NAMESPACE, POD = ("kwok-0", "kwok-1"), "team", "train"

    def __init__(self, control_plane: ControlPlane) -> None:
        self._api = api = control_plane.api
        for name in self.NAMES:
            api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"type": "kwok"}}})
        api.ensure("/api/v1/namespaces", {"metadata": {"name": self.NAMESPACE}})
        api.ensure(f"/api/v1/namespaces/{self.NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
        share = "GPU-1,NVIDIA,3000,30:;"
        annotations = {
            "hami.io/vgpu-node": self.NAMES[0],
            "hami.io/bind-phase": "allocating",
            "hami.io/bind-time": "1781449503",
            "hami.io/vgpu-devices-to-allocate": share,
            "hami.io/vgpu-devices-allocated": share,
        }
        pod = {
            "metadata": {"name": self.POD, "annotations": annotations, "labels": {"hami.io/vgpu-node": self.NAMES[0]}},
            "spec": {"nodeName": self.NAMES[0], "containers": [{"name": "main", "image": "none"}]},
        }
        api.create(f"/api/v1/namespaces/{self.NAMESPACE}/pods", pod)

    def stop(self) -> None:
        self._api.delete(f"/api/v1/namespaces/{self.NAMESPACE}/pods/{self.POD}")
        for name in self.NAMES:
            self._api.delete(f"/api/v1/nodes/{name}")


def node_address(address: str) -> Object:
    """The part of a node's status that tells where its kubelet is."""
    return {
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }


def asked_of(pod: Object, whole_mib: int) -> tuple[int, int]:
    """MiB and percent of compute that a pod's first container asks for; the API server writes 20000 as 20k."""
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    memory = str(limits.get("nvidia.com/gpumem", whole_mib)).replace("k", "000")
    return int(memory), int(limits.get("nvidia.com/gpucores", 0))


def shares_of(pod: Object) -> tuple[int, int]:
    """MiB and percent of compute that Worker gave to a pod."""
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
