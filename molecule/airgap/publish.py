#!/usr/bin/env python3
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lays programs and charts out as their projects publish them.

    publish.py --artifacts FOLDER --out FOLDER --helm PROGRAM CHART...

Programs come from a folder as molecule/hosts/artifacts.py fills it; checksums and the charts' index are made here.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
from pathlib import Path

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


def publish(file: Path, out: Path) -> None:
    """Link one program to where its project has it, with its checksum in the project's manner."""
    program, version = file.parts[-3], file.parts[-2]
    folders = {"helm": "", "kubernetes": f"v{version}/bin/linux/{ARCHITECTURE}"}
    place = out / program / folders.get(program, f"v{version}") / file.name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(file)
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    if program == "runc":
        place.with_name("runc.sha256sum").write_text(f"{'0' * 64}  runc.other\n{checksum} *{file.name}\n")
    elif program in {"containerd", "helm"}:
        place.with_name(f"{file.name}.sha256sum").write_text(f"{checksum}  {file.name}\n")
    else:
        place.with_name(f"{file.name}.sha256").write_text(checksum)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=Path, required=True, help="folder of programs")
    parser.add_argument("--out", type=Path, required=True, help="folder to fill")
    parser.add_argument("--helm", required=True, help="the helm program")
    parser.add_argument("charts", type=Path, nargs="+", help="folders of charts")
    options = parser.parse_args()
    for file in sorted(options.artifacts.glob("files/*/*/*")):
        publish(file.resolve(), options.out)
    charts = options.out / "charts"
    charts.mkdir(parents=True)
    for chart in options.charts:
        subprocess.run([options.helm, "package", chart.resolve(), "--destination", charts], check=True)
    subprocess.run([options.helm, "repo", "index", charts], check=True)


if __name__ == "__main__":
    main()
