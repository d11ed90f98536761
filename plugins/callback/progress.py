# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says what a long task is doing, and ends a run with the verification's table and the hosts that failed."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: notification
short_description: Heartbeat of long tasks, the verification's table and the failed hosts at the end
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Prints a line whenever a run has printed nothing for O(silence_s) seconds. The line names the task, the hosts
    that are not done with it, the seconds since it began, and the last line of the progress file.
  - Long programs append what they are doing to the progress file. A line older than the task is not shown.
  - After the recap it prints RV(tenantry.gpu.verification#module:report_table) of the run's last result that has one.
  - The last lines name every host that has to be started again (fact C(tenantry_reboot_due)), and every host that
    failed, the task at which it did, and why.
options:
  progress_file:
    description: File whose last line is shown, relative to the folder in which the run was started.
    type: str
    default: .state/progress
    env:
      - name: TENANTRY_PROGRESS_FILE
    ini:
      - section: callback_tenantry_progress
        key: progress_file
  silence_s:
    description: Seconds without output after which a line is printed.
    type: float
    default: 8
    env:
      - name: TENANTRY_PROGRESS_SILENCE_S
    ini:
      - section: callback_tenantry_progress
        key: silence_s
requirements:
  - enabled in configuration (C(callbacks_enabled = tenantry.gpu.progress))
"""

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from ansible.plugins.callback import CallbackBase

LAST_LINE_BYTES = 4096
LINE_WIDTH = 160
# File systems take their times from a clock that ticks, so a file may seem to be written a moment before it was.
CLOCK_TICK_S = 0.01
REASON_WIDTH = 400


def last_line(path: str, since: float) -> str:
    """The last non-empty line of ``path``, or "" where the file is older than ``since`` or cannot be read."""
    try:
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_mtime < since - CLOCK_TICK_S:
                return ""
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - LAST_LINE_BYTES))
            text = stream.read(LAST_LINE_BYTES).decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "".join(character for character in lines[-1] if character.isprintable()) if lines else ""


def heartbeat(task: str, hosts: list[str], elapsed_s: float, doing: str) -> str:
    """One line that says what is being waited for."""
    where = f" [{', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''}]" if hosts else ""
    line = f"  ... {elapsed_s:.0f} s: {task}{where}{': ' + doing if doing else ''}"
    return line if len(line) <= LINE_WIDTH else line[: LINE_WIDTH - 3] + "..."


def failure(host: str, task: str, answer: Mapping[str, Any]) -> str:
    """One line that names a failed host, the task, and the reason."""
    reason = " ".join(str(answer.get("msg") or answer.get("censored") or "see above.").split())
    reason = reason if len(reason) <= REASON_WIDTH else reason[: REASON_WIDTH - 3] + "..."
    return f"Failed: {host} at '{task}': {reason}"


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Heartbeat thread, final table and failures.

    The thread takes no lock and writes with os.write alone: Ansible forks its workers while the thread
    runs, and a lock of Display or of a buffered stream held at that moment would stay held in the child.
    """

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "tenantry.gpu.progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._printed_at = time.monotonic()
        self._task = ""
        self._task_began = time.monotonic()
        self._task_began_wall = time.time()
        self._hosts: tuple[str, ...] = ()
        self._due: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        self._table = ""
        self._report = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self, path: str, silence_s: float) -> None:
        while not self._stop.wait(min(1.0, silence_s / 4)):
            now = time.monotonic()
            if not self._task or now - self._printed_at < silence_s:
                continue
            doing = last_line(path, self._task_began_wall)
            line = heartbeat(self._task, list(self._hosts), now - self._task_began, doing)
            self._printed_at = now
            try:
                os.write(1, f"{line}\n".encode())
            except OSError:  # nobody reads any more
                return

    def _printed(self) -> None:
        self._printed_at = time.monotonic()

    # -- events -------------------------------------------------------------------------------------------------

    def v2_playbook_on_start(self, playbook: Any) -> None:
        path = os.path.abspath(str(self.get_option("progress_file")))
        silence_s = float(self.get_option("silence_s"))
        self._thread = threading.Thread(target=self._run, args=(path, silence_s), name="progress", daemon=True)
        self._thread.start()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._printed()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._begin(task)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        self._begin(task)

    def _begin(self, task: Any) -> None:
        self._hosts = ()
        self._task_began, self._task_began_wall = time.monotonic(), time.time()
        self._task = task.get_name().strip()
        self._printed()

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        self._hosts = (*self._hosts, host.get_name())

    def v2_runner_on_ok(self, result: Any) -> None:
        self._end(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._fail(result)
        self._end(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._end(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._fail(result)
        self._end(result)

    def v2_runner_retry(self, result: Any) -> None:
        self._printed()

    def v2_runner_item_on_ok(self, result: Any) -> None:
        self._printed()

    def v2_runner_item_on_failed(self, result: Any) -> None:
        self._printed()

    def _fail(self, result: Any) -> None:
        name = result.host.get_name()
        self._failures[name] = failure(name, self._task, result.result)

    def _end(self, result: Any) -> None:
        self._printed()
        name = result.host.get_name()
        self._hosts = tuple(host for host in self._hosts if host != name)
        answer = result.result
        due = (answer.get("ansible_facts") or {}).get("tenantry_reboot_due")
        if due:
            self._due[name] = f"Reboot due: {name}: {' '.join(str(due).split())}"
        if answer.get("report_table"):
            self._table = str(answer["report_table"])
            self._report = str(answer.get("report_path", ""))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=1)
        if self._table:
            self._display.display(self._table.rstrip("\n"))
            if self._report:
                self._display.display(f"Report: {self._report}")
        for line in self._due.values():
            self._display.display(line)
        for host, line in self._failures.items():
            # Not one that was rescued, or was to be ignored.
            if stats.failures.get(host) or stats.dark.get(host):
                self._display.display(line)
