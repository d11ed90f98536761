# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Says what is being done, how far it is, and for how long: no silence above a few seconds."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

HEARTBEAT_S = 5.0
ERROR_LINES = 15


class BuildError(Exception):
    """One sentence for the user: what is wrong, where, and what to do."""


class Progress:
    """Prints lines, and appends them to the file that $TENANTRY_PROGRESS_FILE names."""

    def __init__(self, log_folder: Path) -> None:
        self.log_folder = log_folder
        file = os.environ.get("TENANTRY_PROGRESS_FILE")
        self._file = Path(file) if file else None
        self._steps: list[str] = []

    def say(self, line: str) -> None:
        print(line, flush=True)
        if self._file:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Announces `what`, repeats it with the seconds passed, and says when it is done."""
        started = time.monotonic()
        done = threading.Event()

        def beat() -> None:
            while not done.wait(HEARTBEAT_S):
                if self._steps[-1] == what:
                    self.say(f"{what}: {time.monotonic() - started:.0f} s")

        self.say(what)
        self._steps.append(what)
        heart = threading.Thread(target=beat, daemon=True)
        heart.start()
        try:
            yield
        finally:
            done.set()
            heart.join()
            self._steps.pop()
        self.say(f"{what}: done in {time.monotonic() - started:.1f} s")

    def run(
        self,
        name: str,
        argv: Sequence[str],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: IO[bytes] | None = None,
    ) -> None:
        """Runs a program with its output in the log folder; raises BuildError with the last lines."""
        self.log_folder.mkdir(parents=True, exist_ok=True)
        log = self.log_folder / f"{name}.log"
        with log.open("w", encoding="utf-8") as stream:
            try:
                full_env = {**os.environ, **(env or {})}
                result = subprocess.run(
                    argv, cwd=cwd, env=full_env, stdin=stdin, stdout=stream, stderr=stream, check=False
                )
            except FileNotFoundError as missing:
                raise BuildError(f"{name}: the program {argv[0]} is not installed.") from missing
        if result.returncode:
            last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-ERROR_LINES:])
            raise BuildError(f"{name}: {argv[0]} ended with {result.returncode}; the whole log is {log}:\n{last}")
