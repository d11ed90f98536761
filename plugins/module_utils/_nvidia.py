# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which NVIDIA driver a host needs: architectures by PCI id, kernel modules, packages. No I/O; Python 3.9 (hosts)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

OPEN, CLOSED = "open", "closed"
UBUNTU, REPOSITORY, PREINSTALLED = "ubuntu", "repository", "preinstalled"
PRECOMPILED, DKMS, AUTO = "precompiled", "dkms", "auto"


class DriverError(Exception):
    """Why a driver does not suit a host, in one sentence without the host's name."""


@dataclass(frozen=True)
class Architecture:
    """A family of cards: which kernel modules drive it, and the driver branches that know it (0: no limit)."""

    name: str
    kernel_modules: tuple[str, ...]
    first_branch: int = 0
    last_branch: int = 0


# NVIDIA driver installation guide, "Kernel modules"; 580 is the last branch of Maxwell, Pascal and Volta.
_OLDER = Architecture("Kepler or older", (CLOSED,), last_branch=470)
_MAXWELL = Architecture("Maxwell", (CLOSED,), last_branch=580)
_PASCAL = Architecture("Pascal", (CLOSED,), last_branch=580)
_VOLTA = Architecture("Volta", (CLOSED,), last_branch=580)
_TURING = Architecture("Turing", (OPEN, CLOSED))
_AMPERE = Architecture("Ampere", (OPEN, CLOSED))
_ADA = Architecture("Ada", (OPEN, CLOSED), first_branch=525)
_HOPPER = Architecture("Hopper", (OPEN, CLOSED), first_branch=525)
_GRACE_HOPPER = Architecture("Grace Hopper", (OPEN,), first_branch=535)
_BLACKWELL = Architecture("Blackwell", (OPEN,), first_branch=570)
# What this table does not know is newer than it.
UNKNOWN = Architecture("unknown", (OPEN,))

# First and last PCI device id of vendor 10de, display controllers only; sorted, from pci.ids.
PCI_IDS: tuple[tuple[int, int, Architecture], ...] = (
    (0x0000, 0x133F, _OLDER),
    (0x1340, 0x15EF, _MAXWELL),
    (0x15F0, 0x15FF, _PASCAL),
    (0x1600, 0x17FF, _MAXWELL),
    (0x1B00, 0x1D7F, _PASCAL),
    (0x1D80, 0x1DFF, _VOLTA),
    (0x1E00, 0x1FFF, _TURING),
    (0x2080, 0x20FF, _AMPERE),
    (0x2180, 0x21FF, _TURING),
    (0x2200, 0x22FF, _AMPERE),
    (0x2300, 0x233F, _HOPPER),
    (0x2340, 0x234F, _GRACE_HOPPER),
    (0x2350, 0x23FF, _HOPPER),
    (0x2400, 0x25FF, _AMPERE),
    (0x2680, 0x28FF, _ADA),
    (0x2900, 0x2FFF, _BLACKWELL),
    (0x3180, 0x31FF, _BLACKWELL),
)

# By which key NVIDIA signs a release's repository, for every architecture (NVIDIA/cuda-repo-management, "GPG keys").
REPOSITORY_KEYS: Mapping[str, str] = {"debian13": "8793F200.pub", "rhel10": "CDF6BA43.pub"}
OLDER_KEYS: Mapping[str, str] = {"debian": "3bf863cc.pub", "redhat": "D42D0685.pub"}


@dataclass(frozen=True)
class Package:
    """An installed package: its version, whether its installation came to an end, and whether it is held."""

    version: str
    finished: bool = True
    held: bool = False


@dataclass(frozen=True)
class Host:
    """What the module nvidia_host_info has seen."""

    distribution: str
    distribution_version: str
    family: str
    kernel: str
    device_ids: tuple[str, ...]
    nvswitches: int = 0
    headers: bool = False  # of the running kernel
    secure_boot: bool = False
    dkms_key_enrolled: bool = False
    module_loaded: str = ""
    module_installed: str = ""
    module_kernels: tuple[str, ...] = ()
    library_installed: str = ""
    module_stream: str = ""
    packages: Mapping[str, Package] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """What the inventory asks for."""

    source: str
    branch: str
    version: str = ""
    kernel_modules: str = AUTO
    build: str = AUTO
    kernel_flavour: str = ""
    fabric_manager: str = AUTO
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What is to be done on one host."""

    kernel_modules: str  # open or closed; "" where the driver is there already
    build: str  # precompiled or dkms; "" where the driver is there already
    names: tuple[str, ...] = ()
    install: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()  # names that are not installed, or not in the wanted version
    repository: str = ""  # NVIDIA's folder of this distribution's packages
    repository_key: str = ""  # its file there
    module_stream: str = ""
    kernel_flavour: str = ""  # of precompiled modules of Ubuntu
    fabric_manager: bool = False
    due: bool = False
    replaces: bool = False  # a driver that is in use


def architecture(device_id: str) -> Architecture:
    """The architecture of a card by its PCI device id, four hexadecimal digits."""
    number = int(device_id, 16)
    return next((family for first, last, family in PCI_IDS if first <= number <= last), UNKNOWN)


def upstream_version(version: str) -> str:
    """NVIDIA's own version in a package's: 580.95.05 for 3:580.95.05-0ubuntu1."""
    return re.split(r"[-~+]", version.rpartition(":")[2], maxsplit=1)[0]


def branch_of(version: str) -> str:
    """The branch of a driver's version: 580 for 580.95.05."""
    return version.partition(".")[0]


def kernel_flavour(host: Host) -> str:
    """The flavour of the Ubuntu kernel that runs: generic for 6.8.0-87-generic, or that of an installed newer series.

    A kernel of generic-hwe-24.04 calls itself generic too, but has the version of the package that brings it:
    6.14.0-33.33~24.04.1, in older releases 6.14.0.33.33, or that of an update which waits for a start.
    """
    found = re.fullmatch(r"([0-9.]+)-[0-9]+-(.+)", host.kernel)
    if not found:
        raise DriverError(
            f"the running kernel {host.kernel} is none of Ubuntu's; "
            "set nvidia_driver_kernel_flavour or take another source."
        )
    version, flavour = found.groups()
    # virtual is generic with fewer modules; no driver is built under its name.
    family = flavour.replace("generic", "(?:generic|virtual)")
    name = re.compile(rf"linux-image-{family}((?:-(?:hwe|lts|edge|[0-9]+[.]).*)?)")
    images = ((name.fullmatch(key), package.version) for key, package in host.packages.items())
    series = [image.group(1) for image, own in images if image and re.match(rf"{re.escape(version)}[-.]", own)]
    return flavour + min(series, default="")


def choose_kernel_modules(device_ids: Iterable[str], branch: str, wanted: str) -> str:
    """Open or closed kernel modules for all of a host's cards, or DriverError where no answer is right."""
    families = sorted({architecture(device_id) for device_id in device_ids}, key=lambda family: family.name)
    for family in families:
        if family.last_branch and int(branch) > family.last_branch:
            raise DriverError(
                f"driver branch {branch} has no support for its {family.name} cards; "
                f"set nvidia_driver_branch to {family.last_branch}, the last one that has."
            )
        if int(branch) < family.first_branch:
            raise DriverError(
                f"driver branch {branch} is too old for its {family.name} cards; "
                f"set nvidia_driver_branch to {family.first_branch} or newer."
            )
    possible = [kind for kind in (OPEN, CLOSED) if all(kind in family.kernel_modules for family in families)]
    names = " and ".join(family.name for family in families)
    if not possible:
        raise DriverError(f"no kernel modules drive its {names} cards together; put them into different hosts.")
    if wanted not in (AUTO, *possible):
        raise DriverError(
            f"{wanted} kernel modules do not drive its {names} cards; "
            f"set nvidia_driver_kernel_modules to {possible[0]} or auto."
        )
    return possible[0] if wanted == AUTO else wanted


def make_plan(host: Host, wanted: Wanted) -> Plan:
    """What is to be done on ``host`` for ``wanted``; DriverError where that is impossible."""
    if not host.device_ids:
        raise DriverError("there is no NVIDIA card on its PCI bus; set nvidia_driver_source to none.")
    if wanted.version and wanted.branch != branch_of(wanted.version):
        raise DriverError(
            f"nvidia_driver_version {wanted.version} is not of branch {wanted.branch}; "
            f"set nvidia_driver_branch to {branch_of(wanted.version)}, or take a version of {wanted.branch}."
        )
    fabric_manager = host.nvswitches > 0 if wanted.fabric_manager == AUTO else wanted.fabric_manager.lower() == "true"
    if wanted.source == PREINSTALLED:
        _check_preinstalled(host, wanted)
        return Plan("", "", fabric_manager=fabric_manager)
    _check_source(host, wanted)
    kernel_modules = choose_kernel_modules(host.device_ids, wanted.branch, wanted.kernel_modules)
    build = _choose_build(host, wanted, kernel_modules)
    precompiled = wanted.source == UBUNTU and build == PRECOMPILED
    flavour = (wanted.kernel_flavour or kernel_flavour(host)) if precompiled else ""
    driver = wanted.packages or _packages(wanted, kernel_modules, flavour)
    headers = (
        [f"{'kernel-devel' if host.family == 'redhat' else 'linux-headers'}-{host.kernel}"] if build == DKMS else []
    )
    wishes = dict.fromkeys(driver, wanted)
    if fabric_manager:
        wishes[_fabric_manager_package(host, wanted)] = _exactly_as_installed(host, wanted, driver)
    outdated = tuple(name for name, wish in wishes.items() if _is_due(host, wish, name))
    stream = _module_stream(host, wanted, kernel_modules, build)
    due = (
        bool(outdated)
        or bool(stream and stream != host.module_stream)
        # rpm knows nothing of a build that failed.
        or (build == DKMS and not (host.headers and host.kernel in host.module_kernels))
    )
    repository = _repository(host)
    return Plan(
        kernel_modules=kernel_modules,
        build=build,
        names=tuple(wishes),
        install=(*headers, *(_specification(host, wish, name) for name, wish in wishes.items())),
        outdated=outdated,
        repository=repository,
        repository_key=REPOSITORY_KEYS.get(repository, OLDER_KEYS[host.family]),
        module_stream=stream,
        kernel_flavour=flavour,
        fabric_manager=fabric_manager,
        due=due,
        replaces=due and bool(host.module_loaded),
    )


def _check_preinstalled(host: Host, wanted: Wanted) -> None:
    found = host.library_installed or host.module_installed
    if not found or not host.module_kernels:
        raise DriverError(
            f"no NVIDIA driver is installed, or none for its kernel {host.kernel}; install one, "
            "or set nvidia_driver_source to ubuntu or repository."
        )
    if wanted.version and found != wanted.version:
        raise DriverError(
            f"driver {found} is installed, the inventory wants {wanted.version}; install that one, "
            "or change nvidia_driver_version."
        )
    choose_kernel_modules(host.device_ids, branch_of(found), AUTO)


def _check_source(host: Host, wanted: Wanted) -> None:
    if host.family not in ("debian", "redhat"):
        raise DriverError(
            f"{host.distribution} {host.distribution_version} is neither of Debian's nor of Red Hat's family; "
            "install the driver yourself and set nvidia_driver_source to preinstalled."
        )
    if wanted.source == UBUNTU and host.distribution != "ubuntu":
        raise DriverError(
            f"Ubuntu's driver packages are not for {host.distribution} {host.distribution_version}; "
            "set nvidia_driver_source to repository."
        )


def _choose_build(host: Host, wanted: Wanted, kernel_modules: str) -> str:
    build = wanted.build
    if build == AUTO:
        build = PRECOMPILED if wanted.source == UBUNTU else DKMS
    if (
        build == PRECOMPILED
        and wanted.source == REPOSITORY
        and not (_has_modularity(host) and kernel_modules == CLOSED)
    ):
        raise DriverError(
            f"NVIDIA's repository has no precompiled {kernel_modules} kernel modules for {host.distribution} "
            f"{host.distribution_version}; set nvidia_driver_build to dkms."
        )
    if build == DKMS and host.secure_boot and not host.dkms_key_enrolled:
        raise DriverError(
            "Secure Boot is on and would refuse kernel modules that DKMS signs with a key that is not enrolled; "
            "enrol DKMS's key at the console (mokutil --import /var/lib/dkms/mok.pub), take Ubuntu's signed modules "
            "(nvidia_driver_source: ubuntu), or switch Secure Boot off."
        )
    return build


def _has_modularity(host: Host) -> bool:
    return host.family == "redhat" and _major(host) in ("8", "9")


def _major(host: Host) -> str:
    return host.distribution_version.partition(".")[0]


def _packages(wanted: Wanted, kernel_modules: str, flavour: str) -> tuple[str, ...]:
    """The packages that bring a driver, its tools and its kernel modules."""
    if wanted.source == REPOSITORY:
        return ("nvidia-open" if kernel_modules == OPEN else "cuda-drivers",)
    suffix = "-open" if kernel_modules == OPEN else ""
    branch = f"{wanted.branch}-server"
    modules = f"linux-modules-nvidia-{branch}{suffix}-{flavour}" if flavour else f"nvidia-dkms-{branch}{suffix}"
    return (modules, f"nvidia-headless-no-dkms-{branch}{suffix}", f"nvidia-utils-{branch}")


def _fabric_manager_package(host: Host, wanted: Wanted) -> str:
    # NVIDIA's packages for Debian's family carried the branch in their name until 590, Ubuntu's own still do;
    # those for Red Hat's family had a hyphen more until 580.
    if wanted.source == UBUNTU or (host.family == "debian" and int(wanted.branch) < 590):
        return f"nvidia-fabricmanager-{wanted.branch}"
    return "nvidia-fabric-manager" if host.family == "redhat" and int(wanted.branch) < 580 else "nvidia-fabricmanager"


def _exactly_as_installed(host: Host, wanted: Wanted, driver: tuple[str, ...]) -> Wanted:
    """What is wanted of Fabric Manager: the version of a driver that stays, else what is wanted of the driver."""
    if any(_is_due(host, wanted, name) for name in driver):
        return wanted
    versions = [upstream_version(host.packages[name].version) for name in driver if not _follows_kernel(name)]
    return replace(wanted, version=versions[0]) if versions else wanted


def _repository(host: Host) -> str:
    """NVIDIA's folder of a distribution: debian12, ubuntu2404, rhel9."""
    if host.family == "redhat":
        return f"rhel{_major(host)}"
    return host.distribution + host.distribution_version.replace(".", "")


def _module_stream(host: Host, wanted: Wanted, kernel_modules: str, build: str) -> str:
    if wanted.source != REPOSITORY or not _has_modularity(host):
        return ""
    if kernel_modules == OPEN:
        return f"{wanted.branch}-open"
    return wanted.branch if build == PRECOMPILED else f"{wanted.branch}-dkms"


def _follows_kernel(name: str) -> bool:
    """Whether a package has the kernel's version instead of the driver's."""
    return name.startswith("linux-")


def _is_due(host: Host, wanted: Wanted, name: str) -> bool:
    package = host.packages.get(name)
    if package is None or not package.finished:
        return True
    if _follows_kernel(name):
        return False
    found = upstream_version(package.version)
    return found != wanted.version if wanted.version else branch_of(found) != wanted.branch


def _specification(host: Host, wanted: Wanted, name: str) -> str:
    """What the package manager is asked for: the name with NVIDIA's version, or with the branch alone.

    A bare name would be no task for a package manager that has another branch of it installed.
    """
    if _follows_kernel(name):
        return name
    version = wanted.version or f"{wanted.branch}."
    return f"{name}={version}*" if host.family == "debian" else f"{name}-{version}*"


def to_hold(host: Host, plan: Plan) -> list[str]:
    """Packages that are to be held and are not yet: the plan's, all of the driver's version, and the kernel with them.

    Precompiled modules are for one kernel: were it to move on alone, the next start would have no driver.
    """
    drivers = [name for name in plan.names if name in host.packages and not _follows_kernel(name)]
    versions = {upstream_version(host.packages[name].version) for name in drivers}
    flavours = {plan.kernel_flavour, plan.kernel_flavour.replace("generic", "virtual")} - {""}
    kernel = {f"linux-{part}{flavour}" for part in ("", "image-", "headers-") for flavour in flavours}
    return sorted(
        name
        for name, package in host.packages.items()
        if not package.held and (name in plan.names or name in kernel or upstream_version(package.version) in versions)
    )
