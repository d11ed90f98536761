# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a TenantControlPlane to a control plane that serves, and back to nothing. Every step can be taken again."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import logging
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from typing import Any

import yaml

from . import manifests, model, tenant
from .api import Api, ApiError, Object, from_kubeconfig, path_of
from .model import API_VERSION, ContentRef, ControlPlane, DataStore, SpecError
from .pki import Data, Workshop, etcd_client, tunnel_keys
from .programs import Etcd, ProgramError, kubeadm_documents

log = logging.getLogger("kamaji")

ADDRESS_WAIT_S = 60
BOOT_WAIT_S = 90
POLL_S = 0.2


class NotYetError(Exception):
    """Something outside is missing still; the message says what. Tried again soon."""


class SupersededError(Exception):
    """The resource was changed while it was worked on; it is taken up again as it is now."""


FAILURES = (NotYetError, SupersededError, ApiError, ProgramError, SpecError)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def read_content(api: Api, ref: ContentRef) -> bytes:
    """Raises SpecError where the DataStore's reference leads nowhere."""
    if ref.content is not None:
        return ref.content
    namespace, name = ref.secret or ("", "")
    found = await api.get(path_of("v1", "Secret", namespace, name))
    value = (found or {}).get("data", {}).get(ref.key)
    if value is None:
        raise SpecError(f"{ref.where}: the Secret {namespace}/{name} has no key {ref.key}; create it.")
    return base64.b64decode(value)


@dataclass(frozen=True)
class Credentials:
    ca: bytes
    ca_key: bytes
    certificate: bytes
    key: bytes


async def credentials(api: Api, store: DataStore) -> Credentials:
    refs = (store.ca, store.ca_key, store.certificate, store.key)
    return Credentials(*await asyncio.gather(*(read_content(api, ref) for ref in refs)))


@dataclass(frozen=True)
class Store:
    """A DataStore with what it takes to use it."""

    spec: DataStore
    credentials: Credentials

    def etcd(self, folder: Path) -> Etcd:
        files = {"ca.crt": self.credentials.ca, "client.crt": self.credentials.certificate}
        for name, content in {**files, "client.key": self.credentials.key}.items():
            (folder / name).write_bytes(content)
        return Etcd(self.spec, folder)


@dataclass(frozen=True)
class Cluster:
    """What a tenant's inside has to know of the outside."""

    address: str
    etcd_endpoints: tuple[str, ...]


class Reconciler:
    """Takes one TenantControlPlane at a time through its life."""

    def __init__(self, api: Api, default_datastore: str, work_folder: Path) -> None:
        self._api = api
        self._default_datastore = default_datastore
        self._work_folder = work_folder
        self._furnished: dict[str, str] = {}  # uid: what its inside was last made from
        self._said: set[tuple[str, ...]] = set()

    # ---- what the users see

    async def event(self, resource: Object, kind: str, reason: str, message: str) -> None:
        """Posts an event once for each message; that it cannot be posted stops nothing."""
        metadata = resource["metadata"]
        said = (metadata["uid"], reason, message)
        if said in self._said:
            return
        self._said.add(said)
        log.info("%s/%s: %s: %s", metadata.get("namespace", ""), metadata["name"], reason, message)
        namespace = metadata.get("namespace", "default")
        suffix = hashlib.sha256("".join(said).encode()).hexdigest()[:10]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": f"{metadata['name']}.{suffix}"},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": resource["kind"],
                "name": metadata["name"],
                "namespace": metadata.get("namespace", ""),
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "kamaji"},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        try:
            await self._api.request("POST", path_of("v1", "Event", namespace), event)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:  # the same was said before this process began
                log.warning("event not posted: %s", error)

    async def _status(self, resource: Object, changes: Mapping[str, Any]) -> None:
        """Writes those parts of the status that differ; times alone are no difference."""
        difference = _difference(resource.get("status", {}), changes)
        if not difference:
            return
        metadata = resource["metadata"]
        path = path_of(API_VERSION, "TenantControlPlane", metadata["namespace"], metadata["name"]) + "/status"
        patched = await self._api.patch(path, {"status": difference})
        resource["status"] = patched.get("status", {})

    # ---- the life of a tenant

    async def reconcile(self, namespace: str, name: str) -> bool:
        """Brings the tenant to what its resource says. Returns False where there is none any more."""
        path = path_of(API_VERSION, "TenantControlPlane", namespace, name)
        resource = await self._api.get(path)
        if resource is None:
            return False
        metadata = resource["metadata"]
        if model.PAUSED in metadata.get("annotations", {}):
            return True
        try:
            if metadata.get("deletionTimestamp"):
                return await self._remove(resource, path)
            await self._bring_up(resource, path)
        except SupersededError:
            raise
        except FAILURES as error:
            await self.event(resource, "Warning", type(error).__name__.removesuffix("Error"), str(error))
            raise
        return True

    @asynccontextmanager
    async def _folder(self, plane: ControlPlane) -> AsyncIterator[Path]:
        self._work_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = Path(tempfile.mkdtemp(prefix=f"{plane.namespace}-{plane.name}-", dir=self._work_folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _store(self, name: str) -> Store:
        resource = await self._api.get(path_of(API_VERSION, "DataStore", name=name))
        if resource is None:
            raise NotYetError(f"{name} DataStore does not exist")
        store = model.data_store(resource)
        return Store(store, await credentials(self._api, store))

    async def _bring_up(self, resource: Object, path: str) -> None:
        """Makes everything that the resource asks for, from the finalizer to the tenant's addons."""
        plane = model.control_plane(resource, self._default_datastore)
        model.check_version(plane.version, plane.installed)
        without_effect = sorted(model.ignored(resource["spec"]))
        if without_effect:
            listed = ", ".join(f"spec.{field}" for field in without_effect)
            await self.event(resource, "Warning", "FieldIgnored", f"The stand-in for Kamaji ignores {listed}.")
        if model.FINALIZER not in resource["metadata"].get("finalizers", []):
            finalizers = [*resource["metadata"].get("finalizers", []), model.FINALIZER]
            body = {"metadata": {"finalizers": finalizers, "resourceVersion": resource["metadata"]["resourceVersion"]}}
            await self._api.patch(path, body)
        store = await self._store(plane.datastore)
        async with self._folder(plane) as folder:
            await self._make(resource, plane, store, folder)

    async def _make(self, resource: Object, plane: ControlPlane, store: Store, folder: Path) -> None:
        service = await self._api.apply(manifests.service(plane))
        found = await self._secrets(plane)
        address_known = asyncio.ensure_future(self._address(plane, service))
        workshop = Workshop(plane, folder, store.spec.endpoints)
        try:
            made, _ = await asyncio.gather(
                workshop.all(found, address_known), store.etcd(folder).ensure(plane.user, plane.schema)
            )
        finally:
            address_known.cancel()
        address = address_known.result()
        made |= self._own_secrets(plane, store, found)
        init, cluster = kubeadm_documents(plane, address, store.spec.endpoints)
        documents = {"InitConfiguration": yaml.safe_dump(init), "ClusterConfiguration": yaml.safe_dump(cluster)}
        egress = {manifests.EGRESS_FILE: manifests.egress_configuration()}
        objects = [manifests.secret(plane, name, data) for name, data in made.items()]
        objects.append(manifests.config_map(plane, "kubeadmconfig", documents))
        if plane.konnectivity:
            objects.append(manifests.config_map(plane, "konnectivity-egress-selector-configuration", egress))
        await asyncio.gather(*map(self._api.apply, objects))
        deployment = await self._api.apply(manifests.deployment(plane, address, store.spec.endpoints, made))
        checksums = {
            name: manifests.checksum(data)
            for name, data in {**made, "kubeadmconfig": {key: text.encode() for key, text in documents.items()}}.items()
        }
        await self._status(resource, _state(plane, checksums, address, egress))
        await self._status(resource, _running(plane, service, deployment, furnished=False))
        if plane.replicas:
            await self._furnish(plane, folder, made, Cluster(address, store.spec.endpoints))
        await self.observe(resource)

    def _own_secrets(self, plane: ControlPlane, store: Store, found: Mapping[str, Data]) -> dict[str, Data]:
        """The Secrets that kubeadm has no part in."""
        own = store.credentials
        password = found.get("datastore-config", {}).get("DB_PASSWORD") or token_hex(16).encode()
        made = {
            "datastore-certificate": etcd_client(
                plane.user, own.ca, own.ca_key, found.get("datastore-certificate", {})
            ),
            "datastore-config": {
                "DB_CONNECTION_STRING": b"",
                "DB_SCHEMA": plane.schema.encode(),
                "DB_USER": plane.user.encode(),
                "DB_PASSWORD": password,
            },
        }
        if plane.konnectivity:
            made["konnectivity-certificate"] = tunnel_keys(found.get("konnectivity-certificate", {}))
        return made

    async def _secrets(self, plane: ControlPlane) -> dict[str, Data]:
        """Returns the tenant's Secrets by component, less those whose rotation is asked for."""
        listed = await self._api.list(path_of("v1", "Secret", plane.namespace), f"{model.NAME_LABEL}={plane.name}")
        found = {}
        for secret in listed:
            metadata = secret["metadata"]
            if metadata.get("annotations", {}).get(model.ROTATE) == "":
                mark = {"metadata": {"annotations": {model.ROTATE: now()}}}
                await self._api.patch(path_of("v1", "Secret", plane.namespace, metadata["name"]), mark)
                continue
            component = metadata["labels"].get(model.COMPONENT_LABEL, "")
            found[component] = {key: base64.b64decode(value) for key, value in secret.get("data", {}).items()}
        return found

    async def _address(self, plane: ControlPlane, service: Object) -> str:
        """Waits for the address under which the Service is reached. Raises NotYetError."""
        declared = plane.network.get("address")
        kind = plane.service["serviceType"]
        if declared:
            return str(declared)
        if kind == "ClusterIP":
            return str(service["spec"]["clusterIP"])
        if kind == "NodePort":
            raise SpecError("networkProfile.address is empty; a NodePort Service needs it.")
        end = time.monotonic() + ADDRESS_WAIT_S
        path = path_of("v1", "Service", plane.namespace, plane.name)
        while time.monotonic() < end:
            await self._still_wanted(plane)
            for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress", []):
                if ingress.get("ip"):
                    return str(ingress["ip"])
                raise SpecError("hostname not supported for LoadBalancer ingress: use static IP instead.")
            await asyncio.sleep(POLL_S)
            service = await self._api.get(path) or service
        raise NotYetError(f"the Service {plane.namespace}/{plane.name} got no address from a load balancer.")

    # ---- inside the tenant

    async def _furnish(self, plane: ControlPlane, folder: Path, made: Mapping[str, Data], cluster: Cluster) -> None:
        """Fills the tenant as soon as one of its API servers answers."""
        source = hashlib.sha256(
            repr((plane.generation, cluster, made["admin-kubeconfig"]["admin.conf"])).encode()
        ).hexdigest()
        if self._furnished.get(plane.uid) == source:
            return
        text = made["admin-kubeconfig"]["super-admin.conf"]
        server = await self._answering(plane, text)
        config = yaml.safe_load(text)
        config["clusters"][0]["cluster"] |= {"server": server, "tls-server-name": "localhost"}
        keys = made.get("konnectivity-certificate", {})
        dialled = folder / "tenant.conf"
        dialled.write_text(yaml.safe_dump(config), encoding="utf-8")
        async with from_kubeconfig(text, server, "localhost") as api:
            inside = tenant.Tenant(api, plane, folder, dialled, cluster.address)
            await inside.furnish(cluster.etcd_endpoints, made["admin-kubeconfig"]["admin.conf"], keys)
        self._furnished[plane.uid] = source

    async def _answering(self, plane: ControlPlane, kubeconfig: bytes) -> str:
        """Waits for an API server of the tenant, asked at its pod: sooner than through the Service."""
        end = time.monotonic() + BOOT_WAIT_S
        seen = "no pod"
        while time.monotonic() < end:
            pods = await self._api.list(
                path_of("v1", "Pod", plane.namespace),
                f"{model.NAME_LABEL}={plane.name},{model.COMPONENT_LABEL}=deployment",
            )
            for pod in pods:
                ip = pod.get("status", {}).get("podIP")
                seen = _what_holds_up(pod)
                if not ip or pod["metadata"].get("deletionTimestamp"):
                    continue
                server = f"https://[{ip}]:{plane.port}" if ":" in ip else f"https://{ip}:{plane.port}"
                try:
                    async with from_kubeconfig(kubeconfig, server, "localhost") as api:
                        await api.request("GET", "/readyz")
                    return server
                except ApiError as error:
                    seen = str(error)
            await asyncio.sleep(POLL_S)
        raise NotYetError(f"no API server of {plane.namespace}/{plane.name} is ready after {BOOT_WAIT_S} s: {seen}.")

    # ---- looking only

    async def observe(self, resource: Object) -> None:
        """Brings the status to what Deployment and Service say."""
        plane = model.control_plane(resource, self._default_datastore)
        service, deployment = await asyncio.gather(
            self._api.get(path_of("v1", "Service", plane.namespace, plane.name)),
            self._api.get(path_of("apps/v1", "Deployment", plane.namespace, plane.name)),
        )
        if service and deployment:
            furnished = plane.uid in self._furnished
            await self._status(resource, _running(plane, service, deployment, furnished))

    async def look(self, namespace: str, name: str) -> None:
        resource = await self._api.get(path_of(API_VERSION, "TenantControlPlane", namespace, name))
        if resource and not resource["metadata"].get("deletionTimestamp"):
            await self.observe(resource)

    # ---- the end

    async def _remove(self, resource: Object, path: str) -> bool:
        """The Deployment goes first, so that nothing writes into etcd when the tenant's keys are removed."""
        metadata = resource["metadata"]
        finalizers = metadata.get("finalizers", [])
        if model.FINALIZER not in finalizers:
            return True
        plane = model.control_plane(resource, self._default_datastore)
        await self._api.delete(path_of("apps/v1", "Deployment", plane.namespace, plane.name))
        if resource.get("status", {}).get("storage", {}).get("setup", {}).get("schema"):
            await self._pods_gone(plane)
            store = await self._store(plane.datastore)
            async with self._folder(plane) as folder:
                await store.etcd(folder).remove(plane.user, plane.schema)
        kept = [finalizer for finalizer in finalizers if finalizer != model.FINALIZER]
        await self._api.patch(path, {"metadata": {"finalizers": kept, "resourceVersion": metadata["resourceVersion"]}})
        self._furnished.pop(plane.uid, None)
        self._said = {said for said in self._said if said[0] != plane.uid}
        return True

    async def _pods(self, plane: ControlPlane) -> list[Object]:
        selector = f"{model.NAME_LABEL}={plane.name},{model.COMPONENT_LABEL}=deployment"
        return await self._api.list(path_of("v1", "Pod", plane.namespace), selector)

    async def _still_wanted(self, plane: ControlPlane) -> None:
        """A wait ends when the resource has changed or goes. Raises SupersededError."""
        resource = await self._api.get(path_of(API_VERSION, "TenantControlPlane", plane.namespace, plane.name))
        if not resource or resource["metadata"].get("deletionTimestamp"):
            raise SupersededError(f"{plane.namespace}/{plane.name} is being deleted.")
        if resource["metadata"]["generation"] != plane.generation:
            raise SupersededError(f"{plane.namespace}/{plane.name} has been changed.")

    async def _pods_gone(self, plane: ControlPlane) -> None:
        end = time.monotonic() + BOOT_WAIT_S
        while pods := await self._pods(plane):
            if time.monotonic() > end:
                raise NotYetError(f"the pod {pods[0]['metadata']['name']} is still there.")
            await asyncio.sleep(POLL_S)


def _what_holds_up(pod: Object) -> str:
    status = pod.get("status", {})
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return f"{container['name']} {waiting.get('reason', '')} {waiting.get('message', '')}".strip()
    for condition in status.get("conditions", []):
        if condition["status"] == "False" and condition.get("message"):
            return str(condition["message"])
    return f"pod {status.get('phase', 'unknown')}"


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a merge patch from old to new (None removes); empty where nothing but lastUpdate differs."""
    changed: dict[str, Any] = {}
    for key, value in new.items():
        if isinstance(value, Mapping) and isinstance(old.get(key), Mapping):
            if inner := _difference(old[key], value):
                changed[key] = inner
        elif value != old.get(key) and (key != "lastUpdate" or key not in old):
            changed[key] = value
    if changed and "lastUpdate" in new:
        changed["lastUpdate"] = new["lastUpdate"]
    return changed


def _state(
    plane: ControlPlane, checksums: Mapping[str, str], address: str, egress: Mapping[str, str]
) -> dict[str, Any]:
    """The part of the status that names what was made."""

    def of(component: str) -> dict[str, str]:
        return {"secretName": plane.child(component), "checksum": checksums[component], "lastUpdate": now()}

    endpoint = f"[{address}]" if ":" in address else address
    konnectivity: dict[str, Any] = {"enabled": False}
    if tunnel := plane.konnectivity:
        agent = {"name": tenant.AGENT, "namespace": "kube-system"}
        checksum = manifests.checksum({key: text.encode() for key, text in egress.items()})
        konnectivity = {
            "enabled": True,
            "certificate": of("konnectivity-certificate"),
            "configMap": {"name": plane.child("konnectivity-egress-selector-configuration"), "checksum": checksum},
            "agent": {**agent, "mode": tunnel.agent_mode, "lastUpdate": now()},
            "sa": agent,
            "service": {"name": plane.name, "namespace": plane.namespace, "port": tunnel.server_port},
        }
    return {
        "controlPlaneEndpoint": f"{endpoint}:{plane.port}",
        "storage": {
            "driver": "etcd",
            "dataStoreName": plane.datastore,
            "config": {key: value for key, value in of("datastore-config").items() if key != "lastUpdate"},
            "setup": {
                "schema": plane.schema,
                "user": plane.user,
                "checksum": checksums["datastore-config"],
                "lastUpdate": now(),
            },
            "certificate": of("datastore-certificate"),
        },
        "certificates": {
            "ca": of("ca"),
            "apiServer": of("api-server-certificate"),
            "apiServerKubeletClient": of("api-server-kubelet-client-certificate"),
            "frontProxyCA": of("front-proxy-ca-certificate"),
            "frontProxyClient": of("front-proxy-client-certificate"),
            "sa": of("sa-certificate"),
        },
        "kubeconfig": {
            "admin": of("admin-kubeconfig"),
            "controllerManager": of("controller-manager-kubeconfig"),
            "scheduler": of("scheduler-kubeconfig"),
        },
        "kubeadmconfig": {
            "configmapName": plane.child("kubeadmconfig"),
            "checksum": checksums["kubeadmconfig"],
            "lastUpdate": now(),
        },
        "kubeadmPhase": {"bootstrapToken": {"checksum": checksums["kubeadmconfig"], "lastUpdate": now()}},
        "addons": {
            "coreDNS": {"enabled": plane.core_dns is not None, "lastUpdate": now()},
            "kubeProxy": {"enabled": plane.kube_proxy is not None, "lastUpdate": now()},
            "konnectivity": konnectivity,
        },
    }


def _running(plane: ControlPlane, service: Object, deployment: Object, furnished: bool) -> dict[str, Any]:
    """The part of the status that Deployment and Service decide (k8s_deployment_resource.go, computeStatus)."""
    seen = deployment.get("status", {})
    settled = (
        deployment["metadata"].get("generation") == seen.get("observedGeneration")
        and not seen.get("unavailableReplicas")
        and seen.get("updatedReplicas") == seen.get("readyReplicas") == seen.get("replicas") == plane.replicas
    )
    installed = plane.installed
    if plane.replicas == 0:
        state = "Sleeping"
    elif settled and furnished:
        state = "Ready"
    elif installed is None:
        state = "Provisioning"
    elif not seen.get("readyReplicas"):
        state = "NotReady"
    else:
        state = "Upgrading" if installed != plane.version else "Ready" if settled else "NotReady"
    version: dict[str, Any] = {"status": state}
    if state in ("Ready", "Sleeping") and (state == "Sleeping" or furnished):
        version["version"] = str(plane.version)
    where = {"name": plane.name, "namespace": plane.namespace}
    return {
        "observedGeneration": plane.generation,
        "kubernetesResources": {
            "version": version,
            "deployment": {
                **{key: value for key, value in seen.items() if key != "conditions"},
                **where,
                "selector": f"{model.NAME_LABEL}={plane.name}",
                "lastUpdate": now(),
            },
            "service": {**service.get("status", {}), **where, "port": plane.port},
        },
    }
