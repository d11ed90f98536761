# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from ansible_collections.tenantry.gpu.plugins.callback.progress import CallbackModule, failure, heartbeat, last_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(b"", "", id="empty"),
        pytest.param(b"first\nsecond\n\n", "second", id="last-line-with-text"),
        pytest.param(b"10%\r20%\r", "20%", id="a-bar-that-overwrites-itself"),
        pytest.param(b"\x1b[2Kbuilding\n", "[2Kbuilding", id="no-control-characters"),
        pytest.param(b"x" * 9000 + b"\nend", "end", id="long-file"),
        pytest.param(b"\xff\n", "\ufffd", id="not-utf-8"),
    ],
)
def test_last_line(tmp_path, text, line):
    path = tmp_path / "progress"
    path.write_bytes(text)
    assert last_line(str(path), since=0) == line


def test_no_line_without_the_file_or_older_than_the_task(tmp_path):
    path = tmp_path / "progress"
    assert last_line(str(path), since=0) == ""
    path.write_text("old\n", encoding="utf-8")
    assert last_line(str(path), since=time.time() + 60) == ""


@pytest.mark.parametrize(
    ("hosts", "doing", "line"),
    [
        pytest.param([], "", "  ... 9 s: Hosts run", id="task"),
        pytest.param(["a", "b"], "", "  ... 9 s: Hosts run [a, b]", id="hosts"),
        pytest.param(list("abcde"), "etcd 3/9", "  ... 9 s: Hosts run [a, b, c, d, ...]: etcd 3/9", id="all"),
    ],
)
def test_heartbeat(hosts, doing, line):
    assert heartbeat("Hosts run", hosts, 9.4, doing) == line


def test_a_long_heartbeat_is_cut():
    assert len(heartbeat("t", [], 1, "x" * 500)) == 160


STATS = SimpleNamespace(failures={}, dark={})


class Display:
    def __init__(self):
        self.lines = []

    def display(self, line, **_options):
        self.lines.append(line)


def result(host="a", **answer):
    return SimpleNamespace(host=SimpleNamespace(get_name=lambda: host), result=answer)


@pytest.fixture
def callback(tmp_path):
    module = CallbackModule()
    module._display = Display()
    options = {"progress_file": str(tmp_path / "progress"), "silence_s": 0.1}
    module.get_option = options.__getitem__
    yield module
    module._stop.set()


def test_a_silent_task_is_heard_of(callback, monkeypatch, tmp_path):
    reading, writing = os.pipe()
    monkeypatch.setattr(os, "write", lambda _descriptor, text, write=os.write: write(writing, text))
    callback.v2_playbook_on_start(None)
    task = SimpleNamespace(get_name=lambda: "Images")
    callback.v2_playbook_on_task_start(task, False)
    callback.v2_runner_on_start(SimpleNamespace(get_name=lambda: "localhost"), task)
    (tmp_path / "progress").write_text("etcd\n", encoding="utf-8")
    with os.fdopen(reading) as lines:
        # A line may come before the file is written.
        line = next(line for line in lines if line != "  ... 0 s: Images [localhost]\n")
    assert line == "  ... 0 s: Images [localhost]: etcd\n"


def test_the_last_table_ends_the_run(callback):
    callback.v2_runner_on_ok(result(report_table="old", report_path="/r"))
    callback.v2_runner_on_failed(result(report_table="id  verdict\n", report_path="/r/report.json"))
    callback.v2_runner_on_ok(result(msg="other"))
    callback.v2_playbook_on_stats(STATS)
    assert callback._display.lines == ["id  verdict", "Report: /r/report.json"]


def test_no_table_no_line(callback):
    callback.v2_runner_on_ok(result())
    callback.v2_playbook_on_stats(STATS)
    assert callback._display.lines == []


def test_the_last_lines_name_the_hosts_that_failed(callback):
    callback.v2_playbook_on_task_start(SimpleNamespace(get_name=lambda: "The worker has joined tenant-a"), False)
    callback.v2_runner_on_failed(result("a-worker-0", msg="a-worker-0 could not join https://x: refused\nhint"))
    callback.v2_runner_on_failed(result("rescued", msg="an interrupted release"))
    callback.v2_runner_on_unreachable(result("b-worker-0", msg="no such container"))
    callback.v2_runner_on_ok(result(report_table="id  verdict\n", report_path="/r"))
    callback.v2_playbook_on_stats(SimpleNamespace(failures={"a-worker-0": 1}, dark={"b-worker-0": 1}))
    assert callback._display.lines == [
        "id  verdict",
        "Report: /r",
        "Failed: a-worker-0 at 'The worker has joined tenant-a': a-worker-0 could not join https://x: refused hint",
        "Failed: b-worker-0 at 'The worker has joined tenant-a': no such container",
    ]


def test_the_last_lines_name_the_hosts_that_have_to_be_started_again(callback):
    callback.v2_runner_on_ok(result("a-worker-0", ansible_facts={"tenantry_reboot_due": "The driver is newer.\n"}))
    callback.v2_runner_on_ok(result("b-worker-0", ansible_facts={"os_family": "Debian"}))
    callback.v2_playbook_on_stats(STATS)
    assert callback._display.lines == ["Reboot due: a-worker-0: The driver is newer."]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param({"msg": ""}, "see above.", id="none"),
        pytest.param({"censored": "the output has been hidden"}, "the output has been hidden", id="hidden"),
        pytest.param({"msg": "x" * 900}, "x" * 397 + "...", id="long"),
    ],
)
def test_a_failure_has_one_line(answer, reason):
    assert failure("a", "T", answer) == f"Failed: a at 'T': {reason}"
