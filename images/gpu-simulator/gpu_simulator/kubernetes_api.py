"""The few calls of the Kubernetes API that a device plugin makes, over the standard library.

A client library would cost more memory than the whole plugin and a second of its start.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 10
WATCH_TIMEOUT_S = 300


class ApiError(Exception):
    """The API refused a call (status is its HTTP code) or could not be reached (status is 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubernetesApi:
    """Reads, patches and watches objects by path, with a service account's token.

    ``server`` is a URL; the token file is read at each call, since kubelet renews it.
    """

    def __init__(self, server: str, token_file: Path | None = None, ca_file: Path | None = None) -> None:
        parts = urlsplit(server)
        self._host, self._secure = parts.netloc, parts.scheme == "https"
        self._token_file = token_file
        self._tls = ssl.create_default_context(cafile=str(ca_file) if ca_file else None) if self._secure else None
        self._local = threading.local()

    @classmethod
    def in_cluster(cls) -> KubernetesApi:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt")

    def get(self, path: str, **query: str) -> dict[str, Any]:
        return self._call("GET", path, query)

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Merge-patch an object: a null deletes, a resourceVersion in the body makes it conditional (409)."""
        return self._call("PATCH", path, {}, body)

    def watch(self, path: str, name: str) -> Iterator[dict[str, Any]]:
        """Yield the object called ``name`` of the list at ``path`` now and after every change ({} once deleted).

        Ends after five minutes or when the server closes; raises ApiError when it refuses.
        """
        selector = {"fieldSelector": f"metadata.name={name}"}
        listing = self.get(path, **selector)
        yield listing["items"][0] if listing["items"] else {}
        query = {
            **selector,
            "watch": "1",
            "resourceVersion": listing["metadata"]["resourceVersion"],
            "timeoutSeconds": str(WATCH_TIMEOUT_S),
        }
        connection = self._connect(WATCH_TIMEOUT_S + TIMEOUT_S)
        try:
            response = self._send(connection, "GET", path, query, None)
            for line in response:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(int(event["object"].get("code", 0)), str(event["object"].get("message")))
                yield {} if event["type"] == "DELETED" else event["object"]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiError(0, f"watching {path}: {error}") from error
        finally:
            connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._tls:
            return http.client.HTTPSConnection(self._host, timeout=timeout_s, context=self._tls)
        return http.client.HTTPConnection(self._host, timeout=timeout_s)

    def _call(
        self, method: str, path: str, query: dict[str, str], body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        # A kept connection may have been closed by the server meanwhile: then once more on a new one.
        for connection in filter(None, (kept, self._connect(TIMEOUT_S))):
            try:
                answer: dict[str, Any] = json.loads(self._send(connection, method, path, query, body).read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                self._local.connection = None
                failure = f"{method} {path}: {error}"
                continue
            self._local.connection = connection
            return answer
        raise ApiError(0, failure)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        query: dict[str, str],
        body: dict[str, Any] | None,
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        if self._token_file:
            headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        target = quote(path) + (f"?{urlencode(query)}" if query else "")
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        if response.status >= 400:
            text = response.read().decode(errors="replace")
            try:
                text = json.loads(text)["message"]
            except (ValueError, KeyError, TypeError):
                text = text[:200]
            raise ApiError(response.status, f"{method} {path}: {response.status} {text}")
        return response
