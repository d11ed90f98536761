# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Asks a registry what it has (OCI distribution-spec 1.1, the reading part), from many threads at once."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import ssl
import threading
import urllib.parse
from collections.abc import Container
from email.message import Message
from pathlib import Path

from ._checksums import ArtifactsError
from ._mirror import Part, parts_of

MANIFEST_TYPES = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
# A registry on object storage sends a reader there for a blob that it has; what it lacks it answers itself, with 404.
REDIRECTS = {301, 302, 303, 307, 308}
TIMEOUT_S = 20
MIB = 1024 * 1024


class RegistryError(Exception):
    """A registry that does not answer as it should; the message is one sentence."""


class Registry:
    """A registry by its URL, or by host and port, which means plain HTTP."""

    def __init__(self, address: str, auth_file: str = "") -> None:
        self.insecure = not address.startswith("https://")
        self.host = address.rstrip("/").rpartition("://")[2]
        self._credentials = credentials_for(self.host, auth_file)
        self._tls = None if self.insecure else ssl.create_default_context()
        self._tokens: dict[str, str] = {}
        self._thread = threading.local()

    def manifest(self, repository: str, mark: str) -> bytes | None:
        """A manifest by tag or digest; None where there is none."""
        status, body = self._ask("GET", repository, f"/v2/{repository}/manifests/{mark}")
        return body if status == 200 else None

    def has_blob(self, repository: str, digest: str) -> bool:
        """Whether a repository has a blob."""
        return self._ask("HEAD", repository, f"/v2/{repository}/blobs/{digest}", {200, *REDIRECTS})[0] != 404

    def missing(self, repository: str, mark: str) -> tuple[str, list[Part]]:
        """The digest behind a tag or digest ("" where there is none), and what the registry lacks of the image."""
        body = self.manifest(repository, mark)
        if body is None:
            return "", []
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        return digest, self._missing_parts(repository, body)

    def _missing_parts(self, repository: str, body: bytes) -> list[Part]:
        lost: list[Part] = []
        for part in dict.fromkeys(parts_of(body)):
            if part.manifest:
                child = self.manifest(repository, part.digest)
                lost += [part] if child is None else self._missing_parts(repository, child)
            elif not self.has_blob(repository, part.digest):
                lost.append(part)
        return lost

    def _ask(self, method: str, repository: str, path: str, there: Container[int] = (200,)) -> tuple[int, bytes]:
        status, headers, body = self._send(method, path, self._tokens.get(repository, ""))
        if status == 401:
            self._tokens[repository] = self._authorise(headers.get("Www-Authenticate", ""), repository)
            status, headers, body = self._send(method, path, self._tokens[repository])
        if status != 404 and status not in there:
            raise RegistryError(f"{self.host} answers {method} {path} with {status}.")
        return status, body

    def _send(self, method: str, path: str, authorization: str) -> tuple[int, Message, bytes]:
        headers = {"Accept": MANIFEST_TYPES, **({"Authorization": authorization} if authorization else {})}
        for attempt in (1, 2):
            connection = self._connection()
            try:
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.headers, answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # A connection that was kept open may have been closed at the other end.
                if attempt == 2:
                    raise RegistryError(f"{self.host} does not answer: {error}.") from error
        raise AssertionError

    def _connection(self) -> http.client.HTTPConnection:
        kept: http.client.HTTPConnection | None = getattr(self._thread, "connection", None)
        if kept is None:
            kept = (
                http.client.HTTPSConnection(self.host, timeout=TIMEOUT_S, context=self._tls)
                if self._tls
                else http.client.HTTPConnection(self.host, timeout=TIMEOUT_S)
            )
            self._thread.connection = kept
        return kept

    def _authorise(self, challenge: str, repository: str) -> str:
        """What a challenge asks for: the credentials, or a token for them (distribution's token specification)."""
        basic = f"Basic {self._credentials}" if self._credentials else ""
        kind, fields_of = challenge.partition(" ")[::2]
        if kind.lower() == "basic" and basic:
            return basic
        fields = dict(re.findall(r'(\w+)="([^"]*)"', fields_of))
        realm = urllib.parse.urlsplit(fields.get("realm", ""))
        if kind.lower() != "bearer" or realm.scheme not in {"http", "https"}:
            raise RegistryError(f"{self.host} wants credentials; log in with skopeo login {self.host}.")
        query = urllib.parse.urlencode({"service": fields.get("service", ""), "scope": f"repository:{repository}:pull"})
        make = http.client.HTTPSConnection if realm.scheme == "https" else http.client.HTTPConnection
        connection = make(realm.netloc, timeout=TIMEOUT_S)
        try:
            connection.request("GET", f"{realm.path}?{query}", headers={"Authorization": basic} if basic else {})
            answer = connection.getresponse()
            token = json.loads(answer.read())
            return f"Bearer {token.get('token') or token['access_token']}"
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise RegistryError(
                f"{self.host} wants a token that {realm.netloc} does not give; log in with skopeo login {self.host}."
            ) from error
        finally:
            connection.close()


def credentials_for(host: str, auth_file: str) -> str:
    """Base64 of user and password for a registry in a file of skopeo's or Docker's; empty where there are none.

    Without a file the places where skopeo looks (containers-auth.json(5)).
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}"
    places = [auth_file] if auth_file else [
        os.environ.get("REGISTRY_AUTH_FILE", ""),
        f"{runtime}/containers/auth.json" if "XDG_RUNTIME_DIR" in os.environ else f"{runtime}/auth.json",
        os.path.expanduser("~/.docker/config.json"),
    ]  # fmt: skip
    for place in filter(None, places):
        try:
            known = json.loads(Path(place).read_text(encoding="utf-8")).get("auths", {})
        except (OSError, ValueError):
            continue
        if "auth" in known.get(host, {}):
            return str(known[host]["auth"])
    return ""


def losses(registry: Registry, repository: str, mark: str, digest: str) -> list[str]:
    """What a mirror lacks of an image, in words that follow "the mirror"; nothing where it has all of it."""
    try:
        found, lost = registry.missing(repository, mark)
    except ArtifactsError as error:
        return [f"cannot be judged: {error}"]
    if not found:
        return ["does not have it"]
    if digest and found != digest:
        return [f"has {found} in its place, and {digest} was mirrored"]
    return [
        f"has lost its manifest {part.digest}" if part.manifest else
        f"has lost its blob {part.digest} ({part.size / MIB:.1f} MiB)"
        for part in lost
    ]  # fmt: skip
