#!/usr/bin/env python3
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes three signed package repositories with stand-ins of NVIDIA's packages: their names, versions and relations.

    packages.py --cache ~/.cache/tenantry-gpu --out .state/nvidia/repository

`archive` is Ubuntu's and Debian's: the newer driver appears there with `--publish`, as an archive replaces a version by
the next. `cuda` is NVIDIA's, which keeps all versions. `toolkit` has the real nvidia-ctk, built from its Go module.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "images"))

from _build.components import bin_folder, build_components, go_version  # noqa: E402
from _build.manifest import Component, load_component, load_matrix  # noqa: E402
from _build.progress import Progress  # noqa: E402

FILES = HERE / "files"
COMPONENTS, GALAXY = ROOT / "images/components", ROOT / "galaxy.yml"
VERSIONS = ROOT / "inventories/production/group_vars/all/versions.yml"
OLD, NEW, NEXT = "580.82.07", "580.95.05", "590.44.01"
KERNEL = os.uname().release  # a test host has this machine's
LIBRARIES = "usr/lib/x86_64-linux-gnu"
MODULE = """\
#define INFO(text, line) static const char info##line[] __attribute__((section(".modinfo"), used)) = text
INFO("version=" VERSION, 1);
INFO("license=Dual MIT/GPL", 2);
INFO("name=" NAME, 3);
"""
PERSISTENCED = "[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
CDI_UNITS = ("nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
DEPMOD = f"depmod {KERNEL}\n"


@dataclass
class Package:
    """A package: its relations, its files by path, and what it does when it is configured."""

    name: str
    version: str
    depends: str = ""
    files: Mapping[str, str | bytes | Path] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    configure: str = ""

    def build(self, folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            for path, content in self.files.items():
                target = root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, Path):
                    shutil.copy2(content, target)
                else:
                    target.write_bytes(content.encode() if isinstance(content, str) else content)
                    target.chmod(0o755 if content[:2] in ("#!", b"#!") else 0o644)
            for path, aim in self.links.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).symlink_to(aim)
            control = root / "DEBIAN"
            control.mkdir()
            lines = [f"Package: {self.name}", f"Version: {self.version}", "Architecture: amd64"]
            lines += ["Maintainer: tenantry.gpu", "Description: stand-in"]
            lines += [f"Depends: {self.depends}"] if self.depends else []
            (control / "control").write_text("\n".join(lines) + "\n")
            if self.configure:
                script = control / "postinst"
                script.write_text(f'#!/bin/sh\nset -e\n[ "$1" = configure ] || exit 0\n{self.configure}')
                script.chmod(0o755)
            subprocess.run(
                ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(root), str(folder)],
                check=True,
                stdout=subprocess.DEVNULL,
            )


def compiled(scratch: Path, version: str) -> dict[str, Path]:
    """Kernel modules that modinfo can read, and libraries that nvidia-ctk can load."""
    made = {}
    (scratch / "module.c").write_text(MODULE)
    (scratch / "empty.c").write_text("")
    for name in ("nvidia", "nvidia-uvm"):
        made[f"{name}.ko"] = scratch / f"{name}-{version}.ko"
        macros = [f'-DVERSION="{version}"', f'-DNAME="{name}"']
        subprocess.run(["gcc", "-c", *macros, "-o", made[f"{name}.ko"], scratch / "module.c"], check=True)
    for name, source in (("libnvidia-ml", FILES / "nvml.c"), ("libcuda", scratch / "empty.c")):
        made[name] = scratch / f"{name}.so.{version}"
        argv = ["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{name}.so.1"]
        subprocess.run([*argv, "-o", made[name], source], check=True)
    return made


def tools(made: Mapping[str, Path], version: str) -> tuple[dict[str, str | bytes | Path], dict[str, str]]:
    """nvidia-smi and the driver's libraries."""
    script = (FILES / "nvidia-smi").read_text(encoding="utf-8").replace("@VERSION@", version)
    files = {f"{LIBRARIES}/{name}.so.{version}": made[name] for name in ("libnvidia-ml", "libcuda")}
    links = {f"{LIBRARIES}/{name}.so.1": f"{name}.so.{version}" for name in ("libnvidia-ml", "libcuda")}
    return {"usr/bin/nvidia-smi": script, **files}, links


def ubuntu(made: Mapping[str, Path], version: str, kernel: str) -> list[Package]:
    """Ubuntu's packages of one driver version; ``kernel`` is the version of the package with its modules."""
    full = f"{version}-0ubuntu0.22.04.1"
    files, links = tools(made, version)
    folder = f"lib/modules/{KERNEL}/kernel/nvidia-580srv-open"
    modules = {f"{folder}/{name}": made[name] for name in ("nvidia.ko", "nvidia-uvm.ko")}
    units = {"lib/systemd/system/nvidia-persistenced.service": PERSISTENCED}
    manager = {"lib/systemd/system/nvidia-fabricmanager.service": PERSISTENCED}
    both = f"libnvidia-compute-580-server (= {full}), nvidia-compute-utils-580-server (= {full})"
    return [
        Package("libnvidia-compute-580-server", full, "", {k: v for k, v in files.items() if "lib/" in k}, links),
        Package("nvidia-utils-580-server", full, f"libnvidia-compute-580-server (= {full})",
                {k: v for k, v in files.items() if "bin/" in k}),
        Package("nvidia-compute-utils-580-server", full, files=units),
        Package("nvidia-kernel-common-580-server", full),
        Package("nvidia-headless-no-dkms-580-server-open", full, f"{both}, nvidia-kernel-common-580-server (= {full})"),
        Package("linux-modules-nvidia-580-server-open-generic", kernel, f"nvidia-kernel-common-580-server (= {full})",
                modules, configure=DEPMOD),
        Package("nvidia-fabricmanager-580", full, files=manager),
    ]  # fmt: skip


def cuda(made: Mapping[str, Path], version: str) -> list[Package]:
    """The packages of NVIDIA's repository of one driver version; its modules are built when they are configured."""
    full = f"{version}-1"
    files, links = tools(made, version)
    source = f"usr/src/nvidia-{version}"
    build = (FILES / "dkms").read_text(encoding="utf-8").replace("@VERSION@", version).replace("@KERNEL@", KERNEL)
    names = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced")
    return [
        Package("nvidia-open", full, ", ".join(f"{name} (= {full})" for name in names)),
        Package("nvidia-driver-cuda", full, f"libcuda1 (= {full})", {k: v for k, v in files.items() if "bin/" in k}),
        Package("libcuda1", full, "", {k: v for k, v in files.items() if "lib/" in k}, links),
        Package("firmware-nvidia-gsp", full),
        Package("nvidia-kernel-open-dkms", full, f"firmware-nvidia-gsp (= {full})",
                {f"{source}/{name}": made[name] for name in ("nvidia.ko", "nvidia-uvm.ko")} | {"usr/sbin/dkms": build},
                configure="dkms autoinstall\n"),
        Package("nvidia-persistenced", full, "", {"lib/systemd/system/nvidia-persistenced.service": PERSISTENCED}),
    ]  # fmt: skip


def toolkit(programs: Path, units: Path | None, version: str) -> list[Package]:
    """The toolkit's four packages: the real programs and units; before 1.18 there were none."""
    base: dict[str, str | bytes | Path] = {
        f"usr/bin/{name}": programs / name for name in ("nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime")
    }
    if units:
        base |= {f"lib/systemd/system/{name}": units / name for name in CDI_UNITS}
    configure = (
        "/usr/bin/nvidia-ctk --quiet config --config-file=/etc/nvidia-container-runtime/config.toml --in-place\n"
    )
    hook: dict[str, str | bytes | Path] = {
        "usr/bin/nvidia-container-runtime-hook": programs / "nvidia-container-runtime-hook"
    }
    return [
        Package("nvidia-container-toolkit", version,
                f"nvidia-container-toolkit-base (= {version}), libnvidia-container-tools (= {version})", hook),
        Package("nvidia-container-toolkit-base", version, "", base, configure=configure),
        Package("libnvidia-container-tools", version, f"libnvidia-container1 (>= {version})"),
        Package("libnvidia-container1", version),
    ]  # fmt: skip


def built(cache: Path, name: str) -> Path:
    """The folder of a component's programs, built where the cache does not have it."""
    component = load_component(COMPONENTS / name, load_matrix(VERSIONS, GALAXY))
    build_components(cache, [component], go_version(), Progress(cache / "logs"))
    return bin_folder(cache, component, go_version())


def module_folder(component: Component) -> Path:
    """Where Go keeps the module's source."""
    argv = ["go", "list", "-m", "-f", "{{.Dir}}", component.module]
    done = subprocess.run(argv, cwd=component.folder, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


class Signer:
    """A key that lives as long as the repositories."""

    def __init__(self, out: Path) -> None:
        self.home, self.public = out / "gnupg", out / "key.asc"
        if not self.home.exists():
            self.home.mkdir(mode=0o700)
            self._gpg("--passphrase", "", "--quick-generate-key", "test-repository", "ed25519", "sign", "never")
            self._gpg("--armor", "--output", str(self.public), "--export")

    def _gpg(self, *arguments: str) -> None:
        subprocess.run(["gpg", "--homedir", self.home, "--batch", "--quiet", "--yes", *arguments], check=True)

    def publish(self, folder: Path) -> None:
        """Write the index of a flat repository, and sign it."""
        scan = ["dpkg-scanpackages", "--multiversion", "."]
        index = subprocess.run(scan, cwd=folder, capture_output=True, check=True).stdout
        (folder / "Packages").write_bytes(index)
        (folder / "Packages.gz").write_bytes(gzip.compress(index, mtime=0))
        sums = "".join(
            f" {hashlib.sha256((folder / name).read_bytes()).hexdigest()} {(folder / name).stat().st_size} {name}\n"
            for name in ("Packages", "Packages.gz")
        )
        (folder / "Release").write_text(f"Origin: test\nSHA256:\n{sums}")
        self._gpg("--output", str(folder / "InRelease"), "--clearsign", str(folder / "Release"))

    def end(self) -> None:
        subprocess.run(["gpgconf", "--homedir", self.home, "--kill", "gpg-agent"], check=False)


def write(out: Path, cache: Path, publish: bool) -> None:
    folders = {name: out / name for name in ("archive", "cuda", "toolkit/deb/amd64")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    packages: dict[str, list[Package]] = {name: [] for name in folders}
    with tempfile.TemporaryDirectory() as scratch:
        made = {version: compiled(Path(scratch), version) for version in (OLD, NEW, NEXT)}
        if publish:
            packages["archive"] = ubuntu(made[NEW], NEW, "5.15.0-161.171")
        else:
            headers = {f"lib/modules/{KERNEL}/build/Makefile": "# stand-in\n"}
            packages["archive"] = [
                Package(f"linux-headers-{KERNEL}", "5.15.0-160.170", files=headers),
                Package("linux-image-generic", "5.15.0-160.170"),
                *ubuntu(made[OLD], OLD, "5.15.0-160.170"),
            ]
            packages["cuda"] = [package for version in made for package in cuda(made[version], version)]
            programs = {name: built(cache, name) for name in ("containerd", "nvidia-container-toolkit")}
            shutil.copytree(programs["containerd"], out / "containerd")
            component = load_component(COMPONENTS / "nvidia-container-toolkit", load_matrix(VERSIONS, GALAXY))
            units = module_folder(component) / "deployments/systemd"
            packages["toolkit/deb/amd64"] = [
                package
                for version, own in (("1.17.8-1", None), ("1.20.1-1", units), ("1.20.2-1", units))
                for package in toolkit(programs["nvidia-container-toolkit"], own, version)
            ]
        signer = Signer(out)
        try:
            for name, folder in folders.items():
                for package in packages[name]:
                    package.build(folder)
                if packages[name]:
                    signer.publish(folder)
        finally:
            signer.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="folder of built components")
    parser.add_argument("--out", type=Path, required=True, help="folder of the repositories")
    parser.add_argument("--publish", action="store_true", help="add the newer driver to the archive")
    options = parser.parse_args()
    write(options.out.resolve(), options.cache.expanduser(), options.publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
