#!/usr/bin/env python3
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Builds signed dnf repositories with the layout of pkgs.k8s.io and download.docker.com. Runs on a test host.

The packages are empty; names, versions and signatures are all that dnf looks at.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

# Of RHEL's own repositories, for a host that has none.
BASE = ("ca-certificates", "container-selinux", "iptables-nft", "kmod", "util-linux")
SPEC = """\
Name: {name}
Version: {version}
Release: {release}
Summary: of a test
License: none
BuildArch: noarch
%description
of a test
%files
"""


class Repository:
    """A folder of packages, its index, and the key that signs the packages."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        folder.mkdir(parents=True)

    def package(self, name: str, version: str, release: str) -> None:
        """Build and sign one package."""
        spec = self.folder / "package.spec"
        spec.write_text(SPEC.format(name=name, version=version, release=release), encoding="utf-8")
        self.run("rpmbuild", "-bb", "--define", f"_topdir {self.home}/rpm", "--define", f"_rpmdir {self.folder}", spec)
        spec.unlink()

    def finish(self, key: Path) -> None:
        """Sign the packages, write the index, and export the key."""
        packages = sorted(self.folder.glob("noarch/*.rpm"))
        settings = ("__gpg /usr/bin/gpg", "_gpg_name repository", f"_gpg_path {self.home}")
        defines = [word for setting in settings for word in ("--define", setting)]
        self.run("rpmsign", *defines, "--addsign", *packages)
        self.run("createrepo_c", "--quiet", self.folder)
        self.run("gpg", "--homedir", self.home, "--batch", "--armor", "--export", "--output", key)

    def run(self, *arguments: str | Path) -> None:
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kubernetes", required=True)
    parser.add_argument("--next-kubernetes", required=True)
    parser.add_argument("--containerd", required=True)
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)  # of a run that was cut off
    home = options.out / "home"
    home.mkdir(parents=True, mode=0o700)
    gpg = (
        "gpg",
        "--homedir",
        home,
        "--batch",
        "--quiet",
        "--passphrase",
        "",
        "--quick-gen-key",
        "repository",
        "rsa2048",
    )
    subprocess.run(gpg, check=True)

    minor = options.kubernetes.rsplit(".", 1)[0]
    repository = Repository(options.out / f"v{minor}/rpm", home)
    for name in ("kubelet", "kubeadm", "kubectl"):
        for version in (options.kubernetes, options.next_kubernetes):
            repository.package(name, version, "150500.1.1")
    repository.finish(repository.folder / "repodata/repomd.xml.key")

    repository = Repository(options.out / "centos/9/x86_64/stable", home)
    for version in (options.containerd, "99.0.0"):
        repository.package("containerd.io", version, "1.el9")
    for name in BASE:
        repository.package(name, "1", "1")
    repository.finish(options.out / "centos/gpg")
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


if __name__ == "__main__":
    main()
