# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The client against a server that answers from a table: real sockets, no Kubernetes."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client

from ansible_collections.tenantry.gpu.plugins.module_utils import _cluster
from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import (
    Cluster,
    ClusterError,
    Follower,
    ask,
    read_kubeconfig,
    without_retries,
)

Answer = tuple[int, Any]


class Server(ThreadingHTTPServer):
    """``answers`` maps (verb, path) to what is answered, or to a function of the query."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[tuple[str, str], Any] = {
            ("GET", "/version"): (200, {"major": "1", "minor": "36"}),
            ("GET", "/apis"): (200, {"kind": "APIGroupList", "groups": []}),
        }
        self.requests: list[tuple[str, str, dict[str, str], str]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        server: Any = self.server
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        server.requests.append((self.command, parts.path, dict(self.headers), body))
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        answer = server.answers.get((self.command, parts.path), (404, {"message": "the server could not find it"}))
        status, content = answer(query) if callable(answer) else answer
        text = content if isinstance(content, str) else json.dumps(content)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


def kubeconfig(folder: Path, url: str, token: str) -> str:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url}}],
        "users": [{"name": "it", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    path = folder / f"{token}.conf"
    path.write_text(json.dumps(content))
    return str(path)


@pytest.fixture
def patient(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that is asked again for two seconds, as the module hami_device_info."""
    # The dynamic client keeps what it discovered in a file there.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    client = without_retries(get_api_client(kubeconfig=kubeconfig(tmp_path, server.url, "mine")).client)
    return Cluster(client, "hami_device_info", patience_s=2)


@pytest.fixture
def cluster(patient: Cluster) -> Cluster:
    return patient.impatient()


def listing(version: str, *names: str, more: str = "") -> dict[str, Any]:
    return {
        "metadata": {"resourceVersion": version, "continue": more},
        "items": [{"metadata": {"name": name}} for name in names],
    }


def test_an_object(server: Server, cluster: Cluster) -> None:
    server.answers["GET", "/api/v1/nodes/n1"] = 200, {"metadata": {"name": "n1"}}
    assert cluster.get("/api/v1/nodes/n1") == {"metadata": {"name": "n1"}}
    assert server.requests[-1][2]["authorization"] == "Bearer mine"


def test_a_text(server: Server, cluster: Cluster) -> None:
    server.answers["GET", "/metrics"] = 200, "a 1\nb 2\n"
    assert cluster.text("/metrics") == "a 1\nb 2\n"


def test_a_list_is_read_page_by_page(server: Server, cluster: Cluster) -> None:
    pages = {None: listing("1", "a", "b", more="next"), "next": listing("1", "c")}
    server.answers["GET", "/api/v1/pods"] = lambda query: (200, pages[query.get("continue")])
    assert [pod["metadata"]["name"] for pod in cluster.list("/api/v1/pods")] == ["a", "b", "c"]


def test_a_list_of_metadata_alone(server: Server, cluster: Cluster) -> None:
    server.answers["GET", "/api/v1/nodes"] = 200, listing("1", "n1")
    assert [node["metadata"]["name"] for node in cluster.list("/api/v1/nodes", metadata_only=True)] == ["n1"]
    assert "as=PartialObjectMetadataList" in server.requests[-1][2]["Accept"]


def edit(cluster: Cluster, path: str = "/api/v1/nodes/n1", **more: Any) -> bool:
    def change(thing: dict[str, Any]) -> dict[str, Any] | None:
        return None if thing["metadata"].get("done") else {"metadata": {"done": "1"}}

    return cluster.edit(path, change, **more)


def test_an_edit_holds_to_the_version_that_was_read(server: Server, cluster: Cluster) -> None:
    server.answers["PATCH", "/api/v1/nodes/n1/status"] = 200, {}
    assert edit(cluster, thing={"metadata": {"resourceVersion": "7"}}, subresource="/status")
    assert [request[0] for request in server.requests if "/api/v1" in request[1]] == ["PATCH"]
    assert json.loads(server.requests[-1][3]) == {"metadata": {"done": "1", "resourceVersion": "7"}}


def test_an_edit_reads_again_what_has_changed(server: Server, cluster: Cluster) -> None:
    versions = iter("89")
    server.answers["GET", "/api/v1/nodes/n1"] = lambda query: (200, {"metadata": {"resourceVersion": next(versions)}})
    answers = iter([409, 429, 200])
    server.answers["PATCH", "/api/v1/nodes/n1"] = lambda query: (next(answers), {"message": "busy"})
    assert edit(cluster, thing={"metadata": {"resourceVersion": "7"}})
    bodies = [json.loads(body) for verb, _path, _headers, body in server.requests if verb == "PATCH"]
    assert [body["metadata"]["resourceVersion"] for body in bodies] == ["7", "8", "9"]


def test_an_edit_has_nothing_to_do(server: Server, cluster: Cluster) -> None:
    server.answers["GET", "/api/v1/nodes/n1"] = 200, {"metadata": {"resourceVersion": "8", "done": "1"}}
    assert not edit(cluster)


def test_an_edit_gives_up(server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cluster, "EDIT_PATIENCE_S", 0.2)
    server.answers["GET", "/api/v1/nodes/n1"] = 200, {"metadata": {"resourceVersion": "8"}}
    server.answers["PATCH", "/api/v1/nodes/n1"] = 409, {"message": "modified"}
    with pytest.raises(ClusterError, match="PATCH /api/v1/nodes/n1: 409 modified"):
        edit(cluster)
    with pytest.raises(ClusterError, match="GET /api/v1/nodes/n9: 404"):
        edit(cluster, "/api/v1/nodes/n9")


def test_a_patch_is_a_merge_patch(server: Server, cluster: Cluster) -> None:
    server.answers["PATCH", "/api/v1/nodes/n1"] = 200, {}
    cluster.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"x": None}}})
    _verb, _path, headers, body = server.requests[-1]
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert json.loads(body) == {"metadata": {"annotations": {"x": None}}}


def test_a_refusal_says_what_the_api_said(server: Server, cluster: Cluster) -> None:
    server.answers["POST", "/api/v1/namespaces"] = 403, {"message": "namespaces is forbidden: User x"}
    with pytest.raises(ClusterError, match=r"^POST /api/v1/namespaces: 403 namespaces is forbidden: User x$") as caught:
        cluster.create("/api/v1/namespaces", {})
    assert caught.value.status == 403


def test_what_is_gone_already_is_deleted(server: Server, cluster: Cluster) -> None:
    cluster.delete("/api/v1/namespaces/gone")
    server.answers["DELETE", "/api/v1/namespaces/kept"] = 409, {"message": "conflict"}
    with pytest.raises(ClusterError, match="409 conflict"):
        cluster.delete("/api/v1/namespaces/kept")


def test_an_api_that_is_away(server: Server, cluster: Cluster) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(ClusterError, match="cannot be reached") as caught:
        cluster.get("/api/v1/nodes")
    assert caught.value.status == 0


def answers_in_turn(server: Server, verb: str, path: str, *answers: Answer) -> list[Answer]:
    """One answer after the other; the last one stays. What is left tells how often it was asked."""
    left = list(answers)
    server.answers[verb, path] = lambda query: left.pop(0) if len(left) > 1 else left[0]
    return left


BUSY = 503, {"message": "the server is starting"}


@pytest.mark.parametrize("trouble", [(429, {"message": "slow down"}), (500, {"message": "no leader"}), BUSY])
def test_a_read_is_repeated(server: Server, patient: Cluster, trouble: Answer) -> None:
    answers_in_turn(server, "GET", "/x", trouble, trouble, (200, {"a": 1}))
    assert patient.get("/x") == {"a": 1}


@pytest.mark.parametrize(
    ("verb", "path", "status", "tries"),
    [
        ("GET", "/x", 404, 1),
        ("GET", "/x", 403, 1),
        ("GET", "/api/v1/namespaces/n/services/s/proxy/metrics", 503, 1),
        ("GET", "/api/v1/namespaces/n/pods/p/log", 500, 1),
        ("PATCH", "/x", 503, 2),
        ("PATCH", "/x", 409, 1),
        ("PATCH", "/x", 500, 1),
        ("DELETE", "/x", 503, 2),
        ("POST", "/x", 429, 2),
        ("POST", "/x", 503, 1),
    ],
)
def test_what_is_sent_again(server: Server, patient: Cluster, verb: str, path: str, status: int, tries: int) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "GET": lambda: patient.get(path),
        "PATCH": lambda: patient.patch(path, {}),
        "DELETE": lambda: patient.delete(path),
        "POST": lambda: patient.create(path, {}),
    }
    answers_in_turn(server, verb, path, (status, {"message": "no"}), (200, {}))
    before = len(server.requests)
    with suppress(ClusterError):
        calls[verb]()
    assert len(server.requests) - before == tries


def test_patience_ends(server: Server, patient: Cluster) -> None:
    server.answers["GET", "/x"] = BUSY
    with pytest.raises(ClusterError, match=r"GET /x: 503 the server is starting \(for \d s\)$"):
        patient.get("/x")


def test_credentials_that_expired_are_told_what_to_do(server: Server, patient: Cluster) -> None:
    server.answers["GET", "/x"] = 401, {"message": "Unauthorized"}
    with pytest.raises(ClusterError, match="401 Unauthorized: the token or certificate has expired or is not valid"):
        patient.get("/x")


def test_a_missing_right_points_to_the_manifest_and_a_quota_does_not(server: Server, patient: Cluster) -> None:
    server.answers["GET", "/x"] = 403, {"message": 'User "u" cannot list resource "nodes"'}
    with pytest.raises(ClusterError, match=r"cannot list.*; docs/reference/rights/hami_device_info\.yml has"):
        patient.get("/x")
    server.answers["POST", "/x"] = 403, {"message": 'pods "p" is forbidden: exceeded quota'}
    with pytest.raises(ClusterError, match=r"exceeded quota$"):
        patient.create("/x", {})


def test_an_answer_that_is_no_json_is_said(server: Server, cluster: Cluster) -> None:
    server.answers["GET", "/x"] = 200, "<html>login</html>"
    with pytest.raises(ClusterError, match="answered no JSON: b'<html>login"):
        cluster.get("/x")


def test_a_list_that_expired_is_read_again_without_what_was_given(server: Server, cluster: Cluster) -> None:
    gone = 410, {"message": "the continue parameter is too old"}
    pages = [(200, listing("1", "a", "b", more="x")), gone, (200, listing("2", "b", "c", more="y")), gone]
    left = answers_in_turn(server, "GET", "/api/v1/pods", *pages, (200, listing("3", "a", "d")))
    assert [pod["metadata"]["name"] for pod in cluster.list("/api/v1/pods")] == ["a", "b", "c", "d"]
    assert len(left) == 1
    answers_in_turn(server, "GET", "/api/v1/pods", gone)
    with pytest.raises(ClusterError, match="410"):
        list(cluster.list("/api/v1/pods"))


def event(kind: str, name: str) -> str:
    return json.dumps({"type": kind, "object": {"metadata": {"name": name}}}) + "\n"


def watched(server: Server, lists: list[Any], watches: list[Answer]) -> None:
    """One list after the other, one watch after the other; the last ones stay."""

    def answer(query: dict[str, str]) -> Answer:
        source: Any = watches if "watch" in query else lists
        taken = source.pop(0) if len(source) > 1 else source[0]
        return taken if isinstance(taken, tuple) else (200, taken)

    server.answers["GET", "/api/v1/pods"] = answer


def collect(follower: Follower, until: Callable[[list[Any]], bool]) -> list[tuple[str, bool]]:
    seen: list[tuple[str, bool]] = []
    while not until(seen):
        news = follower.next(5)
        assert news, seen
        seen.append((news[0], news[1] is not None))
    follower.stop()
    return seen


def test_a_watch_gives_what_is_there_and_what_changes(server: Server, cluster: Cluster) -> None:
    watched(server, [listing("1", "a")], [(200, event("ADDED", "b") + event("BOOKMARK", "") + event("DELETED", "a"))])
    seen = collect(Follower(cluster, "/api/v1/pods"), lambda seen: len(seen) == 3)
    assert seen == [("a", True), ("b", True), ("a", False)]


def test_a_watch_that_is_too_old_begins_again_and_tells_what_it_missed(server: Server, cluster: Cluster) -> None:
    gone = json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}) + "\n"
    watched(server, [listing("1", "a", "b"), listing("9", "b")], [(200, gone), (200, event("ADDED", "c"))])
    seen = collect(Follower(cluster, "/api/v1/pods"), lambda seen: ("c", True) in seen)
    assert ("a", False) in seen


def test_a_watch_survives_a_server_that_is_in_trouble(server: Server, cluster: Cluster) -> None:
    trouble = 500, {"message": "etcd has no leader"}
    watched(server, [trouble, trouble, listing("1", "a")], [(200, "")])
    assert collect(Follower(cluster, "/api/v1/pods"), bool) == [("a", True)]


@pytest.mark.parametrize(("status", "patience_s"), [(403, 30.0), (500, 0.0)])
def test_a_watch_that_stays_refused_raises(server: Server, cluster: Cluster, status: int, patience_s: float) -> None:
    watched(server, [(status, {"message": "no"})], [(200, "")])
    follower = Follower(cluster, "/api/v1/pods", patience_s)
    with pytest.raises(ClusterError, match=f"{status} no"):
        follower.next(5)


def test_asking_an_api_with_another_ones_credentials(server: Server, tmp_path: Path) -> None:
    server.answers["GET", "/api/v1/nodes"] = 401, {"message": "Unauthorized"}
    api = read_kubeconfig(kubeconfig(tmp_path, server.url, "own"))
    other = read_kubeconfig(kubeconfig(tmp_path, "http://127.0.0.1:1", "foreign"))
    assert ask(api, other, "/api/v1/nodes") == (401, {"message": "Unauthorized"})
    assert server.requests[-1][2]["Authorization"] == "Bearer foreign"


def test_a_kubeconfig_that_is_none_is_named_without_its_content(tmp_path: Path) -> None:
    path = tmp_path / "broken.conf"
    path.write_text("token: verysecret\n")
    for name in (path, tmp_path / "missing.conf"):
        with pytest.raises(ClusterError, match=name.name) as caught:
            read_kubeconfig(str(name))
        assert "verysecret" not in str(caught.value)
