# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Random cases, and what the recorder makes of a scheduler's answers. tests/integration plays them on a real API."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice

import pytest
from record import Cases, RecordError, Scheduler, patched, probe

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import parse_pair_scores, parse_register


def scenarios(seed: int, number: int = 300) -> list[dict]:
    return list(islice(Cases(seed), number))


def test_one_seed_gives_the_same_cases_another_gives_others():
    assert scenarios(1, 5) == scenarios(1, 5)
    assert scenarios(1, 5) != scenarios(2, 5)


def test_every_node_can_be_registered():
    for scenario in scenarios(1):
        for node in scenario["nodes"]:
            assert len(parse_register(json.dumps(node["cards"]))) == len(node["cards"])
            parse_pair_scores(json.dumps(node.get("pair_scores", [])))
            assert set(node.get("cordon", ())) <= {card["id"] for card in node["cards"]}


def test_the_cases_have_everything_that_the_rules_speak_of():
    seen: Counter[str] = Counter()
    for scenario in scenarios(1):
        seen.update(list(scenario))
        seen.update(f"{len(node['cards'])} cards" for node in scenario["nodes"])
        for step in scenario["steps"]:
            seen.update(list(step))
            if "create" in step:
                seen.update(list(step["create"]["metadata"].get("annotations", {})))
                seen.update(list(step["create"]["spec"]))
    for word in ("quota", "delete", "initContainers", "nodeName", "schedulerName", "0 cards", "16 cards"):
        assert seen[word] > 1, word
    wishes = [key for key in seen if key.startswith(("hami.io/", "nvidia.com/"))]
    assert len(wishes) == 9
    assert min(seen[key] for key in wishes) > 50


@pytest.mark.parametrize(
    ("patch", "result"),
    [
        ([], {"a": {"b/c": [1, 2]}}),
        ([{"op": "add", "path": "/x", "value": 3}], {"a": {"b/c": [1, 2]}, "x": 3}),
        ([{"op": "replace", "path": "/a/b~1c/0", "value": 3}], {"a": {"b/c": [3, 2]}}),
        ([{"op": "add", "path": "/a/b~1c/1", "value": 3}], {"a": {"b/c": [1, 3, 2]}}),
        ([{"op": "add", "path": "/a/b~1c/-", "value": 3}], {"a": {"b/c": [1, 2, 3]}}),
        ([{"op": "remove", "path": "/a/b~1c/0"}, {"op": "remove", "path": "/a/b~1c/0"}], {"a": {"b/c": []}}),
        ([{"op": "remove", "path": "/a"}], {}),
    ],
)
def test_a_patch_changes_a_copy(patch, result):
    document = {"a": {"b/c": [1, 2]}}
    assert patched(document, patch) == result
    assert document == {"a": {"b/c": [1, 2]}}


@pytest.fixture
def scheduler() -> Iterator[tuple[Scheduler, list[dict]]]:
    """A scheduler that answers what the test puts into the list."""
    answers: list[dict | bytes] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = answers.pop(0)
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Scheduler(f"http://127.0.0.1:{server.server_port}"), answers
    server.shutdown()
    server.server_close()


def test_a_webhook_s_answer_is_noted_as_the_pod_that_goes_on(scheduler):
    asked, answers = scheduler
    pod = probe("default", memory=1000)
    patch = [{"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"}]
    answers.append({"response": {"allowed": True, "patch": base64.b64encode(json.dumps(patch).encode()).decode()}})
    answer, mutated = asked.review(pod)
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
    assert answer == {"allowed": True, "scheduler": "hami-scheduler", "limits": [limits]}
    assert mutated == patched(pod, patch)
    answers.append({"response": {"allowed": False, "status": {"message": "no"}}})
    assert asked.review(pod) == ({"allowed": False, "message": "no"}, pod)


def test_an_answer_that_is_no_json_is_shown(scheduler):
    asked, answers = scheduler
    answers.append(b"oh no")
    with pytest.raises(RecordError, match="/filter answered 200 with b'oh no'"):
        asked.filter(probe("default"), ["n"])
