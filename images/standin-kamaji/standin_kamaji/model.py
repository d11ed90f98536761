# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""A TenantControlPlane and a DataStore as their users wrote them (Kamaji 26.8.2-edge, api/v1alpha1). No I/O."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

API_VERSION = "kamaji.clastix.io/v1alpha1"
NEWEST_MINOR = 36
FINALIZER = "finalizer.kamaji.clastix.io"
DATASTORE_FINALIZER = "kamaji.clastix.io/TenantControlPlane"
PAUSED = "kamaji.clastix.io/paused"
PROJECT_LABEL = "kamaji.clastix.io/project"
NAME_LABEL = "kamaji.clastix.io/name"
COMPONENT_LABEL = "kamaji.clastix.io/component"
CHECKSUM = "kamaji.clastix.io/checksum"
ROTATE = "certs.kamaji.clastix.io/rotate"
SERVER_IMAGE = "registry.k8s.io/kas-network-proxy/proxy-server"
AGENT_IMAGE = "registry.k8s.io/kas-network-proxy/proxy-agent"
ADMISSION_CONTROLLERS = (
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "DefaultIngressClass",
    "DefaultStorageClass",
    "DefaultTolerationSeconds",
    "LimitRanger",
    "MutatingAdmissionWebhook",
    "NamespaceLifecycle",
    "PersistentVolumeClaimResize",
    "Priority",
    "ResourceQuota",
    "RuntimeClass",
    "ServiceAccount",
    "StorageObjectInUseProtection",
    "TaintNodesByCondition",
    "ValidatingAdmissionWebhook",
)

# What the operator honours, as a tree: None stands for everything below.
HONOURED: dict[str, Any] = {
    "dataStore": None,
    "dataStoreSchema": None,
    "dataStoreUsername": None,
    "controlPlane": {
        "deployment": {
            "registrySettings": None,
            "replicas": None,
            "nodeSelector": None,
            "runtimeClassName": None,
            "strategy": None,
            "tolerations": None,
            "affinity": None,
            "topologySpreadConstraints": None,
            "resources": {"apiServer": None, "controllerManager": None, "scheduler": None},
            "extraArgs": {"apiServer": None, "controllerManager": None, "scheduler": None},
            "additionalMetadata": None,
            "podAdditionalMetadata": None,
            "additionalInitContainers": None,
            "additionalContainers": None,
            "additionalVolumes": None,
            "additionalVolumeMounts": None,
            "probes": None,
            "serviceAccountName": None,
            "automountServiceAccountToken": None,
            "containerSecurityContexts": None,
            "podSecurityContext": None,
        },
        "service": None,
    },
    "kubernetes": {
        "version": None,
        "kubelet": {"cgroupfs": None, "configurationJSONPatches": None, "preferredAddressTypes": None},
        "admissionControllers": None,
    },
    "networkProfile": {
        "loadBalancerSourceRanges": None,
        "loadBalancerClass": None,
        "address": None,
        "allowAddressAsExternalIP": None,
        "port": None,
        "certSANs": None,
        "serviceCidr": None,
        "serviceCidrs": None,
        "podCidr": None,
        "podCidrs": None,
        "dnsServiceIPs": None,
        "clusterDomain": None,
    },
    "addons": {
        "coreDNS": None,
        "kubeProxy": None,
        "konnectivity": {
            "server": {"port": None, "version": None, "image": None, "resources": None, "securityContext": None},
            "agent": None,
        },
    },
}


class SpecError(ValueError):
    """The resource asks for what cannot be done; the message says what and where, and what to do."""


def ignored(spec: Mapping[str, Any], honoured: Mapping[str, Any] = HONOURED) -> Iterator[str]:
    """Takes a TenantControlPlane's spec. Returns the dotted paths that have no effect here."""
    for key, value in spec.items():
        if key not in honoured:
            if value not in (None, {}, [], "", False):
                yield key
        elif isinstance(honoured[key], dict) and isinstance(value, Mapping):
            yield from (f"{key}.{rest}" for rest in ignored(value, honoured[key]))


@dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Version:
        try:
            major, minor, patch = (int(part) for part in text.removeprefix("v").split("."))
        except ValueError:
            raise SpecError(f"kubernetes.version {text!r} is no version; write it like v1.36.3.") from None
        return cls(major, minor, patch)

    def __str__(self) -> str:
        return f"v{self.major}.{self.minor}.{self.patch}"


def check_version(wanted: Version, installed: Version | None) -> None:
    """Raises SpecError where Kamaji's webhook refuses (internal/webhook/handlers/tcp_version.go)."""
    if (wanted.major, wanted.minor) > (1, NEWEST_MINOR):
        raise SpecError(
            f"kubernetes.version {wanted} is newer than the newest supported minor, v1.{NEWEST_MINOR}; "
            f"ask for v1.{NEWEST_MINOR} or older."
        )
    if installed is None:
        return
    if (wanted.major, wanted.minor) < (installed.major, installed.minor):
        raise SpecError(f"kubernetes.version: unable to downgrade from {installed} to {wanted}.")
    if wanted.minor - installed.minor > 1:
        raise SpecError(
            f"kubernetes.version: unable to upgrade from {installed} to {wanted} at once; "
            f"go to v1.{installed.minor + 1} first."
        )


@dataclass(frozen=True)
class Konnectivity:
    server_image: str
    server_port: int
    server: Mapping[str, Any]
    agent_image: str
    agent: Mapping[str, Any]

    @property
    def agent_mode(self) -> str:
        return str(self.agent.get("mode") or "DaemonSet")


@dataclass(frozen=True)
class ControlPlane:
    """A TenantControlPlane with its defaults filled in. Mappings are parts of the spec handed on as they are."""

    namespace: str
    name: str
    uid: str
    generation: int
    version: Version
    datastore: str
    schema: str
    user: str
    deployment: Mapping[str, Any]
    service: Mapping[str, Any]
    network: Mapping[str, Any]
    kubelet: Mapping[str, Any]
    admission_controllers: tuple[str, ...]
    service_cidrs: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    dns_ips: tuple[str, ...]
    konnectivity: Konnectivity | None
    core_dns: Mapping[str, Any] | None
    kube_proxy: Mapping[str, Any] | None
    status: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def port(self) -> int:
        return int(self.network.get("port") or 6443)

    @property
    def domain(self) -> str:
        return str(self.network.get("clusterDomain") or "cluster.local")

    @property
    def replicas(self) -> int:
        return int(self.deployment.get("replicas", 2))

    @property
    def service_name(self) -> str:
        return f"{self.name}.{self.namespace}.svc"

    @property
    def installed(self) -> Version | None:
        text = self.status.get("kubernetesResources", {}).get("version", {}).get("version")
        return Version.parse(text) if text else None

    def child(self, name: str) -> str:
        return f"{self.name}-{name}"

    def labels(self, component: str) -> dict[str, str]:
        return {PROJECT_LABEL: "kamaji", NAME_LABEL: self.name, COMPONENT_LABEL: component}

    def image(self, component: str) -> str:
        """Takes apiServer, controllerManager or scheduler. Returns the image to run."""
        names = {
            "apiServer": "kube-apiserver",
            "controllerManager": "kube-controller-manager",
            "scheduler": "kube-scheduler",
        }
        settings = self.deployment.get("registrySettings", {})
        registry = settings.get("registry") or "registry.k8s.io"
        image = settings.get(f"{component}Image") or names[component]
        return f"{registry}/{image}:{self.version}{settings.get('tagSuffix', '')}"


def _cidrs(network: Mapping[str, Any], one: str, many: str, default: str) -> tuple[str, ...]:
    cidrs = tuple(network.get(many) or [network.get(one) or default])
    for cidr in cidrs:
        try:
            ipaddress.ip_network(cidr)
        except ValueError as error:
            raise SpecError(f"networkProfile.{one}: {error}; write a network like {default}.") from None
    return cidrs


def _dns_ip(cidr: str) -> str:
    network = ipaddress.ip_network(cidr)
    return str(network[10 if network.version == 4 else 16])


def _konnectivity(spec: Mapping[str, Any] | None) -> Konnectivity | None:
    if spec is None:
        return None
    server, agent = spec.get("server", {}), spec.get("agent", {})
    return Konnectivity(
        server_image=server.get("image") or SERVER_IMAGE,
        server_port=int(server.get("port") or 8132),
        server=server,
        agent_image=agent.get("image") or AGENT_IMAGE,
        agent=agent,
    )


def control_plane(resource: Mapping[str, Any], default_datastore: str) -> ControlPlane:
    """Takes a TenantControlPlane. Raises SpecError where it cannot be realised."""
    metadata, spec = resource["metadata"], resource["spec"]
    status = resource.get("status", {})
    network = spec.get("networkProfile", {})
    kubernetes = spec["kubernetes"]
    addons = spec.get("addons", {})
    service_cidrs = _cidrs(network, "serviceCidr", "serviceCidrs", "10.96.0.0/16")
    setup = status.get("storage", {}).get("setup", {})
    datastore = spec.get("dataStore") or default_datastore
    if not datastore:
        raise SpecError("dataStore is empty and there is no default one; name a DataStore.")
    return ControlPlane(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        version=Version.parse(kubernetes["version"]),
        datastore=datastore,
        schema=setup.get("schema") or spec.get("dataStoreSchema") or metadata["uid"],
        user=setup.get("user") or spec.get("dataStoreUsername") or metadata["uid"],
        deployment=spec["controlPlane"].get("deployment", {}),
        service=spec["controlPlane"]["service"],
        network=network,
        kubelet=kubernetes.get("kubelet", {}),
        admission_controllers=tuple(kubernetes.get("admissionControllers") or ADMISSION_CONTROLLERS),
        service_cidrs=service_cidrs,
        pod_cidrs=_cidrs(network, "podCidr", "podCidrs", "10.244.0.0/16"),
        dns_ips=tuple(network.get("dnsServiceIPs") or map(_dns_ip, service_cidrs)),
        konnectivity=_konnectivity(addons.get("konnectivity")),
        core_dns=addons.get("coreDNS"),
        kube_proxy=addons.get("kubeProxy"),
        status=status,
    )


@dataclass(frozen=True)
class ContentRef:
    """Where a part of a DataStore's credentials stands: in place, or in a key of a Secret."""

    where: str
    content: bytes | None
    secret: tuple[str, str] | None
    key: str


def _content_ref(spec: Mapping[str, Any] | None, where: str) -> ContentRef:
    spec = spec or {}
    if content := spec.get("content"):
        try:
            return ContentRef(where, base64.b64decode(content, validate=True), None, "")
        except binascii.Error as error:
            raise SpecError(f"{where}.content is no base64: {error}.") from None
    reference = spec.get("secretReference")
    if not reference:
        raise SpecError(f"{where} has neither content nor secretReference.")
    return ContentRef(where, None, (reference["namespace"], reference["name"]), reference["keyPath"])


@dataclass(frozen=True)
class DataStore:
    name: str
    endpoints: tuple[str, ...]
    ca: ContentRef
    ca_key: ContentRef
    certificate: ContentRef
    key: ContentRef


def data_store(resource: Mapping[str, Any]) -> DataStore:
    """Takes a DataStore. Raises SpecError where it cannot be used."""
    spec = resource["spec"]
    if spec["driver"] != "etcd":
        raise SpecError(f"driver {spec['driver']} is not served here; use etcd.")
    tls = spec.get("tlsConfig", {})
    authority, client = tls.get("certificateAuthority", {}), tls.get("clientCertificate", {})
    return DataStore(
        name=resource["metadata"]["name"],
        endpoints=tuple(spec["endpoints"]),
        ca=_content_ref(authority.get("certificate"), "tlsConfig.certificateAuthority.certificate"),
        ca_key=_content_ref(authority.get("privateKey"), "tlsConfig.certificateAuthority.privateKey"),
        certificate=_content_ref(client.get("certificate"), "tlsConfig.clientCertificate.certificate"),
        key=_content_ref(client.get("privateKey"), "tlsConfig.clientCertificate.privateKey"),
    )
