# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A folder of artifacts with its list of checksums, as playbooks/artifacts.yml writes it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUMS = "SHA256SUMS"
BLOCK = 1 << 20


class ArtifactsError(Exception):
    """What is wrong with the folder, in one sentence for the user."""


def parse_sums(text: str) -> dict[str, str]:
    """Checksum by path, from the lines of ``sha256sum``; raises ArtifactsError with the line that is none."""
    sums = {}
    for line in text.splitlines():
        checksum, space, path = line.partition(" ")
        path = path.removeprefix(" ").removeprefix("*").removeprefix("./") if space else ""
        if len(checksum) != 64 or not path:
            raise ArtifactsError(
                f"{SUMS} has a line that is no checksum and path: {line[:80]!r}; write the folder anew."
            )
        sums[path] = checksum.lower()
    return sums


def format_sums(sums: Mapping[str, str]) -> str:
    """Write SHA256SUMS as sha256sum does."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(sums.items()))


def read_sums(folder: Path) -> dict[str, str]:
    """Checksum by path of everything that the folder shall hold; raises ArtifactsError."""
    try:
        return parse_sums((folder / SUMS).read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactsError(
            f"{folder / SUMS} cannot be read ({error.strerror}); write the folder with playbooks/artifacts.yml, "
            "or give tenantry_artifacts_dir its path."
        ) from error


def checksum(path: Path) -> str:
    """The SHA-256 of a file; raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def fault(folder: Path, path: str, sums: Mapping[str, str]) -> str:
    """What is wrong with one artifact, or nothing."""
    if path not in sums:
        return f"{path} is not in {SUMS}"
    try:
        found = checksum(folder / path)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return "" if found == sums[path] else f"{path} has checksum {found[:12]}... instead of {sums[path][:12]}..."


def verify(folder: Path, paths: Iterable[str], sums: Mapping[str, str]) -> None:
    """Compare artifacts with their checksums; raises ArtifactsError that names every one that differs or is missing."""
    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter's lock
        faults = [found for found in pool.map(lambda path: fault(folder, path, sums), paths) if found]
    if faults:
        raise ArtifactsError(
            f"{folder}: {'; '.join(faults)}. Nothing was changed with it; fetch it again with playbooks/artifacts.yml."
        )
