# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The folder that playbooks/artifacts.yml fills: its checksums, its lock, its charts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ._checksums import SUMS, ArtifactsError, checksum, format_sums, parse_sums
from ._mirror import format_lock, images_in, parse_lock

try:
    import yaml
except ImportError:  # Ansible itself needs it, so a controller has it
    yaml = None  # type: ignore[assignment]

LOCK = "images.json"
PARTS = ("charts", "files", "packages")
RENDER_TIMEOUT_S = 60


def write_whole(path: Path, text: str) -> bool:
    """Write a text whole or not at all. Returns whether it is another one than before."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
    return True


class Folder:
    """A folder of artifacts, which need not exist yet."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.packages = self.path / "packages"

    def lock(self) -> dict[str, str]:
        """The digest of each image that was mirrored. Raises ArtifactsError where the lock is damaged."""
        file = self.path / LOCK
        return parse_lock(file.read_text(encoding="utf-8")) if file.is_file() else {}

    def write_lock(self, images: Mapping[str, str]) -> bool:
        """Keep the images' digests. Returns whether they are others than before."""
        return write_whole(self.path / LOCK, format_lock(images))

    def sums(self) -> dict[str, str]:
        """The checksum of each file. Raises ArtifactsError where the list is damaged."""
        file = self.path / SUMS
        return parse_sums(file.read_text(encoding="utf-8")) if file.is_file() else {}

    def write_sums(self) -> bool:
        """Write the checksums of all files anew. Returns whether they are others than before."""
        names = [path.relative_to(self.path).as_posix() for path in self._files()]
        return write_whole(self.path / SUMS, format_sums({name: checksum(self.path / name) for name in names}))

    def _files(self) -> Iterator[Path]:
        if (self.path / LOCK).is_file():
            yield self.path / LOCK
        for part in PARTS:
            for path in sorted((self.path / part).rglob("*")):
                if path.is_file() and not path.name.startswith("."):
                    yield path

    def distributions(self) -> list[str]:
        """The distributions that have a repository of packages."""
        return sorted(path.name for path in self.packages.glob("*") if path.is_dir())

    def chart(self, chart: Mapping[str, object]) -> Path:
        """Where a chart's archive stands."""
        return self.path / "charts" / f"{chart['name']}-{chart['version']}.tgz"


def chart_images(helm: str, archive: Path, chart: Mapping[str, object]) -> list[str]:
    """The images of a chart's containers, rendered with the values with which a role installs it.

    Raises ArtifactsError where Helm cannot render it.
    """
    if yaml is None:
        raise ArtifactsError(f"chart {chart['name']}: Python's PyYAML is missing; install it on this machine.")
    version = chart.get("kubernetes_version")
    command = [helm, "template", str(chart["name"]), str(archive), "--values", "-"]
    command += ["--kube-version", str(version)] if version else []
    # It may run in a thread.  pylint: disable-next=ansible-bad-function
    answer = subprocess.run(
        command,
        input=json.dumps(chart.get("values") or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=RENDER_TIMEOUT_S,
    )
    if answer.returncode:
        raise ArtifactsError(f"chart {chart['name']} {chart['version']}: {last_line(answer.stderr)}")
    return sorted(set(images_in(yaml.safe_load_all(answer.stdout))))


def last_line(text: str) -> str:
    """What a program said last, in one line: the message of a line that skopeo logs, without the state of uploads."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "it said nothing"
    logged = re.search(r'\bmsg="((?:\\.|[^"\\])*)"', lines[-1])
    message = re.sub(r"\\(.)", r"\1", logged[1]) if logged else lines[-1]
    return re.sub(r'\?[^"\s]*', "", message)
