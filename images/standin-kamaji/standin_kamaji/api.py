# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""A Kubernetes API server, as far as the operator needs one: get, list, apply, patch, delete."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

Object = dict[str, Any]

FIELD_MANAGER = "kamaji"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
PLURALS = {
    "DataStore": "datastores",
    "TenantControlPlane": "tenantcontrolplanes",
}


class ApiError(Exception):
    """The API server refused, or could not be reached (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def path_of(api_version: str, kind: str, namespace: str | None = None, name: str | None = None) -> str:
    """Takes what names an object, or without a name a list of them. Returns its path on an API server."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    parts = [root]
    if namespace:
        parts.append(f"namespaces/{namespace}")
    parts.append(PLURALS.get(kind, kind.lower() + "s"))
    if name:
        parts.append(name)
    return "/".join(parts)


def path_of_manifest(manifest: Mapping[str, Any]) -> str:
    metadata = manifest["metadata"]
    return path_of(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"), metadata["name"])


class Api:
    """One API server with one identity. Use as `async with`."""

    def __init__(
        self,
        server: str,
        tls: ssl.SSLContext,
        token_file: Path | None = None,
        server_name: str | None = None,
        timeout_s: float = 15,
    ) -> None:
        self.server = server
        self._tls = tls
        self._token_file = token_file
        self._server_name = server_name
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls), timeout=self._timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Any:
        """Returns the answer: parsed where it is JSON, else as text. Raises ApiError."""
        if self._session is None:
            raise RuntimeError("Api is used outside of `async with`.")
        headers = {"Content-Type": content_type}
        if self._token_file:  # it is rotated: read again every time
            headers["Authorization"] = f"Bearer {self._token_file.read_text(encoding='utf-8').strip()}"
        try:
            async with self._session.request(
                method,
                self.server + path,
                data=None if body is None else json.dumps(body),
                headers=headers,
                params=params,
                server_hostname=self._server_name,
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(0, f"{self.server}: {error or type(error).__name__}") from error
        answer = json.loads(text) if response.content_type == "application/json" else text
        if response.status >= 400:
            message = answer.get("message", text) if isinstance(answer, dict) else text
            raise ApiError(response.status, f"{method} {path}: {message}")
        return answer

    async def get(self, path: str) -> Object | None:
        """Returns the object, None where there is none."""
        try:
            found: Object = await self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def list(self, path: str, label_selector: str = "") -> list[Object]:
        params = {"labelSelector": label_selector} if label_selector else None
        answer = await self.request("GET", path, params=params)
        return list(answer["items"])

    async def apply(self, manifest: Mapping[str, Any]) -> Object:
        """Server-side apply: creates the object or changes our fields of it; nothing changes where they are so."""
        applied: Object = await self.request(
            "PATCH",
            path_of_manifest(manifest),
            manifest,
            APPLY,
            {"fieldManager": FIELD_MANAGER, "force": "true"},
        )
        return applied

    async def patch(self, path: str, body: Mapping[str, Any]) -> Object:
        patched: Object = await self.request("PATCH", path, body, MERGE)
        return patched

    async def delete(self, path: str) -> None:
        """Deletes the object and, in the background, what it owns; no error where it is gone."""
        try:
            await self.request("DELETE", path, {"kind": "DeleteOptions", "propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != 404:
                raise


def client_tls(ca: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Takes PEM texts. Returns the TLS settings of a client that shows this certificate."""
    context = ssl.create_default_context(cadata=ca.decode())
    with tempfile.NamedTemporaryFile() as both:  # load_cert_chain reads files only
        both.write(certificate + b"\n" + key)
        both.flush()
        context.load_cert_chain(both.name)
    return context


def from_kubeconfig(text: bytes, server: str | None = None, server_name: str | None = None) -> Api:
    """Takes a kubeconfig with embedded certificates, as kubeadm writes it, and optionally another address to dial."""
    config = yaml.safe_load(text)
    context = next(item["context"] for item in config["contexts"] if item["name"] == config["current-context"])
    cluster = next(item["cluster"] for item in config["clusters"] if item["name"] == context["cluster"])
    user = next(item["user"] for item in config["users"] if item["name"] == context["user"])
    decoded = (
        base64.b64decode(value)
        for value in (
            cluster["certificate-authority-data"],
            user["client-certificate-data"],
            user["client-key-data"],
        )
    )
    return Api(server or cluster["server"], client_tls(*decoded), server_name=server_name)
