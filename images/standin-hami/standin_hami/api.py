# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A light client of the Kubernetes API: requests, and lists that are kept up to date by a watch."""

import base64
import http.client
import json
import logging
import os
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

log = logging.getLogger(__name__)

Json = dict[str, Any]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE = 500


class ApiError(Exception):
    """The API refused (status as in HTTP), or could not be asked (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The API at one address. Every thread that asks has a connection of its own."""

    def __init__(self, server: str, context: ssl.SSLContext, token: Callable[[], str], timeout_s: float = 30.0) -> None:
        address = urlsplit(server)
        self._host, self._port = address.hostname or "", address.port or 443
        self._context = context
        self._token = token
        self._timeout_s = timeout_s
        self._local = threading.local()

    @classmethod
    def here(cls, timeout_s: float = 30.0) -> "Api":
        """The API that $KUBECONFIG names, or else the one of the cluster around this pod."""
        kubeconfig = os.environ.get("KUBECONFIG")
        if kubeconfig:
            return cls(*_from_kubeconfig(Path(kubeconfig)), timeout_s=timeout_s)
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        context = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
        # The kubelet renews the token's file; reading it is cheaper than knowing when.
        return cls(server, context, lambda: (SERVICE_ACCOUNT / "token").read_text().strip(), timeout_s)

    def get(self, path: str) -> Json:
        return self.request("GET", path)

    def create(self, path: str, body: Json) -> Json:
        return self.request("POST", path, body)

    def patch(self, path: str, body: Json) -> Json:
        """Change an object by a merge patch."""
        return self.request("PATCH", path, body, "application/merge-patch+json")

    def request(self, method: str, path: str, body: Json | None = None, content_type: str = "application/json") -> Json:
        """Ask, and give back the answer; ApiError otherwise."""
        data = None if body is None else json.dumps(body).encode()
        reused = getattr(self._local, "connection", None) is not None
        try:
            status, answer = self._exchange(method, path, data, content_type)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            if not reused:
                raise ApiError(0, f"{method} {path}: {error or type(error).__name__}") from error
            # A connection that lay idle may have been closed by the other side: once more, on a new one.
            return self.request(method, path, body, content_type)
        if status >= 400:
            raise ApiError(status, _message(answer) or f"{method} {path}: status {status}")
        parsed: Json = json.loads(answer)
        return parsed

    def _exchange(self, method: str, path: str, data: bytes | None, content_type: str) -> tuple[int, bytes]:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect(self._timeout_s)
        connection.request(method, path, data, self._headers(content_type))
        response = connection.getresponse()
        return response.status, response.read()

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
        self._local.connection = None

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._context)
        connection.connect()
        sock = connection.sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer that vanished without a word is noticed within half a minute.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        return connection

    def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": "standin-hami"}
        token = self._token()
        return {**headers, "Authorization": f"Bearer {token}"} if token else headers

    def list(self, path: str, query: Mapping[str, str]) -> tuple[list[Json], str]:
        """All objects under a path, and the resource version from which to watch on."""
        items: list[Json] = []
        more = ""
        while True:
            page = self.get(f"{path}?{urlencode({**query, 'limit': str(PAGE), 'continue': more})}")
            items += page.get("items") or []
            more = page["metadata"].get("continue", "")
            if not more:
                return items, page["metadata"]["resourceVersion"]

    def watch(self, path: str, query: Mapping[str, str], version: str, timeout_s: int = 300) -> Iterator[Json]:
        """Events from a resource version on, until the server ends the watch."""
        options = {"watch": "1", "allowWatchBookmarks": "1", "resourceVersion": version, "timeoutSeconds": timeout_s}
        try:
            connection = self._connect(timeout_s + 30)
        except OSError as error:
            raise ApiError(0, f"watch {path}: {error}") from error
        try:
            connection.request("GET", f"{path}?{urlencode({**query, **options})}", headers=self._headers(""))
            response = connection.getresponse()
            if response.status >= 400:
                raise ApiError(response.status, _message(response.read()) or f"watch {path}: {response.status}")
            while line := response.readline():
                yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiError(0, f"watch {path}: {error or type(error).__name__}") from error
        finally:
            connection.close()


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer).get("message", ""))
    except (ValueError, AttributeError):
        return answer[:200].decode(errors="replace")


def _from_kubeconfig(path: Path) -> tuple[str, ssl.SSLContext, Callable[[], str]]:
    """Read a kubeconfig in JSON, which is YAML too (kubectl config view --raw -o json)."""
    config = json.loads(path.read_text())
    chosen = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
    cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == chosen["cluster"])
    user = next(u["user"] for u in config["users"] if u["name"] == chosen["user"])
    context = ssl.create_default_context(cadata=_content(cluster, "certificate-authority").decode())
    if user.keys() & {"client-certificate", "client-certificate-data"}:
        # The ssl module reads a client's certificate from a file only, and with its key.
        with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
            pem.write(_content(user, "client-certificate") + b"\n" + _content(user, "client-key"))
            pem.flush()
            context.load_cert_chain(pem.name)
    return cluster["server"], context, lambda: str(user.get("token", ""))


def _content(entry: Json, key: str) -> bytes:
    """What a kubeconfig holds itself, or in a file."""
    data = entry.get(f"{key}-data")
    return base64.b64decode(data) if data else Path(entry[key]).read_bytes()


class Sink(Protocol):
    """What takes the objects of a reflector."""

    def replace(self, items: list[Json]) -> None:
        """These are all objects there are now."""

    def apply(self, obj: Json, deleted: bool) -> None:
        """This object has come, has changed or is gone."""


class Reflector(threading.Thread):
    """Keeps a sink up to date with the objects under a path, whatever happens to the API."""

    def __init__(self, api: Api, path: str, sink: Sink, query: Mapping[str, str] | None = None) -> None:
        super().__init__(name=f"watch {path}", daemon=True)
        self._api, self._path, self._sink, self._query = api, path, sink, query or {}
        self._version = ""
        self.synced = threading.Event()

    def run(self) -> None:
        pause_s = 0.0
        while True:
            started = time.monotonic()
            try:
                self._follow()
                pause_s = 0.0
            except ApiError as error:
                if error.status == 410:
                    self._version = ""
                if time.monotonic() - started > 10:
                    pause_s = 0.0
                # An API that is away is said once, not at every try.
                log.log(logging.DEBUG if pause_s else logging.WARNING, "%s: %s", self._path, error)
                pause_s = min(max(pause_s * 2, 0.2), 5.0)
            time.sleep(pause_s)

    def _follow(self) -> None:
        """List where no version is known, then watch until the server ends it."""
        if not self._version:
            items, self._version = self._api.list(self._path, self._query)
            self._sink.replace(items)
            self.synced.set()
        for event in self._api.watch(self._path, self._query, self._version):
            obj = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(obj.get("code", 0), obj.get("message", "watch ended"))
            self._version = obj["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._sink.apply(obj, deleted=event["type"] == "DELETED")
