#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs programs from a folder of artifacts. Runs on the host: Python 3.9, standard library."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_programs
short_description: Install programs on a host from a folder of artifacts on the controller
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Installs programs, or whole archives of programs, from a folder with a list of checksums.
  - Only what a host does not have yet is copied to it. The host remembers the checksum of what it installed, and the
    size and time of each file, so that one which somebody replaced is installed again.
  - A checksum is compared twice, before a file leaves the controller and before anything of it is installed. A file is
    replaced whole or not at all, also while its program runs.
attributes:
  check_mode:
    support: full
    description: Says what would be installed; nothing is copied.
  diff_mode:
    support: none
    description: The result names every artifact that is installed.
  idempotent:
    support: full
    description: Changes nothing when everything is installed.
options:
  src:
    description: The folder of artifacts on the controller, with its C(SHA256SUMS).
    type: path
    required: true
  programs:
    description:
      - Where each artifact goes, by its path in the folder. That of an archive (C(.tar.gz), C(.tgz)) is the folder in
        which its programs are unpacked, that of any other file is its name.
      - Of an archive only the programs are taken, the files that can be executed.
    type: dict
    required: true
  checksums:
    description: Set by the action plugin, the SHA-256 of each artifact.
    type: dict
  received:
    description: Set by the action plugin, where the artifacts that were copied are.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Containerd and kubelet are installed
  tenantry.gpu.node_programs:
    src: artifacts
    programs:
      files/containerd/2.3.7/containerd-2.3.7-linux-amd64.tar.gz: /usr/local
      files/kubernetes/1.36.3/kubelet: /usr/bin/kubelet
"""

RETURN = r"""
installed:
  description: Artifacts that were installed, or would be, by their paths in the folder.
  returned: success
  type: list
  elements: str
  sample: [files/kubernetes/1.36.3/kubelet]
"""

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ansible.module_utils.basic import AnsibleModule

STATE_FILE = "var/lib/tenantry-gpu/programs.json"
ARCHIVES = (".tar.gz", ".tgz")


class ProgramsError(Exception):
    """What went wrong, in one sentence for the user."""


def sha256(path: Path) -> str:
    """The checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


class Host:
    """What is installed under a root folder, and what it was installed from."""

    def __init__(self, root: Path = Path("/"), label: Callable[[str], object] = str) -> None:
        """``label`` gives a new file the context that SELinux wants, where the host has it."""
        self.root = root
        self.label = label
        self.state: dict[str, dict[str, Any]] = {}
        with suppress(OSError, ValueError):  # where nothing is known everything is installed again
            self.state = json.loads((root / STATE_FILE).read_text(encoding="utf-8"))

    def fingerprint(self, path: str) -> list[int]:
        """What changes when somebody replaces a file."""
        try:
            found = (self.root / path.lstrip("/")).stat()
        except OSError:
            return []
        return [found.st_size, found.st_mtime_ns]

    def has(self, name: str, dest: str, checksum: str) -> bool:
        """Whether the artifact of this checksum is what is installed at ``dest``."""
        known = self.state.get(name)
        if not known or (known["dest"], known["sha256"]) != (dest, checksum):
            return False
        return all(self.fingerprint(path) == mark for path, mark in known["files"].items())

    def install(self, name: str, dest: str, checksum: str, received: Path) -> None:
        """Install one artifact and remember it; raises ProgramsError."""
        found = sha256(received)
        if found != checksum:
            raise ProgramsError(
                f"{name} arrived with checksum {found} instead of {checksum}; nothing of it was installed."
            )
        try:
            if name.endswith(ARCHIVES):
                paths = list(self.unpack(received, dest))
            else:
                with received.open("rb") as stream:
                    paths = [self.place(stream, dest)]
        except (OSError, tarfile.TarError) as error:
            raise ProgramsError(f"{name} cannot be installed at {dest}: {error}") from error
        files = {path: self.fingerprint(path) for path in paths}
        self.state[name] = {"dest": dest, "sha256": checksum, "files": files}
        self.save()

    def unpack(self, archive: Path, folder: str) -> Iterator[str]:
        """Install the programs of an archive."""
        with tarfile.open(archive) as tar:
            for member in tar:
                parts = [part for part in member.name.split("/") if part not in ("", ".")]
                if ".." in parts:
                    raise tarfile.TarError(f"it has a path that leaves the folder, {member.name}")
                stream = tar.extractfile(member) if member.isfile() and member.mode & 0o111 else None
                if stream:
                    yield self.place(stream, f"{folder.rstrip('/')}/{'/'.join(parts)}")

    def place(self, stream: Any, name: str) -> str:
        """Replace one file in one step; a program that runs keeps its own."""
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.tenantry")
        with new.open("wb") as out:
            self.copy(stream, out)
        new.chmod(0o755)
        os.replace(new, path)
        self.label(str(path))
        return name

    @staticmethod
    def copy(stream: Any, out: BinaryIO) -> None:
        """Copy, and have it on disk before it takes another's place."""
        shutil.copyfileobj(stream, out, 1 << 20)
        out.flush()
        os.fsync(out.fileno())

    def save(self) -> None:
        """Remember what is installed, after each artifact: a run that is cut off goes on with the next one."""
        # Another version of the same program has taken the place of what is no longer as it was.
        self.state = {
            name: known
            for name, known in self.state.items()
            if all(self.fingerprint(path) == mark for path, mark in known["files"].items())
        }
        path = self.root / STATE_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(self.state, indent=1, sort_keys=True), encoding="utf-8")
        os.replace(new, path)


def apply(host: Host, programs: dict[str, str], checksums: dict[str, str], received: dict[str, str]) -> dict[str, Any]:
    """Install what was received, and tell what is missing; raises ProgramsError."""
    missing = [name for name, dest in sorted(programs.items()) if not host.has(name, dest, checksums[name])]
    installed = [name for name in missing if name in received]
    for name in installed:
        host.install(name, programs[name], checksums[name], Path(received[name]))
    return {
        "changed": bool(missing),
        "installed": installed or missing,
        "missing": [name for name in missing if name not in received],
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path", "required": True},
            "programs": {"type": "dict", "required": True},
            "checksums": {"type": "dict", "no_log": False},
            "received": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    host = Host(label=lambda path: module.set_default_selinux_context(path, False))
    try:
        module.exit_json(
            **apply(host, module.params["programs"], module.params["checksums"], module.params["received"])
        )
    except ProgramsError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
