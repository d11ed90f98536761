# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The objects of a tenant in the management cluster, named and laid out as Kamaji's (internal/builders, /resources)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from .model import API_VERSION, CHECKSUM, NAME_LABEL, ControlPlane

Manifest = dict[str, Any]
Data = Mapping[str, bytes]

PKI = "/etc/kubernetes/pki"
RUN = "/run/konnectivity"
SOCKET = f"{RUN}/konnectivity-server.socket"
EGRESS_FOLDER = "/etc/kubernetes/konnectivity/configurations"
EGRESS_FILE = "egress-selector-configuration.yaml"
TUNNEL_KEYS_FOLDER = "/etc/konnectivity"

# Secret: the label of its place in the pod template; a change of the Secret rolls the Deployment out.
HASHED = {
    "api-server-certificate": "api-server-certificate",
    "api-server-kubelet-client-certificate": "api-server-kubelet-client-certificate",
    "ca": "ca",
    "controller-manager-kubeconfig": "controller-manager-kubeconfig",
    "front-proxy-ca-certificate": "front-proxy-ca-certificate",
    "front-proxy-client-certificate": "front-proxy-client-certificate",
    "sa-certificate": "service-account",
    "scheduler-kubeconfig": "scheduler-kubeconfig",
}
X509 = {
    "api-server-certificate",
    "api-server-kubelet-client-certificate",
    "front-proxy-client-certificate",
    "datastore-certificate",
    "konnectivity-certificate",
}
PROBES = {  # Kamaji's defaults ask every 10 s; a tenant is to be ready soon, and one that starts may take its time
    "startupProbe": {"periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 180},
    "readinessProbe": {"periodSeconds": 3, "timeoutSeconds": 2, "failureThreshold": 3},
    "livenessProbe": {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
}


def checksum(data: Mapping[str, bytes]) -> str:
    """MD5 over the values in the order of their keys (internal/utilities/checksum.go)."""
    return hashlib.md5(b"".join(data[key] for key in sorted(data)), usedforsecurity=False).hexdigest()


def owner(plane: ControlPlane) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": "TenantControlPlane",
        "name": plane.name,
        "uid": plane.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _metadata(plane: ControlPlane, name: str, component: str) -> Manifest:
    return {
        "name": name,
        "namespace": plane.namespace,
        "labels": plane.labels(component),
        "ownerReferences": [owner(plane)],
    }


def secret(plane: ControlPlane, component: str, data: Data) -> Manifest:
    metadata = _metadata(plane, plane.child(component), component)
    metadata["annotations"] = {CHECKSUM: checksum(data)}
    if component in X509 or component.endswith("kubeconfig"):
        kind = "x509" if component in X509 else "kubeconfig"
        metadata["labels"]["kamaji.clastix.io/certificate_lifecycle_controller"] = kind
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded}


def config_map(plane: ControlPlane, component: str, data: Mapping[str, str]) -> Manifest:
    metadata = _metadata(plane, plane.child(component), component)
    metadata["annotations"] = {CHECKSUM: checksum({key: value.encode() for key, value in data.items()})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def egress_configuration() -> str:
    """The API server's way into the tenant: HTTP CONNECT over the socket of the tunnel's server."""
    return yaml.safe_dump(
        {
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [
                {
                    "name": "cluster",
                    "connection": {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": SOCKET}}},
                }
            ],
        }
    )


def service(plane: ControlPlane) -> Manifest:
    kind = plane.service["serviceType"]
    metadata = _metadata(plane, plane.name, "service")
    extra = plane.service.get("additionalMetadata", {})
    metadata["labels"] |= extra.get("labels", {})
    metadata["annotations"] = extra.get("annotations", {})
    ports = [("kube-apiserver", plane.port)]
    if plane.konnectivity:
        ports.append(("konnectivity-server", plane.konnectivity.server_port))
    spec: Manifest = {
        "type": kind,
        "selector": {NAME_LABEL: plane.name},
        "ports": [
            {"name": name, "protocol": "TCP", "port": port, "targetPort": port}
            | ({"nodePort": port} if kind == "NodePort" else {})
            for name, port in ports
        ]
        + [{"protocol": "TCP", **port} for port in plane.service.get("additionalPorts", [])],
    }
    address = plane.network.get("address")
    if kind == "LoadBalancer":
        spec["allocateLoadBalancerNodePorts"] = plane.service.get("allocateLoadBalancerNodePorts", True)
        for key in ("loadBalancerClass", "loadBalancerSourceRanges"):
            if plane.network.get(key):
                spec[key] = plane.network[key]
    elif plane.network.get("allowAddressAsExternalIP") and address:
        spec["externalIPs"] = [address]
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _flag(argument: str) -> str:
    return argument.partition("=")[0]


def _merge(defaults: Mapping[str, str], extra: Iterable[str], managed: Mapping[str, str]) -> list[str]:
    """The user's arguments win over `defaults` and lose against `managed`."""
    kept = [argument for argument in extra if _flag(argument) not in managed]
    theirs = set(map(_flag, kept))
    ours = {**{flag: value for flag, value in defaults.items() if flag not in theirs}, **managed}
    return sorted(f"{flag}={value}" for flag, value in ours.items()) + kept


def api_server_arguments(plane: ControlPlane, address: str, etcd_endpoints: Iterable[str]) -> list[str]:
    extra = plane.deployment.get("extraArgs", {}).get("apiServer", [])
    defaults = {
        "--allow-privileged": "true",
        "--enable-bootstrap-token-auth": "true",
        "--requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "--requestheader-group-headers": "X-Remote-Group",
        "--requestheader-username-headers": "X-Remote-User",
        "--service-account-issuer": "https://kubernetes.default.svc.cluster.local",
    }
    if "--authorization-config" not in map(_flag, extra):
        defaults["--authorization-mode"] = "Node,RBAC"
    managed = {
        "--advertise-address": address,
        "--client-ca-file": f"{PKI}/ca.crt",
        "--enable-admission-plugins": ",".join(plane.admission_controllers),
        "--service-cluster-ip-range": ",".join(plane.service_cidrs),
        "--kubelet-client-certificate": f"{PKI}/apiserver-kubelet-client.crt",
        "--kubelet-client-key": f"{PKI}/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types": ",".join(
            plane.kubelet.get("preferredAddressTypes") or ["InternalIP", "ExternalIP", "Hostname"]
        ),
        "--proxy-client-cert-file": f"{PKI}/front-proxy-client.crt",
        "--proxy-client-key-file": f"{PKI}/front-proxy-client.key",
        "--requestheader-allowed-names": "front-proxy-client",
        "--requestheader-client-ca-file": f"{PKI}/front-proxy-ca.crt",
        "--secure-port": str(plane.port),
        "--service-account-key-file": f"{PKI}/sa.pub",
        "--service-account-signing-key-file": f"{PKI}/sa.key",
        "--tls-cert-file": f"{PKI}/apiserver.crt",
        "--tls-private-key-file": f"{PKI}/apiserver.key",
        "--etcd-compaction-interval": "0",
        "--etcd-prefix": f"/{plane.schema}",
        "--etcd-servers": ",".join(f"https://{endpoint}" for endpoint in etcd_endpoints),
        "--etcd-cafile": f"{PKI}/etcd/ca.crt",
        "--etcd-certfile": f"{PKI}/etcd/server.crt",
        "--etcd-keyfile": f"{PKI}/etcd/server.key",
    }
    if plane.konnectivity:
        managed["--egress-selector-config-file"] = f"{EGRESS_FOLDER}/{EGRESS_FILE}"
    return _merge(defaults, extra, managed)


def controller_manager_arguments(plane: ControlPlane) -> list[str]:
    kubeconfig = "/etc/kubernetes/controller-manager.conf"
    defaults = {
        "--allocate-node-cidrs": "true",
        "--authentication-kubeconfig": kubeconfig,
        "--authorization-kubeconfig": kubeconfig,
        "--bind-address": "0.0.0.0",  # noqa: S104
        "--client-ca-file": f"{PKI}/ca.crt",
        "--cluster-cidr": ",".join(plane.pod_cidrs),
        "--cluster-name": plane.name,
        "--cluster-signing-cert-file": f"{PKI}/ca.crt",
        "--cluster-signing-key-file": f"{PKI}/ca.key",
        "--controllers": "*,bootstrapsigner,tokencleaner",
        "--kubeconfig": kubeconfig,
        "--leader-elect": "true",
        "--requestheader-client-ca-file": f"{PKI}/front-proxy-ca.crt",
        "--root-ca-file": f"{PKI}/ca.crt",
        "--service-account-private-key-file": f"{PKI}/sa.key",
        "--service-cluster-ip-range": ",".join(plane.service_cidrs),
        "--use-service-account-credentials": "true",
    }
    return _merge(defaults, plane.deployment.get("extraArgs", {}).get("controllerManager", []), {})


def scheduler_arguments(plane: ControlPlane) -> list[str]:
    kubeconfig = "/etc/kubernetes/scheduler.conf"
    managed = {
        "--authentication-kubeconfig": kubeconfig,
        "--authorization-kubeconfig": kubeconfig,
        "--bind-address": "0.0.0.0",  # noqa: S104
        "--kubeconfig": kubeconfig,
        "--leader-elect": "true",
    }
    return _merge({}, plane.deployment.get("extraArgs", {}).get("scheduler", []), managed)


def _probes(plane: ControlPlane, component: str, port: int, ready: str, live: str) -> Manifest:
    theirs = plane.deployment.get("probes", {})
    probes = {}
    for kind, timing in PROBES.items():
        name = kind.removesuffix("Probe")
        path = ready if kind == "readinessProbe" else live
        probes[kind] = {
            "httpGet": {"path": path, "port": port, "scheme": "HTTPS"},
            **timing,
            **theirs.get(name, {}),
            **theirs.get(component, {}).get(name, {}),
        }
    return probes


def _mount(volume: str, path: str, read_only: bool = True) -> Manifest:
    return {"name": volume, "mountPath": path, "readOnly": read_only}


CA_MOUNTS = [
    _mount("etc-ca-certificates", "/etc/ca-certificates"),
    _mount("usr-share-ca-certificates", "/usr/share/ca-certificates"),
    _mount("usr-local-share-ca-certificates", "/usr/local/share/ca-certificates"),
]


def _container(
    plane: ControlPlane, component: str, name: str, arguments: list[str], mounts: list[Manifest]
) -> Manifest:
    """Takes apiServer, controllerManager or scheduler, and the container's name."""
    deployment = plane.deployment
    container: Manifest = {
        "name": name,
        "image": plane.image(component),
        "command": [name],
        "args": arguments,
        "volumeMounts": [*deployment.get("additionalVolumeMounts", {}).get(component, []), *mounts],
    }
    if resources := deployment.get("resources", {}).get(component):
        container["resources"] = resources
    if context := deployment.get("containerSecurityContexts", {}).get(component):
        container["securityContext"] = context
    return container


def _containers(plane: ControlPlane, address: str, etcd_endpoints: Iterable[str]) -> list[Manifest]:
    pki = _mount("etc-kubernetes-pki", PKI)
    tunnel = [
        _mount("konnectivity-uds", RUN, read_only=False),
        _mount("egress-selector-configuration", EGRESS_FOLDER),
    ]
    api_server = _container(
        plane,
        "apiServer",
        "kube-apiserver",
        api_server_arguments(plane, address, etcd_endpoints),
        [pki, *CA_MOUNTS, *(tunnel if plane.konnectivity else [])],
    )
    api_server |= {"imagePullPolicy": "Always", **_probes(plane, "apiServer", plane.port, "/readyz", "/livez")}
    scheduler = _container(
        plane,
        "scheduler",
        "kube-scheduler",
        scheduler_arguments(plane),
        [_mount("scheduler-kubeconfig", "/etc/kubernetes")],
    )
    scheduler |= _probes(plane, "scheduler", 10259, "/healthz", "/healthz")
    manager = _container(
        plane,
        "controllerManager",
        "kube-controller-manager",
        controller_manager_arguments(plane),
        [_mount("controller-manager-kubeconfig", "/etc/kubernetes"), pki, *CA_MOUNTS],
    )
    manager |= _probes(plane, "controllerManager", 10257, "/healthz", "/healthz")
    containers = [api_server, scheduler, manager]
    if plane.konnectivity:
        containers.append(_tunnel_server(plane))
    return containers


def _tunnel_server(plane: ControlPlane) -> Manifest:
    tunnel = plane.konnectivity
    if tunnel is None:
        raise ValueError("no konnectivity")
    container: Manifest = {
        "name": "konnectivity-server",
        "image": f"{tunnel.server_image}:{tunnel_version(plane, tunnel.server)}",
        "imagePullPolicy": "Always",
        "command": ["/proxy-server"],
        "args": [
            "--admin-port=8133",
            f"--agent-port={tunnel.server_port}",
            "--health-port=8134",
            f"--keys={TUNNEL_KEYS_FOLDER}",
            f"--uds-name={SOCKET}",
        ],
        "ports": [
            {"name": "agentport", "containerPort": tunnel.server_port, "protocol": "TCP"},
            {"name": "adminport", "containerPort": 8133, "protocol": "TCP"},
            {"name": "healthport", "containerPort": 8134, "protocol": "TCP"},
        ],
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": 8134, "scheme": "HTTP"},
            "initialDelaySeconds": 30,
            "timeoutSeconds": 60,
            "periodSeconds": 10,
            "failureThreshold": 3,
        },
        "volumeMounts": [
            _mount("konnectivity-uds", RUN, read_only=False),
            _mount("konnectivity-keys", TUNNEL_KEYS_FOLDER),
        ],
        "securityContext": tunnel.server.get("securityContext")
        or {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if resources := tunnel.server.get("resources"):
        container["resources"] = resources
    return container


def tunnel_version(plane: ControlPlane, part: Mapping[str, Any]) -> str:
    return str(part.get("version") or f"v0.{plane.version.minor}.0")


def _secret_volume(plane: ControlPlane, volume: str, component: str, items: Iterable[str] = ()) -> Manifest:
    source: Manifest = {"secretName": plane.child(component), "defaultMode": 420}
    if items:
        source["items"] = [{"key": item, "path": item} for item in items]
    return {"name": volume, "secret": source}


def _volumes(plane: ControlPlane) -> list[Manifest]:
    def projected(component: str, *keys: str, folder: str = "") -> Manifest:
        items = [{"key": key, "path": folder + key} for key in keys]
        return {"secret": {"name": plane.child(component), "items": items}}

    sources = [
        projected("api-server-certificate", "apiserver.crt", "apiserver.key"),
        projected("ca", "ca.crt", "ca.key"),
        projected(
            "api-server-kubelet-client-certificate", "apiserver-kubelet-client.crt", "apiserver-kubelet-client.key"
        ),
        projected("front-proxy-ca-certificate", "front-proxy-ca.crt", "front-proxy-ca.key"),
        projected("front-proxy-client-certificate", "front-proxy-client.crt", "front-proxy-client.key"),
        projected("sa-certificate", "sa.pub", "sa.key"),
        projected("datastore-certificate", "ca.crt", "server.crt", "server.key", folder="etcd/"),
    ]
    volumes: list[Manifest] = [
        {"name": "etc-kubernetes-pki", "projected": {"sources": sources, "defaultMode": 420}},
        _secret_volume(plane, "etc-ca-certificates", "ca"),
        _secret_volume(plane, "usr-share-ca-certificates", "ca"),
        _secret_volume(plane, "usr-local-share-ca-certificates", "ca"),
        _secret_volume(plane, "scheduler-kubeconfig", "scheduler-kubeconfig"),
        _secret_volume(plane, "controller-manager-kubeconfig", "controller-manager-kubeconfig"),
    ]
    if plane.konnectivity:
        name = plane.child("konnectivity-egress-selector-configuration")
        volumes += [
            {"name": "konnectivity-uds", "emptyDir": {"medium": "Memory"}},
            {"name": "egress-selector-configuration", "configMap": {"name": name, "defaultMode": 420}},
            # the agents' private key is theirs alone
            _secret_volume(plane, "konnectivity-keys", "konnectivity-certificate", ("host-key", "agent-key.pub")),
        ]
    return volumes


def deployment(
    plane: ControlPlane, address: str, etcd_endpoints: Iterable[str], secrets: Mapping[str, Data]
) -> Manifest:
    """Takes the tenant's Secrets by component. Returns the control plane's Deployment, the tunnel's server in it."""
    spec = plane.deployment
    metadata = _metadata(plane, plane.name, "deployment")
    extra = spec.get("additionalMetadata", {})
    metadata["labels"] |= extra.get("labels", {})
    metadata["annotations"] = extra.get("annotations", {})
    labels = {
        NAME_LABEL: plane.name,
        "kamaji.clastix.io/component": "deployment",
        "component.kamaji.clastix.io/datastore": plane.datastore,
        **{f"component.kamaji.clastix.io/{label}": checksum(secrets[name]) for name, label in HASHED.items()},
        **spec.get("podAdditionalMetadata", {}).get("labels", {}),
    }
    annotations = {
        **spec.get("podAdditionalMetadata", {}).get("annotations", {}),
        "storage.kamaji.clastix.io/config": checksum(secrets["datastore-config"]),
        "storage.kamaji.clastix.io/certificate": checksum(secrets["datastore-certificate"]),
    }
    if plane.konnectivity:
        annotations["konnectivity.kamaji.clastix.io/keys"] = checksum(secrets["konnectivity-certificate"])
    selector = {"matchLabels": {NAME_LABEL: plane.name}}
    pod: Manifest = {
        "serviceAccountName": spec.get("serviceAccountName") or "default",
        "containers": [*spec.get("additionalContainers", []), *_containers(plane, address, etcd_endpoints)],
        "volumes": [*spec.get("additionalVolumes", []), *_volumes(plane)],
        "topologySpreadConstraints": [
            {"labelSelector": selector, **constraint} for constraint in spec.get("topologySpreadConstraints", [])
        ],
    }
    for theirs, ours in {
        "nodeSelector": "nodeSelector",
        "tolerations": "tolerations",
        "affinity": "affinity",
        "runtimeClassName": "runtimeClassName",
        "additionalInitContainers": "initContainers",
        "automountServiceAccountToken": "automountServiceAccountToken",
        "podSecurityContext": "securityContext",
    }.items():
        if spec.get(theirs) is not None:
            pod[ours] = spec[theirs]
    # Blue and green: a rolling mix of two versions would answer in turns.
    strategy = spec.get("strategy") or {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "100%"},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": plane.replicas,
            "selector": selector,
            "strategy": strategy,
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }
