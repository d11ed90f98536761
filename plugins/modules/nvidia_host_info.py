#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu maintainers
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has of NVIDIA, in one look. Runs on the host: Python 3.9, standard library."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_host_info
short_description: Cards, driver, container runtime and packages of a GPU host
version_added: 0.1.0
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - Reads in one look what the roles nvidia_driver and nvidia_container_toolkit decide by.
  - Cards are read from the PCI bus, so no driver and no program is needed for them.
extends_documentation_fragment:
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
options: {}
notes:
  - Runs on Debian's and Red Hat's family with Python 3.9 or newer; what cannot be read is empty.
"""

EXAMPLES = r"""
- name: What the host has
  tenantry.gpu.nvidia_host_info:
  register: found

- name: The loaded driver is the installed one
  ansible.builtin.assert:
    that: found.module_loaded == found.module_installed
"""

RETURN = r"""
distribution:
  description: C(ID) in os-release.
  returned: always
  type: str
  sample: ubuntu
distribution_version:
  description: C(VERSION_ID) in os-release.
  returned: always
  type: str
  sample: "24.04"
family:
  description: V(debian), V(redhat), or empty for any other.
  returned: always
  type: str
  sample: debian
machine:
  description: The processor's architecture.
  returned: always
  type: str
  sample: x86_64
kernel:
  description: Release of the running kernel.
  returned: always
  type: str
  sample: 6.8.0-87-generic
headers:
  description: Whether that kernel's headers are there, as DKMS needs them.
  returned: always
  type: bool
device_ids:
  description: PCI device id of every NVIDIA card, in the order of the bus.
  returned: always
  type: list
  elements: str
  sample: ["2330", "2330"]
nvswitches:
  description: Number of NVSwitches on the PCI bus.
  returned: always
  type: int
secure_boot:
  description: Whether the kernel takes signed modules only.
  returned: always
  type: bool
dkms_key_enrolled:
  description: Whether the key by which DKMS signs is enrolled.
  returned: always
  type: bool
nouveau_loaded:
  description: Whether nouveau drives the cards.
  returned: always
  type: bool
module_loaded:
  description: Version of the loaded kernel module nvidia.
  returned: always
  type: str
  sample: 580.95.05
module_installed:
  description: Version of the module that the running kernel would load.
  returned: always
  type: str
  sample: 580.95.05
module_kernels:
  description: Releases of the kernels that have the module nvidia, the running one or others.
  returned: always
  type: list
  elements: str
  sample: [6.8.0-87-generic]
library_installed:
  description: Version of the driver's library, to which programs link.
  returned: always
  type: str
  sample: 580.95.05
module_stream:
  description: Stream of the dnf module nvidia-driver that is enabled.
  returned: always
  type: str
  sample: 580-open
failed_build:
  description: The newest log of a DKMS build of the driver that has errors.
  returned: always
  type: dict
  contains:
    log:
      description: Path of the log, empty where there is none.
      type: str
    error:
      description: Its last line that tells an error.
      type: str
packages:
  description: Installed packages of the driver, the toolkit and the kernel, by name.
  returned: always
  type: dict
  sample: {nvidia-utils-580-server: {version: 580.95.05-0ubuntu0.24.04.2, finished: true, held: true}}
package_sources:
  description: Files that name a package repository of NVIDIA's.
  returned: always
  type: list
  elements: str
containerd_version:
  description: Version of containerd, empty where there is none.
  returned: always
  type: str
  sample: 2.3.7
cards:
  description: Cards as nvidia-smi lists them; none while the driver does not answer.
  returned: always
  type: list
  elements: dict
  contains:
    uuid:
      description: Its UUID.
      type: str
    name:
      description: Its model.
      type: str
    mig_current:
      description: MIG mode, V(Enabled), V(Disabled) or V([N/A]).
      type: str
    mig_pending:
      description: MIG mode after the next reset.
      type: str
"""

import os
import platform
import re
from pathlib import Path
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule

Run = Callable[[list[str]], tuple[int, str]]

SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
DKMS_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")
LIBRARIES = ("usr/lib/*-linux-gnu/libnvidia-ml.so.1", "usr/lib64/libnvidia-ml.so.1")
SOURCE_FOLDERS = ("etc/apt/sources.list.d", "etc/yum.repos.d")
SOURCE = re.compile(r"nvidia\.github\.io|developer\.download\.nvidia\.com")
PACKAGE = re.compile(r"nvidia|cuda-drivers|^libcuda(1$|debugger)|^libnv(cuvid|optix)|^linux-|^kernel-devel")
# NVIDIA's module, and what Debian's own packages call its file.
MODULES = ("nvidia", "nvidia-current", "nvidia-current-open")
MODULE_FILE = re.compile(rf"/({'|'.join(MODULES)})\.ko(\.\w+)?:")
DISPLAY = "0x03"
BRIDGE = "0x0680"
NVIDIA = "0x10de"
ERROR = re.compile(r"\berror\b|\*\*\*", re.IGNORECASE)


def read(path: Path) -> str:
    """A small file's text, or "" where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def os_release(root: Path) -> dict[str, str]:
    """Name, version and family of the distribution."""
    values = dict(re.findall(r"^(\w+)=[\"']?(.*?)[\"']?$", read(root / "etc/os-release"), re.MULTILINE))
    identity = values.get("ID", "")
    like = {identity, *values.get("ID_LIKE", "").split()}
    family = "debian" if like & {"debian", "ubuntu"} else "redhat" if like & {"rhel", "fedora", "centos"} else ""
    return {"distribution": identity, "distribution_version": values.get("VERSION_ID", ""), "family": family}


def pci(root: Path) -> dict[str, Any]:
    """NVIDIA's cards and switches on the PCI bus."""
    cards, switches = [], 0
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if read(device / "vendor") != NVIDIA:
            continue
        kind = read(device / "class")
        if kind.startswith(DISPLAY):
            cards.append(read(device / "device")[2:])
        switches += kind.startswith(BRIDGE)
    return {"device_ids": cards, "nvswitches": switches}


def secure_boot(root: Path, run: Run) -> dict[str, bool]:
    """Whether Secure Boot is on, and whether it knows DKMS's key."""
    variable = root / SECURE_BOOT
    # Four bytes of attributes come before the value.
    known = variable.is_file()
    on = variable.read_bytes()[4:5] == b"\x01" if known else "enabled" in run(["mokutil", "--sb-state"])[1]
    keys = [root / key for key in DKMS_KEYS if (root / key).is_file()] if on else []
    enrolled = any("already enrolled" in run(["mokutil", "--test-key", str(key)])[1] for key in keys)
    return {"secure_boot": on, "dkms_key_enrolled": enrolled}


def kernel_module(root: Path, kernel: str, run: Run) -> dict[str, Any]:
    """The kernel's view of the driver: loaded, installed, and what stands in its way."""
    queries = (run(["modinfo", "--set-version", kernel, "--field", "version", name]) for name in MODULES)
    return {
        "kernel": kernel,
        "headers": (root / "lib/modules" / kernel / "build").exists(),
        "nouveau_loaded": (root / "sys/module/nouveau").exists(),
        "module_loaded": read(root / "sys/module/nvidia/version"),
        "module_installed": next((answer.strip() for code, answer in queries if code == 0), ""),
        "module_kernels": module_kernels(root),
        "library_installed": library(root),
        "failed_build": failed_build(root),
    }


def module_kernels(root: Path) -> list[str]:
    """The kernels that have the module nvidia, whether they run or not."""
    indexes = sorted((root / "lib/modules").glob("*/modules.dep"))
    return [index.parent.name for index in indexes if MODULE_FILE.search(read(index))]


def library(root: Path) -> str:
    """The version of the driver's library, which the name of its file ends with."""
    links = [link for pattern in LIBRARIES for link in sorted(root.glob(pattern))]
    versions = (re.search(r"\.so\.(\d+\.[\d.]+)$", os.path.realpath(link)) for link in links)
    return next((version.group(1) for version in versions if version), "")


def failed_build(root: Path) -> dict[str, str]:
    """The newest DKMS log of the driver, if it tells an error."""
    # DKMS removes the log's folder when a build succeeds.
    logs = sorted((root / "var/lib/dkms").glob("nvidia*/*/build/make.log"), key=lambda log: log.stat().st_mtime)
    errors = [line.strip() for line in read(logs[-1]).splitlines() if ERROR.search(line)] if logs else []
    if not errors:
        return {"log": "", "error": ""}
    return {"log": f"/{logs[-1].relative_to(root)}", "error": errors[-1]}


def packages(family: str, run: Run) -> dict[str, dict[str, Any]]:
    """The packages of the driver, the toolkit and the kernel."""
    if family == "debian":
        answer = run(["dpkg-query", "--show", "--showformat", "${Package}\t${Version}\t${db:Status-Abbrev}\n"])[1]
        return parse_dpkg(answer)
    if family == "redhat":
        locks = run(["dnf", "--quiet", "versionlock", "list"])[1]
        return parse_rpm(
            run(["rpm", "--query", "--all", "--queryformat", "%{NAME}\t%{VERSION}-%{RELEASE}\n"])[1], locks
        )
    return {}


def parse_dpkg(answer: str) -> dict[str, dict[str, Any]]:
    """dpkg-query's lines: name, version, and wanted and actual state in a letter each."""
    found = {}
    for name, version, state in (line.split("\t") for line in answer.splitlines()):
        # n: not installed, c: only its configuration is left.
        if PACKAGE.search(name) and state[1] not in "nc":
            found[name] = {"version": version, "finished": state.strip()[1:] == "i", "held": state[0] == "h"}
    return found


def parse_rpm(answer: str, locks: str) -> dict[str, dict[str, Any]]:
    """rpm's lines, and dnf's locks: name-epoch:version-release.*."""
    locked = {match.group(1) for match in re.finditer(r"^(\S+?)-(?:\d+:)?\d\S*$", locks, re.MULTILINE)}
    lines = (line.split("\t") for line in answer.splitlines())
    return {
        name: {"version": version, "finished": True, "held": name in locked}
        for name, version in lines
        if PACKAGE.search(name)
    }


def package_sources(root: Path) -> list[str]:
    """Files in which a package repository of NVIDIA's stands."""
    files = [path for folder in SOURCE_FOLDERS for path in sorted((root / folder).glob("*")) if path.is_file()]
    return [f"/{path.relative_to(root)}" for path in files if SOURCE.search(read(path))]


def module_stream(root: Path) -> str:
    """The enabled stream of the dnf module nvidia-driver."""
    text = read(root / "etc/dnf/modules.d/nvidia-driver.module")
    found = re.search(r"^stream=(.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found and re.search(r"^state=enabled$", text, re.MULTILINE) else ""


def containerd_version(run: Run) -> str:
    """containerd's version without v, of ``containerd github.com/containerd/containerd/v2 v2.3.7 ...``."""
    found = re.search(r"\bv?(\d+\.\d+\.\d+)", run(["containerd", "--version"])[1])
    return found.group(1) if found else ""


def cards(run: Run) -> list[dict[str, str]]:
    """The cards as nvidia-smi lists them."""
    fields = ("uuid", "name", "mig_current", "mig_pending")
    query = "--query-gpu=uuid,name,mig.mode.current,mig.mode.pending"
    code, answer = run(["nvidia-smi", query, "--format=csv,noheader"])
    lines = (re.split(r",\s*", line.strip()) for line in answer.splitlines()) if code == 0 else ()
    return [dict(zip(fields, line)) for line in lines if len(line) == len(fields)]


def look(root: Path, machine: str, kernel: str, run: Run) -> dict[str, Any]:
    """Everything that the module returns."""
    release = os_release(root)
    return {
        **release,
        "machine": machine,
        **pci(root),
        **secure_boot(root, run),
        **kernel_module(root, kernel, run),
        "module_stream": module_stream(root),
        "packages": packages(release["family"], run),
        "package_sources": package_sources(root),
        "containerd_version": containerd_version(run),
        "cards": cards(run),
    }


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)

    def run(argv: list[str]) -> tuple[int, str]:
        # Only what is installed can answer.
        if not module.get_bin_path(argv[0]):
            return 127, ""
        code, answer, _stderr = module.run_command(argv)
        return code, answer

    module.exit_json(changed=False, **look(Path("/"), platform.machine(), platform.release(), run))


if __name__ == "__main__":
    main()
