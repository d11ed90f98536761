# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The two programs that do the work: kubeadm and etcdctl."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from .model import ControlPlane, DataStore

TIMEOUT_S = 60


class ProgramError(Exception):
    """A program failed; the message has its last words."""


async def run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """Returns what the program printed. Raises ProgramError where it fails or takes longer than TIMEOUT_S."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except TimeoutError:
        raise ProgramError(f"{' '.join(command[:5])}: no end after {TIMEOUT_S} s.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        words = " ".join((errors.decode() or out.decode()).split())
        raise ProgramError(f"{' '.join(command[:5])}: {words[-600:]}")
    return out.decode()


def kubeadm_documents(
    plane: ControlPlane,
    address: str,
    etcd_endpoints: Iterable[str],
    certificates_dir: str = "/etc/kubernetes/pki",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns InitConfiguration and ClusterConfiguration (as internal/kubeadm/configuration.go fills them in)."""
    endpoint = f"[{address}]" if ":" in address else address
    init: dict[str, Any] = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "localAPIEndpoint": {"advertiseAddress": address, "bindPort": plane.port},
        "nodeRegistration": {"name": plane.name, "criSocket": "unix:///run/containerd/containerd.sock"},
    }
    dns = plane.core_dns or {}
    cluster: dict[str, Any] = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "clusterName": plane.name,
        "certificatesDir": certificates_dir,
        "controlPlaneEndpoint": f"{endpoint}:{plane.port}",
        "kubernetesVersion": str(plane.version),
        "networking": {
            "dnsDomain": plane.domain,
            "podSubnet": ",".join(plane.pod_cidrs),
            "serviceSubnet": ",".join(plane.service_cidrs),
        },
        "apiServer": {
            "certSANs": [
                "127.0.0.1",
                "localhost",
                plane.name,
                plane.service_name,
                f"{plane.service_name}.cluster.local",
                address,
                *plane.network.get("certSANs", []),
            ],
            "extraArgs": [
                {"name": "etcd-compaction-interval", "value": "0s"},
                {"name": "etcd-prefix", "value": f"/{plane.schema}"},
            ],
        },
        "etcd": {
            "external": {
                "endpoints": [f"https://{endpoint}" for endpoint in etcd_endpoints],
                "caFile": "/etc/kubernetes/pki/etcd/ca.crt",
                "certFile": "/etc/kubernetes/pki/etcd/server.crt",
                "keyFile": "/etc/kubernetes/pki/etcd/server.key",
            }
        },
    }
    if repository := dns.get("imageRepository"):  # Kamaji reads imageTag only beside imageRepository
        cluster["dns"] = {"imageRepository": repository, "imageTag": dns.get("imageTag", "")}
    return init, cluster


def write_documents(path: Path, documents: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return path


async def kubeadm_phase(*phase: str, config: Path, **flags: Path) -> str:
    """Runs one of `kubeadm init`'s phases, for example ("certs", "all")."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    return await run("kubeadm", "init", "phase", *phase, f"--config={config}", *words)


class Etcd:
    """Tenants in an etcd: a user, a role of the schema's name, and the keys under /<schema>/."""

    def __init__(self, store: DataStore, folder: Path) -> None:
        """Takes a folder with ca.crt, client.crt and client.key of etcd's root user."""
        self._environment = {
            "ETCDCTL_ENDPOINTS": ",".join(f"https://{endpoint}" for endpoint in store.endpoints),
            "ETCDCTL_CACERT": str(folder / "ca.crt"),
            "ETCDCTL_CERT": str(folder / "client.crt"),
            "ETCDCTL_KEY": str(folder / "client.key"),
        }

    async def _do(self, *arguments: str, may_fail: str = "") -> None:
        try:
            await run("etcdctl", *arguments, environment=self._environment)
        except ProgramError as error:
            if not may_fail or may_fail not in str(error):
                raise

    async def _roles(self, user: str) -> list[str] | None:
        """Returns the user's roles, None where there is no such user."""
        try:
            answer = await run("etcdctl", "user", "get", user, "--write-out=json", environment=self._environment)
        except ProgramError as error:
            if "user name not found" in str(error):
                return None
            raise
        return list(json.loads(answer).get("roles") or [])

    async def ensure(self, user: str, schema: str) -> None:
        """The user may read and write the schema's keys, and no others."""
        roles = await self._roles(user)
        if roles is None:
            await self._do("user", "add", user, "--no-password", may_fail="user name already exists")
        if schema in (roles or []):
            return
        await self._do("role", "add", schema, may_fail="role name already exists")
        await self._do("role", "grant-permission", schema, "readwrite", f"/{schema}/", "--prefix=true")
        await self._do("user", "grant-role", user, schema)

    async def remove(self, user: str, schema: str) -> None:
        """The schema's keys, the role and the user are gone."""
        await self._do("user", "delete", user, may_fail="user name not found")
        await self._do("role", "delete", schema, may_fail="role name not found")
        await self._do("del", f"/{schema}/", "--prefix=true")
