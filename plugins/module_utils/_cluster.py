# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one file that knows kubernetes.core and the Kubernetes client.

Modules ask the API by path and get dictionaries; no typed models (they cost seconds of
import), no discovery beyond what kubernetes.core does itself. Every failure is a ClusterError.
"""

from __future__ import annotations

import copy
import json
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.exceptions import CoreException

try:
    import urllib3
    from kubernetes import client as kubernetes_client
    from kubernetes import config as kubernetes_config
    from kubernetes.client.exceptions import ApiException, OpenApiException
    from kubernetes.config import ConfigException
    from kubernetes.dynamic.exceptions import DynamicApiError
    from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError
except ImportError:
    # AnsibleK8SModule says what is missing before anything below is reached.
    class _MissingError(Exception):
        """Stands for the exceptions of libraries that are not there."""

    HTTPError = ConnectTimeoutError = NewConnectionError = _MissingError  # type: ignore[assignment,misc]
    ApiException = OpenApiException = ConfigException = DynamicApiError = _MissingError

Object = dict[str, Any]
T = TypeVar("T")

PAGE = 500
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30
WATCH_RETRY_S = 0.5
MERGE_PATCH = "application/merge-patch+json"
# An API server that is being replaced is away for seconds; one that is away longer is the user's to look at.
PATIENCE_S = 30.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 4.0
# What passes: too many requests, and what is said by a server that starts, ends or has lost its datastore.
CONFLICT, EXPIRED, TOO_MANY_REQUESTS, INTERNAL_ERROR = 409, 410, 429, 500
UNAVAILABLE = (502, 503, 504)
# The next try may succeed.
PASSING = frozenset((0, CONFLICT, TOO_MANY_REQUESTS, INTERNAL_ERROR, *UNAVAILABLE))
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
FRESH_LISTS = 3
ANYTHING = "*/*"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
EDIT_PATIENCE_S = 30
EDIT_PAUSE_S = 0.1
EDIT_PAUSE_MAX_S = 2.0


class ClusterError(Exception):
    """A call that the API refused (status is its HTTP code) or that did not reach it (status is 0)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Failure:
    """A request that failed once: what to tell, and what decides whether it is sent again.

    ``status`` is 0 where no answer came; then ``sent`` says whether the server can have seen the request, and
    ``lasting`` whether the cause (a certificate, a name) will be the same in a moment. Times in seconds.
    """

    status: int
    message: str
    retry_after_s: float = 0.0
    sent: bool = True
    lasting: bool = False

    def may_be_repeated(self, method: str, path: str) -> bool:
        """Whether the same request is sent again without doing anything twice."""
        elsewhere = "/proxy/" in path or path.endswith("/log")  # it is not the API server that has this trouble
        if self.lasting or (elsewhere and self.status in (INTERNAL_ERROR, *UNAVAILABLE)):
            return False
        if self.status == TOO_MANY_REQUESTS or not self.sent:
            return True
        if method == "get":
            return self.status in (0, INTERNAL_ERROR, *UNAVAILABLE)
        # A create that got lost may have been done; what patches and deletes name is the same the second time.
        return method in ("patch", "delete") and self.status in (0, *UNAVAILABLE)


def argument_spec() -> dict[str, Any]:
    """kubernetes.core's options for reaching and authenticating with a cluster."""
    return copy.deepcopy(AUTH_ARG_SPEC)


def new_module(options: Mapping[str, Any], **more: Any) -> AnsibleK8SModule:
    """A module with these options and the cluster's; it fails at once where the client library is missing."""
    return AnsibleK8SModule(
        module_class=AnsibleModule, argument_spec={**argument_spec(), **options}, supports_check_mode=True, **more
    )


class Cluster:
    """The API of one cluster, by path. Safe to use from several threads.

    An API that is away, overloaded or restarting is asked again for up to ``patience_s`` seconds, as long as that
    does nothing twice. ``module`` names the module whose rights a refusal points to.
    """

    def __init__(self, client: Any, module: str = "", patience_s: float = PATIENCE_S) -> None:
        self._client, self._module, self._patience_s = client, module, patience_s

    @property
    def server(self) -> str:
        return str(self._client.configuration.host)

    def impatient(self) -> Cluster:
        """The same cluster, asked only once; for a caller with a patience of its own."""
        return Cluster(self._client, self._module, 0)

    def get(self, path: str, **query: str) -> Object:
        return self._json("get", path, query)

    def text(self, path: str, **query: str) -> str:
        return self._patiently("get", path, query).decode(errors="replace")

    def list(self, path: str, metadata_only: bool = False, **query: str) -> Iterator[Object]:
        """Every item of a list, read page by page; with ``metadata_only`` without spec and status.

        A reader so slow that the rest of the list has expired gets it from a new list, without what it had.
        """
        given: set[tuple[str, str]] = set()
        for fresh in range(FRESH_LISTS + 1):
            try:
                for item in self._pages(path, query, METADATA_ONLY if metadata_only else ANYTHING):
                    key = (item["metadata"].get("namespace", ""), item["metadata"]["name"])
                    if key not in given:
                        given.add(key)
                        yield item
                return
            except ClusterError as error:
                if error.status != EXPIRED or fresh == FRESH_LISTS:
                    raise

    def create(self, path: str, body: Object, **query: str) -> Object:
        return self._json("post", path, query, body)

    def patch(self, path: str, body: Object) -> Object:
        """Merge-patch: a null deletes, a resourceVersion in the body makes it conditional.

        A conditional patch whose answer got lost may come back as 409 although it was done.
        """
        return self._json("patch", path, {}, body)

    def edit(
        self, path: str, change: Callable[[Object], Object | None], thing: Object | None = None, subresource: str = ""
    ) -> bool:
        """Merge-patch an object as ``change`` says of its newest state, never over somebody else's change.

        ``thing`` is a state that was read before; it is read again when it has changed meanwhile, and what
        passes is tried again for EDIT_PATIENCE_S seconds. ``change`` gives None when nothing is to be done; then, and
        only then, the answer is False. Raises ClusterError.
        """
        deadline, pause = time.monotonic() + EDIT_PATIENCE_S, EDIT_PAUSE_S
        while True:
            try:
                thing = thing or self.get(path)
                body = change(thing)
                if body is None:
                    return False
                version = thing["metadata"]["resourceVersion"]
                self.patch(
                    path + subresource, {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version}}
                )
                return True
            except ClusterError as error:
                if error.status not in PASSING or time.monotonic() + pause > deadline:
                    raise
            thing = None
            # Several that met here shall not meet again.
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
            pause = min(2 * pause, EDIT_PAUSE_MAX_S)

    def delete(self, path: str, **query: str) -> None:
        """Delete an object; one that is gone already is well too."""
        try:
            self._patiently("delete", path, query)
        except ClusterError as error:
            if error.status != 404:
                raise

    def watch(self, path: str, resource_version: str, **query: str) -> Iterator[tuple[str, Object]]:
        """Changes of a list since ``resource_version``, until the server ends the watch."""
        query = {"watch": "1", "resourceVersion": resource_version, "allowWatchBookmarks": "true", **query}
        response = self._open("get", path, query, read_timeout_s=None)
        if isinstance(response, Failure):
            raise ClusterError(response.message, response.status)
        try:
            rest = b""
            for chunk in response.stream(None):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ClusterError(f"watching {path}: {status.get('message')}", int(status.get("code") or 0))
                    yield event["type"], event["object"]
        except (HTTPError, OSError, ValueError) as error:
            raise ClusterError(f"watching {path}: {error}") from error
        finally:
            response.close()

    def _pages(self, path: str, query: Mapping[str, str], accept: str) -> Iterator[Object]:
        more: dict[str, str] = {}
        while True:
            answer = self._json("get", path, {"limit": str(PAGE), **query, **more}, accept=accept)
            yield from answer["items"]
            token = answer["metadata"].get("continue")
            if not token:
                return
            more = {"continue": token}

    def _json(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None = None, accept: str = ANYTHING
    ) -> Object:
        data = self._patiently(method, path, query, body, accept)
        try:
            answer: Object = json.loads(data)
        except ValueError as error:
            raise ClusterError(f"{method.upper()} {path}: {self.server} answered no JSON: {data[:80]!r}") from error
        return answer

    def _patiently(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None = None, accept: str = ANYTHING
    ) -> bytes:
        return _patiently(lambda: self._once(method, path, query, body, accept), method, path, self._patience_s)

    def _once(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None, accept: str
    ) -> bytes | Failure:
        response = self._open(method, path, query, body, accept)
        if isinstance(response, Failure):
            return response
        try:
            return bytes(response.data)
        except (HTTPError, OSError) as error:
            return _unreached(f"{method.upper()} {path}: {self.server} cannot be reached", error)

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None = None,
        accept: str = ANYTHING,
        *,
        read_timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Any:
        """The answer, its content still unread, or a Failure."""
        what = f"{method.upper()} {path}"
        try:
            return self._client.request(
                method,
                path,
                body=body,
                query_params=list(query.items()),
                header_params={"Accept": accept if method == "get" else "application/json"},
                content_type=MERGE_PATCH if method == "patch" else None,
                serialize=False,
                _request_timeout=(CONNECT_TIMEOUT_S, read_timeout_s),
            )
        except (DynamicApiError, ApiException) as error:
            return _refused(what, error, self._module)
        except (HTTPError, OpenApiException, OSError) as error:
            return _unreached(f"{what}: {self.server} cannot be reached", error)


def without_retries(client: Any) -> Any:
    """The same client, whose urllib3 no longer sends again by itself, three times and however long Retry-After says."""
    client.client.rest_client.pool_manager.connection_pool_kw["retries"] = False
    return client


def connect(module: AnsibleK8SModule) -> Cluster:
    """The cluster that the module's options name. Raises ClusterError."""
    name = str(module._name).rsplit(".", 1)[-1]
    what = "No connection to the cluster"

    def attempt() -> Cluster | Failure:
        try:
            # This asks for the API's version and groups.
            return Cluster(without_retries(get_api_client(module).client), name)
        except (DynamicApiError, ApiException) as error:
            return _refused(what, error, name)
        except HTTPError as error:
            return _unreached(what, error)
        except (CoreException, ConfigException, OSError, ValueError) as error:
            raise ClusterError(f"{what}: {_cause(error)}") from error

    return _patiently(attempt, "get", "/version", PATIENCE_S)


def _patiently(attempt: Callable[[], T | Failure], method: str, path: str, patience_s: float) -> T:
    """Try a request again where that is safe and helps. Raises ClusterError with the last failure."""
    begin = time.monotonic()
    wait_s = FIRST_WAIT_S
    while True:
        answer = attempt()
        if not isinstance(answer, Failure):
            return answer
        pause_s = max(wait_s, answer.retry_after_s)
        passed_s = time.monotonic() - begin
        if not answer.may_be_repeated(method, path) or passed_s + pause_s > patience_s:
            tried = f" (for {passed_s:.0f} s)" if passed_s >= 1 else ""
            raise ClusterError(answer.message + tried, answer.status)
        time.sleep(pause_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _refused(what: str, error: Any, module: str) -> Failure:
    """An answer of the API that is no success."""
    status, message = int(error.status or 0), _message(error)
    after = str((error.headers or {}).get("Retry-After", ""))
    said = f"{what}: {status} {message}"
    if status == 401:
        said += ": the token or certificate has expired or is not valid; get a new kubeconfig."
    elif status == 403 and module and " cannot " in message:
        said += f"; docs/reference/rights/{module}.yml has the rights that {module} needs."
    # The client hands a certificate that cannot be verified over as an answer of status 0.
    return Failure(status, said, float(after) if after.isdigit() else 0.0, lasting=UNTRUSTED in said)


def _unreached(what: str, error: Exception) -> Failure:
    """No answer."""
    cause = getattr(error, "reason", None) or error
    return Failure(
        0,
        f"{what}: {_cause(error)}",
        sent=not isinstance(cause, (ConnectTimeoutError, NewConnectionError)),
        lasting=isinstance(cause.__cause__, socket.gaierror) or UNTRUSTED in str(cause),
    )


def _message(error: Any) -> str:
    """What the API said, without the headers that the client's own text carries."""
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or error.reason)
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:300]


def _cause(error: BaseException) -> str:
    """The innermost reason of a failed connection, in one line."""
    reason = getattr(error, "reason", None) or error
    return str(reason).splitlines()[0] if str(reason) else type(error).__name__


class Follower:
    """Follows one list in a thread of its own: next() gives its objects' states as they come.

    A watch that breaks is begun again from a new list, until ``stop``; after ``patience_s`` seconds
    without an answer next() raises the ClusterError that stood in the way.
    """

    def __init__(self, cluster: Cluster, path: str, patience_s: float = 30) -> None:
        self._cluster, self._path, self._patience_s = cluster.impatient(), path, patience_s
        self._states: queue.Queue[Any] = queue.Queue()
        self._known: set[str] = set()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def next(self, timeout_s: float) -> tuple[str, Object | None] | None:
        """An object's name and its state (None: it is gone); None when nothing came in time."""
        try:
            state = self._states.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if isinstance(state, ClusterError):
            raise state
        return state  # type: ignore[no-any-return]

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        failing_since: float | None = None
        while not self._stopped.is_set():
            try:
                version = self._list()
                failing_since = None
                for kind, thing in self._cluster.watch(self._path, version, timeoutSeconds="300"):
                    if self._stopped.is_set():
                        return
                    if kind != "BOOKMARK":
                        self._put(thing["metadata"]["name"], None if kind == "DELETED" else thing)
            except ClusterError as error:
                failing_since = failing_since or time.monotonic()
                if error.status in (401, 403) or time.monotonic() - failing_since > self._patience_s:
                    self._states.put(error)
                    return
                self._stopped.wait(WATCH_RETRY_S)

    def _list(self) -> str:
        answer = self._cluster.get(self._path)
        names = {thing["metadata"]["name"]: thing for thing in answer["items"]}
        for name in self._known - set(names):
            self._put(name, None)
        for name, thing in names.items():
            self._put(name, thing)
        return str(answer["metadata"]["resourceVersion"])

    def _put(self, name: str, thing: Object | None) -> None:
        (self._known.discard if thing is None else self._known.add)(name)
        self._states.put((name, thing))


@dataclass(frozen=True)
class Kubeconfig:
    """What a kubeconfig file holds: where its API is, and the credentials (files' paths, a header)."""

    server: str
    ca_file: str | None
    certificate_file: str | None
    key_file: str | None
    authorization: str | None


def read_kubeconfig(path: str) -> Kubeconfig:
    """Read a kubeconfig's current context. Raises ClusterError, which names the file and no content."""
    configuration = kubernetes_client.Configuration()
    try:
        kubernetes_config.load_kube_config(config_file=path, client_configuration=configuration, persist_config=False)
    except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{path} is no kubeconfig that can be used ({type(error).__name__}).") from error
    authorization = configuration.api_key.get("authorization") or configuration.api_key.get("BearerToken")
    return Kubeconfig(
        server=str(configuration.host),
        ca_file=configuration.ssl_ca_cert,
        certificate_file=configuration.cert_file,
        key_file=configuration.key_file,
        authorization=authorization,
    )


def ask(api: Kubeconfig, credentials: Kubeconfig, path: str) -> tuple[int, Object]:
    """Ask one kubeconfig's API with another's credentials; the HTTP status and the answer. Raises ClusterError."""
    headers = {"Accept": "application/json"}
    if credentials.authorization:
        headers["Authorization"] = credentials.authorization
    pool = urllib3.PoolManager(
        ca_certs=api.ca_file,
        cert_file=credentials.certificate_file,
        key_file=credentials.key_file,
        timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
        retries=False,
    )
    try:
        response = pool.request("GET", api.server + path, headers=headers)
        return response.status, json.loads(response.data)
    except ValueError:
        return response.status, {}
    except (HTTPError, OSError) as error:
        raise ClusterError(f"{api.server} cannot be reached: {_cause(error)}") from error
    finally:
        pool.clear()
