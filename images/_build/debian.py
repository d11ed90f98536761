# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Debian root file systems, made by mmdebstrap from the machine's own package source."""

from __future__ import annotations

import os
import re
import tarfile
from pathlib import Path

from .manifest import digest, file_digest
from .progress import BuildError, Progress

SUITE = "bookworm"  # systemd 252: newer ones refuse cgroup v1
EPOCH = 1_767_225_600  # no file is newer; not 0: a password last changed at 0 counts as expired
LEFT_OUT = ("man", "doc", "locale", "info", "lintian", "bash-completion", "zoneinfo", "common-licenses")


def read_packages(folder: Path) -> list[str]:
    return (folder / "packages.txt").read_text(encoding="utf-8").split()


def key(folder: Path, strip: Path) -> str:
    return digest([SUITE, EPOCH, LEFT_OUT, read_packages(folder), file_digest(strip), os.uname().machine])


def apt_source(etc_apt: Path = Path("/etc/apt"), os_release: Path = Path("/etc/os-release")) -> str:
    """What mmdebstrap takes its packages from: this machine's own source of Debian.

    Returns a file where the machine runs the suite itself, else a line with the machine's mirror;
    "" lets mmdebstrap take its default."""
    files = [path for path in (etc_apt / "sources.list.d/debian.sources", etc_apt / "sources.list") if path.exists()]
    for path in files:
        text = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
        mirror = re.search(r"^(?:URIs:\s*|deb\s+(?:\[[^]]*]\s+)?)(\S+/debian/?)(?=\s|$)", text, re.MULTILINE)
        if mirror and f"VERSION_CODENAME={SUITE}" in os_release.read_text(encoding="utf-8"):
            return str(path)
        if mirror:
            return f"deb {mirror.group(1)} {SUITE} main"
    return ""


def make_root(folder: Path, strip: Path, out: Path, progress: Progress) -> None:
    """Writes the tar `out` with the packages of `folder`/packages.txt."""
    excludes = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in LEFT_OUT]
    excludes.append("--dpkgopt=path-exclude=/usr/lib/*/gconv/*")
    argv = [
        "mmdebstrap", "--variant=essential", "--skip=output/dev", "--format=tar", *excludes,
        f"--include={','.join(read_packages(folder))}", f"--customize-hook={strip}", SUITE, str(out),
    ]  # fmt: skip
    source = apt_source()
    progress.run(f"debian-{folder.name}", [*argv, source] if source else argv, env={"SOURCE_DATE_EPOCH": str(EPOCH)})


def extract_python(root: Path, destination: Path) -> list[str]:
    """Unpacks the interpreter of a root's tar. Returns the argv that runs it on this machine without chroot."""
    wanted = re.compile(r"(\./)?usr/(bin/python3|lib/python3|lib/[^/]+-linux-[^/]+/[^/]+\.so)")
    with tarfile.open(root) as archive:
        members = [member for member in archive if wanted.match(member.name)]
        archive.extractall(destination, members=members, filter="tar")
    loaders = sorted(destination.glob("usr/lib/*-linux-*/ld-linux-*"))
    if not loaders:
        raise BuildError(f"{root}: no dynamic loader found; remove this file and run again.")
    return [str(loaders[0]), "--library-path", str(loaders[0].parent), str(destination / "usr/bin/python3.11")]
