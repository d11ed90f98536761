#!/usr/bin/env python3
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes images of plain hosts: what stands on a machine after the distribution's installer, with systemd and Python.

    roots.py --tag 1 debian-12 ubuntu-22.04

Prints `changed` where it made one. The packages come from this machine's own source.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = "systemd-sysv,dbus,python3,python3-apt,iproute2,procps,ca-certificates,kmod,libseccomp2,gnupg,pci.ids"
LEFT_OUT = ("man", "doc", "locale", "info")
SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
# Newer systemd refuses cgroup version 1 unless it is told to take it.
LEGACY_CGROUP = ("systemd.unified_cgroup_hierarchy=0", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1")

UBUNTU = 'ID=ubuntu\nID_LIKE=debian\nNAME="Ubuntu"\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\n'

# What a container host lacks of a machine. The base specification leaves out rlimits, which it may not raise.
BOOT = """\
#!/bin/sh
set -eu
mount --make-rshared /
mkdir -p /run/tenantry
if command -v ctr >/dev/null; then
  ctr oci spec | python3 -c '
import json, sys
spec = json.load(sys.stdin)
spec["process"].pop("rlimits", None)
json.dump(spec, sys.stdout)' >/run/tenantry/cri-base.json
fi
"""
CONTAINERD_UNIT = "[Service]\nExecStartPre=/usr/local/lib/test-host/boot\n"
CONTAINERD = """\
version = 3
oom_score = 0
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  base_runtime_spec = "/run/tenantry/cri-base.json"
"""


@dataclass(frozen=True)
class Distribution:
    """A suite of Debian's archive, and what stands in its os-release instead."""

    suite: str
    os_release: str = ""
    init: tuple[str, ...] = field(default=())


DISTRIBUTIONS = {
    "debian-12": Distribution("bookworm"),
    "debian-13": Distribution("trixie", init=LEGACY_CGROUP),
    "ubuntu-22.04": Distribution("bookworm", os_release=UBUNTU),
}


def sources(suite: str) -> list[str]:
    """This machine's lines for Debian's archive, for ``suite``; none lets mmdebstrap take its default."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES if path.exists())
    mirrors = re.findall(r"^(?:URIs:\s*|deb\s+(?:\[[^]]*]\s+)?)(\S+/debian(-security)?)/?(?=\s|$)", text, re.MULTILINE)
    lines = [f"deb {mirror} {suite}{'-security' if security else ''} main" for mirror, security in mirrors]
    return list(dict.fromkeys(lines))


def files(distribution: Distribution) -> dict[str, str]:
    """Files of the root, by their path in it."""
    wanted = {
        "usr/local/lib/test-host/boot": BOOT,
        "etc/systemd/system/containerd.service.d/10-container-host.conf": CONTAINERD_UNIT,
        "etc/containerd/conf.d/10-container-host.toml": CONTAINERD,
        "etc/systemd/journald.conf.d/test-host.conf": "[Journal]\nStorage=volatile\nRuntimeMaxUse=32M\n",
        "etc/machine-id": "",
    }
    if distribution.os_release:
        wanted["etc/os-release"] = distribution.os_release
    return wanted


def make(distribution: Distribution, image: str) -> None:
    """Make and import one image; raises CalledProcessError after the programs said why."""
    with tempfile.TemporaryDirectory() as scratch:
        overlay, archive = Path(scratch, "overlay"), Path(scratch, "root.tar")
        for name, text in files(distribution).items():
            path = overlay / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if text.startswith("#!") else 0o644)
        options = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in LEFT_OUT]
        # os-release is a link, and a copy would go through it.
        hooks = ['--customize-hook=rm -f "$1/etc/os-release"'] if distribution.os_release else []
        hooks.append(f'--customize-hook=cp -r --no-target-directory {overlay} "$1"')
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=apt", "--skip=output/dev", "--format=tar", *options, *hooks,
             f"--include={PACKAGES}", distribution.suite, str(archive), *sources(distribution.suite)],
            check=True,
        )  # fmt: skip
        init = ", ".join(f'"{word}"' for word in ("/sbin/init", *distribution.init))
        changes = (f"ENTRYPOINT [{init}]", "STOPSIGNAL SIGRTMIN+3")
        subprocess.run(
            ["podman", "import", "--quiet", *(f"--change={change}" for change in changes), str(archive), image],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", required=True, help="tag of the images")
    parser.add_argument("distributions", nargs="+", choices=DISTRIBUTIONS)
    options = parser.parse_args()
    for name in sorted(set(options.distributions)):
        image = f"localhost/tenantry-gpu/host-{name}:{options.tag}"
        if subprocess.run(["podman", "image", "exists", image], check=False).returncode:
            make(DISTRIBUTIONS[name], image)
            print("changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
