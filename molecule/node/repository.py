#!/usr/bin/env python3
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Builds signed apt repositories with the layout of pkgs.k8s.io and download.docker.com. Runs on a test host.

Their packages cannot be had here. These have the same names, kinds of versions and units, and built programs inside.
Of Kubernetes there is also the next patch: wrappers that say its version and run the programs of this one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

CONTAINERD_UNIT = """\
[Unit]
Description=containerd container runtime
After=network.target

[Service]
Type=notify
ExecStart=/usr/bin/containerd
Delegate=yes
KillMode=process
Restart=always

[Install]
WantedBy=multi-user.target
"""
KUBELET_UNIT = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
"""
KUBELET_DROP_IN = """\
[Service]
Environment="KUBELET_BOOTSTRAP_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_BOOTSTRAP_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
# What the package of Docker brings: containerd without the part that kubelets talk to.
CONTAINERD_CONFIG = 'disabled_plugins = ["cri"]\n'
WRAPPER = """\
#!/bin/sh
# The version alone is the next patch's.
case "$*" in
  --version) echo Kubernetes v{version} ;;
  "version --output short") echo v{version} ;;
  *) exec /usr/lib/kubernetes-{version}/{name} "$@" ;;
esac
"""


class Repository:
    """A folder of packages and, beside them, their index."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self.folder = folder
        self.architecture = architecture
        self.stanzas: list[str] = []
        folder.mkdir(parents=True)

    def package(self, name: str, version: str, files: dict[str, Path | str], depends: str = "") -> None:
        """Build one package; a file's content is a program's path or a text."""
        root = self.folder / "root"
        for path, content in files.items():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                os.link(content, target)
            else:
                target.write_text(content, encoding="utf-8")
                target.chmod(0o755 if content.startswith("#!") else 0o644)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: {self.architecture}\n"
        control += "Maintainer: nobody <nobody@example.com>\n"
        control += (f"Depends: {depends}\n" if depends else "") + "Description: of a test\n"
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN/control").write_text(control, encoding="utf-8")
        conffiles = "".join(f"{path}\n" for path in files if path.startswith("/etc/"))
        (root / "DEBIAN/conffiles").write_text(conffiles, encoding="utf-8")
        archive = self.folder / f"{name}_{version}_{self.architecture}.deb"
        subprocess.run(
            ["dpkg-deb", "-Znone", "--root-owner-group", "--build", root, archive],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        shutil.rmtree(root)
        self.stanzas.append(f"{control}Filename: {archive.name}\n{facts(archive)}")

    def index(self, home: Path, folder: Path, prefix: str = "") -> None:
        """Write and sign the index into a suite's folder; ``prefix`` leads to the packages."""
        listed = "\n".join(stanza.replace("Filename: ", f"Filename: {prefix}") for stanza in self.stanzas)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "Packages").write_text(listed, encoding="utf-8")
        name = "Packages"
        if prefix:
            name = f"stable/binary-{self.architecture}/Packages"
            (folder / name).parent.mkdir(parents=True)
            (folder / "Packages").rename(folder / name)
        data = (folder / name).read_bytes()
        release = (
            f"Architectures: {self.architecture}\nComponents: stable\nDate: Mon, 30 Nov 2026 00:00:00 UTC\nSHA256:\n"
        )
        (folder / "Release").write_text(
            f"{release} {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n", encoding="utf-8"
        )
        gpg(home, "--clearsign", "--output", str(folder / "InRelease"), str(folder / "Release"))


def facts(path: Path) -> str:
    """Size and checksum, as an index has them."""
    return f"Size: {path.stat().st_size}\nSHA256: {hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def gpg(home: Path, *arguments: str) -> None:
    """Run gpg with a key ring of its own."""
    subprocess.run(["gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", "", *arguments], check=True)


def kubernetes(repository: Repository, programs: Path, version: str) -> None:
    """The three packages of a version, and those of its next patch."""
    minor, patch = version.rsplit(".", 1)
    following = f"{minor}.{int(patch) + 1}"
    units: dict[str, Path | str] = {"/usr/lib/systemd/system/kubelet.service": KUBELET_UNIT}
    drop_in: dict[str, Path | str] = {"/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": KUBELET_DROP_IN}
    extra = {"kubelet": units, "kubeadm": drop_in, "kubectl": {}}
    for name, files in extra.items():
        program = programs / name
        repository.package(
            name, f"{version}-1.1", {f"/usr/bin/{name}": program, **files}, "iptables" if name == "kubelet" else ""
        )
        wrapper = WRAPPER.format(version=following, name=name)
        wrapped: dict[str, Path | str] = {
            f"/usr/bin/{name}": wrapper,
            f"/usr/lib/kubernetes-{following}/{name}": program,
        }
        repository.package(name, f"{following}-1.1", {**wrapped, **files}, "iptables" if name == "kubelet" else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kubernetes", required=True)
    parser.add_argument("--containerd", required=True)
    options = parser.parse_args()
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    ).stdout.strip()
    shutil.rmtree(options.out, ignore_errors=True)  # of a run that was cut off
    home = options.out / "home"
    home.mkdir(parents=True, mode=0o700)
    gpg(home, "--quick-gen-key", "repository of a test", "ed25519", "sign", "never")

    minor = options.kubernetes.rsplit(".", 1)[0]
    repository = Repository(options.out / f"v{minor}/deb", architecture)
    kubernetes(repository, options.programs, options.kubernetes)
    repository.index(home, repository.folder)

    pool = Repository(options.out / "debian/pool", architecture)
    programs = {f"/usr/bin/{path.name}": path for path in sorted((options.programs / "containerd/bin").iterdir())}
    files: dict[str, Path | str] = {
        **programs,
        "/usr/bin/runc": options.programs / "runc",
        "/usr/lib/systemd/system/containerd.service": CONTAINERD_UNIT,
        "/etc/containerd/config.toml": CONTAINERD_CONFIG,
        **{f"/opt/cni/bin/{path.name}": path for path in sorted((options.programs / "cni").iterdir())},
    }
    for version in (options.containerd, "99.0.0"):
        pool.package("containerd.io", f"{version}-1~debian.12~bookworm", files if version == options.containerd else {})
    pool.index(home, options.out / "debian/dists/bookworm", "pool/")

    for key in (repository.folder / "Release.key", options.out / "debian/gpg"):
        gpg(home, "--armor", "--export", "--output", str(key))
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


if __name__ == "__main__":
    main()
