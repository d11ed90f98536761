# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""What stands inside a tenant: kubeadm's configuration and rules, cluster-info, the addons and the tunnel's agent."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from .api import Api, path_of
from .manifests import Manifest, tunnel_version
from .model import ControlPlane, Konnectivity, SpecError
from .programs import kubeadm_documents, kubeadm_phase, write_documents

RBAC = "rbac.authorization.k8s.io/v1"
RBAC_GROUP = "rbac.authorization.k8s.io"
AGENT = "konnectivity-agent"
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def _subject(name: str, kind: str = "Group") -> Manifest:
    return {"apiGroup": RBAC_GROUP, "kind": kind, "name": name}


def cluster_admins() -> Manifest:
    """admin.conf's right (kubeadm's EnsureAdminClusterRoleBinding)."""
    return {
        "apiVersion": RBAC,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "kubeadm:cluster-admins"},
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [_subject("kubeadm:cluster-admins")],
    }


def kubelet_configuration(plane: ControlPlane) -> str:
    """The kubelets' configuration, with every default written out (internal/kubeadm/uploadconfig.go)."""
    defaults = resources.files(__package__).joinpath("kubelet-defaults.yaml").read_text(encoding="utf-8")
    configuration: dict[str, Any] = yaml.safe_load(defaults)
    configuration["authentication"]["x509"]["clientCAFile"] = "/etc/kubernetes/pki/ca.crt"
    configuration["clusterDNS"] = list(plane.dns_ips)
    configuration["clusterDomain"] = plane.domain
    configuration["rotateCertificates"] = True
    configuration["staticPodPath"] = "/etc/kubernetes/manifests"
    if driver := plane.kubelet.get("cgroupfs"):
        configuration["cgroupDriver"] = driver
    patches = plane.kubelet.get("configurationJSONPatches", [])
    try:
        configuration = jsonpatch.apply_patch(configuration, patches)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise SpecError(f"kubernetes.kubelet.configurationJSONPatches cannot be applied: {error}.") from error
    return yaml.safe_dump(configuration)


def kubelet_config_objects(plane: ControlPlane) -> list[Manifest]:
    metadata = {"name": "kubeadm:kubelet-config", "namespace": "kube-system"}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kubelet-config", "namespace": "kube-system"},
            "data": {"kubelet": kubelet_configuration(plane)},
        },
        {
            "apiVersion": RBAC,
            "kind": "Role",
            "metadata": metadata,
            "rules": [
                {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["kubelet-config"], "verbs": ["get"]}
            ],
        },
        {
            "apiVersion": RBAC,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": "kubeadm:kubelet-config"},
            "subjects": [_subject("system:nodes"), _subject("system:bootstrappers:kubeadm:default-node-token")],
        },
    ]


def cluster_info(admin_kubeconfig: bytes) -> str:
    """The kubeconfig without a user that kubeadm join reads: the public address and the CA."""
    cluster = yaml.safe_load(admin_kubeconfig)["clusters"][0]["cluster"]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": cluster}],
        "contexts": None,
        "current-context": "",
        "users": None,
    }
    return yaml.safe_dump(config)


def agent_objects(plane: ControlPlane, tunnel: Konnectivity, address: str, keys: Mapping[str, bytes]) -> list[Manifest]:
    """The tunnel's agent on the tenant's nodes, named and placed as in Kamaji's internal/resources/konnectivity."""

    def metadata(component: str, name: str = AGENT) -> Manifest:
        return {"name": name, "namespace": "kube-system", "labels": plane.labels(component)}

    host = f"[{address}]:{tunnel.server_port}"
    known_hosts = f"{host} {keys['host-key.pub'].decode()}\n"
    labels = {"k8s-app": AGENT}
    spec = tunnel.agent
    networks = ",".join((*plane.service_cidrs, *plane.pod_cidrs))
    pod: Manifest = {
        "serviceAccountName": AGENT,
        "automountServiceAccountToken": False,
        "priorityClassName": "system-cluster-critical",
        "tolerations": spec.get("tolerations", [{"key": "CriticalAddonsOnly", "operator": "Exists"}]),
        "hostNetwork": spec.get("hostNetwork", False),
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "terminationGracePeriodSeconds": 5,
        "volumes": [
            {"name": "keys", "secret": {"secretName": AGENT, "defaultMode": 420}},
            {"name": "run", "emptyDir": {"medium": "Memory"}},
        ],
        "containers": [
            {
                "name": AGENT,
                "image": f"{tunnel.agent_image}:{tunnel_version(plane, spec)}",
                "command": ["/proxy-agent"],
                "args": [
                    f"--proxy-server-host={address}",
                    f"--proxy-server-port={tunnel.server_port}",
                    f"--server-count={plane.replicas}",
                    "--health-server-port=8134",
                    "--keys=/etc/konnectivity",
                    f"--networks={networks}",
                    *spec.get("extraArgs", []),
                ],
                "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "volumeMounts": [
                    {"name": "keys", "mountPath": "/etc/konnectivity", "readOnly": True},
                    {"name": "run", "mountPath": "/run/konnectivity"},
                ],
                "livenessProbe": {
                    "httpGet": {"path": "/healthz", "port": 8134, "scheme": "HTTP"},
                    "initialDelaySeconds": 15,
                    "timeoutSeconds": 15,
                    "periodSeconds": 10,
                    "failureThreshold": 3,
                },
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 65534,
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    workload: Manifest = {
        "apiVersion": "apps/v1",
        "kind": tunnel.agent_mode,
        "metadata": metadata(AGENT),
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    if tunnel.agent_mode == "Deployment" and spec.get("replicas"):
        workload["spec"]["replicas"] = spec["replicas"]
    agent_key = base64.b64encode(keys["agent-key"]).decode()
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("konnectivity-sa")},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata(AGENT),
            "data": {"agent-key": agent_key, "known-hosts": base64.b64encode(known_hosts.encode()).decode()},
        },
        workload,
    ]


def _documents_of(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


@dataclass(frozen=True)
class Tenant:
    """A tenant's API with super-admin's rights, a kubeconfig that dials the same, and the address for its workers."""

    api: Api
    plane: ControlPlane
    folder: Path
    kubeconfig: Path
    address: str

    async def furnish(
        self, etcd_endpoints: Iterable[str], admin_kubeconfig: bytes, tunnel_keys: Mapping[str, bytes]
    ) -> None:
        """Brings the tenant's inside to what the spec asks for. Raises ApiError, ProgramError, SpecError."""
        await self.api.apply(cluster_admins())
        documents = kubeadm_documents(self.plane, self.address, etcd_endpoints)
        config = write_documents(self.folder / "kubeadm.yaml", documents)
        await asyncio.gather(
            *map(self.api.apply, kubelet_config_objects(self.plane)),
            kubeadm_phase("upload-config", "kubeadm", config=config, kubeconfig=self.kubeconfig),
            self._bootstrap(config, cluster_info(admin_kubeconfig)),
            self._addons(config),
            self._agent(tunnel_keys),
        )

    async def _bootstrap(self, config: Path, info: str) -> None:
        """Makes the rules for joining, and cluster-info; leaves no token behind, as Kamaji makes none."""
        path = path_of("v1", "ConfigMap", "kube-public", "cluster-info")
        found = await self.api.get(path)
        if found and found["data"].get("kubeconfig") == info:
            return
        name = _random(6)
        init, cluster = _documents_of(config)
        init["bootstrapTokens"] = [{"token": f"{name}.{_random(16)}", "ttl": "1m0s", "usages": ["authentication"]}]
        with_token = write_documents(self.folder / "bootstrap.yaml", [init, cluster])
        await kubeadm_phase("bootstrap-token", config=with_token, kubeconfig=self.kubeconfig)
        await self.api.delete(path_of("v1", "Secret", "kube-system", f"bootstrap-token-{name}"))
        # The phase wrote the address that it was given to dial, a pod's.
        await self.api.patch(path, {"data": {"kubeconfig": info}})

    def _kube_proxy_config(self, config: Path) -> Path:
        """kubeadm takes the image from the cluster's registry and version; the addon's own ones go there."""
        addon = self.plane.kube_proxy or {}
        init, cluster = _documents_of(config)
        cluster["imageRepository"] = addon.get("imageRepository") or "registry.k8s.io"
        cluster["kubernetesVersion"] = addon.get("imageTag") or str(self.plane.version)
        return write_documents(self.folder / "kube-proxy.yaml", [init, cluster])

    async def _addons(self, config: Path) -> None:
        """Makes the addons that are asked for; removes those that we made and that are not wanted any more."""
        made = self.plane.status.get("addons", {})
        phases = []
        if self.plane.core_dns is not None:
            phases.append(kubeadm_phase("addon", "coredns", config=config, kubeconfig=self.kubeconfig))
        elif made.get("coreDNS", {}).get("enabled"):
            await self._delete(("apps/v1", "Deployment", "coredns"), ("v1", "Service", "kube-dns"))
        if self.plane.kube_proxy is not None:
            own = self._kube_proxy_config(config)
            phases.append(kubeadm_phase("addon", "kube-proxy", config=own, kubeconfig=self.kubeconfig))
        elif made.get("kubeProxy", {}).get("enabled"):
            await self._delete(("apps/v1", "DaemonSet", "kube-proxy"))
        await asyncio.gather(*phases)

    async def _agent(self, keys: Mapping[str, bytes]) -> None:
        tunnel = self.plane.konnectivity
        daemon_set, deployment = ("apps/v1", "DaemonSet", AGENT), ("apps/v1", "Deployment", AGENT)
        if tunnel:
            await asyncio.gather(*map(self.api.apply, agent_objects(self.plane, tunnel, self.address, keys)))
            await self._delete(deployment if tunnel.agent_mode == "DaemonSet" else daemon_set)
        elif self.plane.status.get("addons", {}).get("konnectivity", {}).get("enabled"):
            await self._delete(daemon_set, deployment, ("v1", "Secret", AGENT))

    async def _delete(self, *objects: tuple[str, str, str]) -> None:
        for api_version, kind, name in objects:
            await self.api.delete(path_of(api_version, kind, "kube-system", name))
