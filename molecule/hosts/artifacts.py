#!/usr/bin/env python3
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fills a folder of artifacts, as playbooks/artifacts.yml lays it out, with the programs that images/ builds.

The projects' own archives cannot be had here; these have the same names and the same insides.
Prints `changed` where it wrote one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "images"))

from _build.components import bin_folder, build_components, go_version  # noqa: E402
from _build.manifest import load_components, load_matrix  # noqa: E402
from _build.progress import Progress  # noqa: E402

VERSIONS = ROOT / "inventories/production/group_vars/all/versions.yml"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
COMPONENTS = ("cni-plugins", "containerd", "crictl", "helm", "kubernetes")
RUNC = ("/usr/sbin/runc", "/usr/bin/runc")  # of this machine's distribution: runc's own is linked the same way


def pack(archive: Path, programs: Iterable[Path], folder: str) -> None:
    """Pack programs under ``folder`` of an archive, lightly: it lives for one scenario."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for program in programs:
            tar.add(program, f"{folder}{program.name}")


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write(out: Path, cache: Path) -> None:
    """Write every file and the list of their checksums."""
    matrix = load_matrix(VERSIONS, ROOT / "galaxy.yml")
    components = load_components(ROOT / "images/components", matrix)
    go = go_version()
    build_components(cache, [components[name] for name in COMPONENTS], go, Progress(cache / "logs"))
    programs = {name: sorted(bin_folder(cache, components[name], go).iterdir()) for name in COMPONENTS}
    tail = f"linux-{ARCHITECTURE}"

    def place(name: str, version: str, published: str) -> Path:
        path = out / "files" / name / version / published
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    version = matrix["containerd"]
    pack(place("containerd", version, f"containerd-{version}-{tail}.tar.gz"), programs["containerd"], "bin/")
    version = matrix["cni_plugins"]
    pack(place("cni-plugins", version, f"cni-plugins-{tail}-v{version}.tgz"), programs["cni-plugins"], "./")
    version = matrix["crictl"]
    pack(place("crictl", version, f"crictl-v{version}-{tail}.tar.gz"), programs["crictl"], "")
    version = matrix["helm"]
    pack(place("helm", version, f"helm-v{version}-{tail}.tar.gz"), programs["helm"], f"{tail}/")
    shutil.copy2(
        next(path for path in RUNC if os.path.exists(path)), place("runc", matrix["runc"], f"runc.{ARCHITECTURE}")
    )
    for program in programs["kubernetes"]:
        if program.name in ("kubeadm", "kubectl", "kubelet"):
            shutil.copy2(program, place("kubernetes", matrix["kubernetes"], program.name))
    sums = [f"{sha256(path)}  {path.relative_to(out)}\n" for path in sorted(out.glob("files/**/*")) if path.is_file()]
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="folder of built components")
    parser.add_argument("--out", type=Path, required=True, help="folder of artifacts to fill")
    options = parser.parse_args()
    if not (options.out / "SHA256SUMS").exists():
        write(options.out, options.cache)
        print("changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
