# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which driver a host gets, and which sentence it gets instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils._nvidia import (
    PCI_IDS,
    DriverError,
    Host,
    Package,
    Wanted,
    architecture,
    choose_kernel_modules,
    make_plan,
    to_hold,
    upstream_version,
)

P100, V100, T4, A100, H100, GH200, L4, B200, NEWER = (
    "15f8",
    "1db5",
    "1eb8",
    "20b2",
    "2330",
    "2342",
    "27b8",
    "2901",
    "3fff",
)

UBUNTU = Host("ubuntu", "24.04", "debian", "6.8.0-87-generic", (A100,))
DEBIAN = Host("debian", "12", "debian", "6.1.0-40-amd64", (A100,))
ROCKY_8 = Host("rocky", "8.10", "redhat", "4.18.0-553.el8.x86_64", (A100,))
ROCKY_9 = Host("rocky", "9.6", "redhat", "5.14.0-570.el9.x86_64", (A100,))
ROCKY_10 = Host("rocky", "10.0", "redhat", "6.12.0-55.el10.x86_64", (A100,))

FROM_UBUNTU = Wanted("ubuntu", "580")
FROM_NVIDIA = Wanted("repository", "580")


def installed(version: str, *names: str, held: bool = False) -> dict[str, Package]:
    return {name: Package(version, held=held) for name in names}


@pytest.mark.parametrize(
    ("device_id", "name"),
    [
        ("0fc6", "Kepler or older"),
        ("13f2", "Maxwell"),
        (P100, "Pascal"),
        ("1b38", "Pascal"),
        (V100, "Volta"),
        (T4, "Turing"),
        ("2182", "Turing"),
        (A100, "Ampere"),
        ("2236", "Ampere"),
        ("25b6", "Ampere"),
        (H100, "Hopper"),
        ("2335", "Hopper"),
        (GH200, "Grace Hopper"),
        (L4, "Ada"),
        ("26b9", "Ada"),
        (B200, "Blackwell"),
        ("2bb5", "Blackwell"),
        ("3182", "Blackwell"),
        (NEWER, "unknown"),
    ],
)
def test_the_pci_id_tells_the_architecture(device_id: str, name: str) -> None:
    assert architecture(device_id).name == name


def test_the_table_of_pci_ids_is_sorted_and_has_no_overlap() -> None:
    bounds = [number for first, last, family in PCI_IDS for number in (first, last)]
    assert bounds == sorted(bounds) and len(set(bounds)) == len(bounds)


@given(st.integers(0, 0xFFFF))
def test_every_pci_id_has_an_architecture_with_kernel_modules(number: int) -> None:
    assert architecture(f"{number:04x}").kernel_modules


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("580.95.05-0ubuntu0.24.04.2", "580.95.05"),
        ("580.95.05-1", "580.95.05"),
        ("3:580.95.05-1.el9", "580.95.05"),
        ("580.95.05", "580.95.05"),
        ("6.8.0-87.88+1", "6.8.0"),
    ],
)
def test_nvidias_version_is_read_from_a_packages(version: str, upstream: str) -> None:
    assert upstream_version(version) == upstream


@pytest.mark.parametrize(
    ("cards", "wanted", "chosen"),
    [
        ([A100], "auto", "open"),
        ([A100], "closed", "closed"),
        ([P100], "auto", "closed"),
        ([B200], "auto", "open"),
        ([P100, T4], "auto", "closed"),
        ([NEWER], "auto", "open"),
    ],
)
def test_kernel_modules_follow_the_cards(cards: list[str], wanted: str, chosen: str) -> None:
    assert choose_kernel_modules(cards, "580", wanted) == chosen


@pytest.mark.parametrize(
    ("cards", "branch", "wanted", "sentence"),
    [
        (
            [P100],
            "580",
            "open",
            "open kernel modules do not drive its Pascal cards; set nvidia_driver_kernel_modules to closed or auto.",
        ),
        (
            [B200],
            "580",
            "closed",
            "closed kernel modules do not drive its Blackwell cards; set nvidia_driver_kernel_modules to open or auto.",
        ),
        (
            [GH200],
            "580",
            "closed",
            "closed kernel modules do not drive its Grace Hopper cards; "
            "set nvidia_driver_kernel_modules to open or auto.",
        ),
        (
            [V100],
            "590",
            "auto",
            "driver branch 590 has no support for its Volta cards; "
            "set nvidia_driver_branch to 580, the last one that has.",
        ),
        (
            [B200],
            "550",
            "auto",
            "driver branch 550 is too old for its Blackwell cards; set nvidia_driver_branch to 570 or newer.",
        ),
        (
            [V100, B200],
            "580",
            "auto",
            "no kernel modules drive its Blackwell and Volta cards together; put them into different hosts.",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(cards: list[str], branch: str, wanted: str, sentence: str) -> None:
    with pytest.raises(DriverError) as refused:
        choose_kernel_modules(cards, branch, wanted)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("host", "wanted", "install", "stream"),
    [
        (
            UBUNTU,
            FROM_UBUNTU,
            (
                "linux-modules-nvidia-580-server-open-generic",
                "nvidia-headless-no-dkms-580-server-open=580.*",
                "nvidia-utils-580-server=580.*",
            ),
            "",
        ),
        (
            replace(UBUNTU, device_ids=(V100,), kernel="6.8.0-1017-aws"),
            replace(FROM_UBUNTU, version="580.95.05"),
            (
                "linux-modules-nvidia-580-server-aws",
                "nvidia-headless-no-dkms-580-server=580.95.05*",
                "nvidia-utils-580-server=580.95.05*",
            ),
            "",
        ),
        (
            UBUNTU,
            replace(FROM_UBUNTU, kernel_flavour="generic-hwe-24.04", fabric_manager="true"),
            (
                "linux-modules-nvidia-580-server-open-generic-hwe-24.04",
                "nvidia-headless-no-dkms-580-server-open=580.*",
                "nvidia-utils-580-server=580.*",
                "nvidia-fabricmanager-580=580.*",
            ),
            "",
        ),
        (
            UBUNTU,
            replace(FROM_UBUNTU, build="dkms"),
            (
                "linux-headers-6.8.0-87-generic",
                "nvidia-dkms-580-server-open=580.*",
                "nvidia-headless-no-dkms-580-server-open=580.*",
                "nvidia-utils-580-server=580.*",
            ),
            "",
        ),
        (DEBIAN, FROM_NVIDIA, ("linux-headers-6.1.0-40-amd64", "nvidia-open=580.*"), ""),
        (
            replace(DEBIAN, device_ids=(P100,)),
            replace(FROM_NVIDIA, version="580.95.05"),
            ("linux-headers-6.1.0-40-amd64", "cuda-drivers=580.95.05*"),
            "",
        ),
        (ROCKY_8, FROM_NVIDIA, ("kernel-devel-4.18.0-553.el8.x86_64", "nvidia-open-580.*"), "580-open"),
        (
            replace(ROCKY_9, device_ids=(P100,)),
            FROM_NVIDIA,
            ("kernel-devel-5.14.0-570.el9.x86_64", "cuda-drivers-580.*"),
            "580-dkms",
        ),
        (
            replace(ROCKY_9, device_ids=(P100,)),
            replace(FROM_NVIDIA, build="precompiled"),
            ("cuda-drivers-580.*",),
            "580",
        ),
        (
            replace(ROCKY_10, nvswitches=4),
            replace(FROM_NVIDIA, version="580.95.05"),
            ("kernel-devel-6.12.0-55.el10.x86_64", "nvidia-open-580.95.05*", "nvidia-fabricmanager-580.95.05*"),
            "",
        ),
    ],
)
def test_packages_follow_distribution_and_cards(
    host: Host, wanted: Wanted, install: tuple[str, ...], stream: str
) -> None:
    plan = make_plan(host, wanted)
    assert (plan.install, plan.module_stream, plan.due) == (install, stream, True)


@pytest.mark.parametrize(
    ("host", "wanted", "sentence"),
    [
        (replace(UBUNTU, device_ids=()), FROM_UBUNTU, "there is no NVIDIA card on its PCI bus"),
        (
            DEBIAN,
            FROM_UBUNTU,
            "Ubuntu's driver packages are not for debian 12; set nvidia_driver_source to repository.",
        ),
        (replace(DEBIAN, family=""), FROM_NVIDIA, "is neither of Debian's nor of Red Hat's family"),
        (
            DEBIAN,
            replace(FROM_NVIDIA, build="precompiled"),
            "repository has no precompiled open kernel modules for debian 12; set nvidia_driver_build to dkms.",
        ),
        (replace(DEBIAN, secure_boot=True), FROM_NVIDIA, "Secure Boot is on and would refuse kernel modules"),
        (
            UBUNTU,
            replace(FROM_UBUNTU, version="575.57.08"),
            "nvidia_driver_version 575.57.08 is not of branch 580; set nvidia_driver_branch to 575",
        ),
        (replace(UBUNTU, kernel="6.8.12"), FROM_UBUNTU, "the running kernel 6.8.12 is none of Ubuntu's"),
        (
            UBUNTU,
            Wanted("preinstalled", "580"),
            "no NVIDIA driver is installed, or none for its kernel 6.8.0-87-generic",
        ),
        (
            replace(UBUNTU, library_installed="575.57.08", module_kernels=("6.8.0-87-generic",)),
            Wanted("preinstalled", "580", version="580.95.05"),
            "driver 575.57.08 is installed, the inventory wants 580.95.05",
        ),
    ],
)
def test_a_host_that_does_not_suit_gets_a_sentence(host: Host, wanted: Wanted, sentence: str) -> None:
    with pytest.raises(DriverError) as refused:
        make_plan(host, wanted)
    assert sentence in str(refused.value)


def test_secure_boot_takes_signed_modules_and_an_enrolled_key() -> None:
    assert make_plan(replace(UBUNTU, secure_boot=True), FROM_UBUNTU).build == "precompiled"
    assert make_plan(replace(DEBIAN, secure_boot=True, dkms_key_enrolled=True), FROM_NVIDIA).build == "dkms"


def in_use(host: Host, name: str = "nvidia-open") -> Host:
    """A host on which DKMS has built 580.95.05 for the running kernel, and it is loaded."""
    return replace(
        host,
        headers=True,
        packages=installed("580.95.05-1", name),
        module_loaded="580.95.05",
        module_installed="580.95.05",
        module_kernels=(host.kernel,),
        library_installed="580.95.05",
    )


def test_what_is_there_is_not_due() -> None:
    host = in_use(DEBIAN)
    assert not make_plan(host, FROM_NVIDIA).due
    assert not make_plan(host, replace(FROM_NVIDIA, version="580.95.05")).due


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        (in_use(DEBIAN), replace(FROM_NVIDIA, version="580.105.08")),
        (in_use(DEBIAN), replace(FROM_NVIDIA, branch="590")),
        (in_use(DEBIAN), replace(FROM_NVIDIA, packages=("nvidia-driver-cuda", "nvidia-kernel-open-dkms"))),
        (replace(in_use(DEBIAN), nvswitches=2), FROM_NVIDIA),
        (replace(in_use(DEBIAN), headers=False), FROM_NVIDIA),
        (replace(in_use(ROCKY_10), module_kernels=("6.12.0-56.el10.x86_64",)), FROM_NVIDIA),
    ],
    ids=["version", "branch", "packages", "fabric manager", "kernel", "a build that failed"],
)
def test_a_driver_in_use_is_replaced_only_for_a_reason(host: Host, wanted: Wanted) -> None:
    plan = make_plan(host, wanted)
    assert plan.due and plan.replaces


def test_only_dkms_is_asked_for_the_running_kernels_module() -> None:
    names = ("nvidia-utils-580-server", "nvidia-headless-no-dkms-580-server-open")
    modules = "linux-modules-nvidia-580-server-open-generic"
    packages = {**installed("580.95.05-0ubuntu1", *names), **installed("6.8.0-90.91", modules)}
    # Precompiled modules come for a newer kernel than the one that runs: a start of the host is due, no package.
    assert not make_plan(replace(UBUNTU, headers=True, packages=packages), FROM_UBUNTU).due


@pytest.mark.parametrize(
    ("host", "wanted", "package"),
    [
        (in_use(DEBIAN), replace(FROM_NVIDIA, branch="590"), "nvidia-open=590.*"),
        (in_use(ROCKY_10), replace(FROM_NVIDIA, branch="590"), "nvidia-open-590.*"),
        (
            replace(in_use(ROCKY_10, "cuda-drivers"), device_ids=(T4,)),
            replace(FROM_NVIDIA, branch="575", kernel_modules="closed"),
            "cuda-drivers-575.*",
        ),
    ],
)
def test_another_branch_without_a_version_is_asked_for_by_its_number(host: Host, wanted: Wanted, package: str) -> None:
    plan = make_plan(host, wanted)
    assert plan.install[1:] == (package,)
    assert plan.outdated == plan.names


@pytest.mark.parametrize(
    ("distribution", "version", "family", "folder", "key"),
    [
        ("debian", "12", "debian", "debian12", "3bf863cc.pub"),
        ("debian", "13", "debian", "debian13", "8793F200.pub"),
        ("ubuntu", "24.04", "debian", "ubuntu2404", "3bf863cc.pub"),
        ("rocky", "9.6", "redhat", "rhel9", "D42D0685.pub"),
        ("rhel", "10.0", "redhat", "rhel10", "CDF6BA43.pub"),
    ],
)
def test_each_release_has_its_repository_and_its_key(
    distribution: str, version: str, family: str, folder: str, key: str
) -> None:
    plan = make_plan(Host(distribution, version, family, "6.1.0-40-amd64", (A100,)), FROM_NVIDIA)
    assert (plan.repository, plan.repository_key) == (folder, key)


@pytest.mark.parametrize(
    ("host", "wanted", "name"),
    [
        (UBUNTU, FROM_UBUNTU, "nvidia-fabricmanager-580"),
        (UBUNTU, replace(FROM_UBUNTU, branch="595"), "nvidia-fabricmanager-595"),
        (UBUNTU, FROM_NVIDIA, "nvidia-fabricmanager-580"),
        (UBUNTU, replace(FROM_NVIDIA, branch="595"), "nvidia-fabricmanager"),
        (DEBIAN, replace(FROM_NVIDIA, branch="590"), "nvidia-fabricmanager"),
        (ROCKY_9, replace(FROM_NVIDIA, branch="575"), "nvidia-fabric-manager"),
        (ROCKY_9, FROM_NVIDIA, "nvidia-fabricmanager"),
    ],
)
def test_fabric_managers_package_has_many_names(host: Host, wanted: Wanted, name: str) -> None:
    assert make_plan(host, replace(wanted, fabric_manager="true")).names[-1] == name


@pytest.mark.parametrize("manager", [{}, installed("580.105.08-1", "nvidia-fabricmanager-580")], ids=["none", "newer"])
def test_fabric_manager_is_of_the_version_of_a_driver_that_stays(manager: dict[str, Package]) -> None:
    host = in_use(replace(DEBIAN, nvswitches=2))
    plan = make_plan(replace(host, packages={**host.packages, **manager}), FROM_NVIDIA)
    assert plan.install[1:] == ("nvidia-open=580.*", "nvidia-fabricmanager-580=580.95.05*")
    assert plan.due and plan.outdated == ("nvidia-fabricmanager-580",)


@pytest.mark.parametrize(
    ("kernel", "images", "flavour"),
    [
        ("6.8.0-85-generic", {"generic": "6.8.0-85.85"}, "generic"),
        ("6.14.0-33-generic", {"generic-hwe-24.04": "6.14.0-33.33~24.04.1"}, "generic-hwe-24.04"),
        (
            "6.14.0-33-generic",
            {"generic": "6.8.0-85.85", "generic-hwe-24.04": "6.14.0-33.33~24.04.1"},
            "generic-hwe-24.04",
        ),
        ("6.8.0-85-generic", {"generic": "6.8.0-85.85", "generic-hwe-24.04": "6.14.0-33.33~24.04.1"}, "generic"),
        ("6.14.0-33-generic", {"generic-hwe-24.04": "6.14.0-35.35~24.04.1"}, "generic-hwe-24.04"),
        ("5.15.0-161-generic", {"generic": "5.15.0.161.160", "generic-hwe-22.04": "6.8.0-83.83~22.04.1"}, "generic"),
        ("6.14.0-33-generic", {"virtual-hwe-24.04": "6.14.0-33.33~24.04.1"}, "generic-hwe-24.04"),
        ("6.8.0-85-generic", {"6.8.0-85-generic": "6.8.0-85.85"}, "generic"),
        ("6.14.0-1015-aws", {"aws": "6.14.0-1015.15~24.04.1"}, "aws"),
        ("6.8.0-85-generic", {"generic-64k": "6.8.0-85.85"}, "generic"),
        ("6.14.0-33-generic", {}, "generic"),
    ],
)
def test_precompiled_modules_are_of_the_kernel_that_runs(kernel: str, images: dict[str, str], flavour: str) -> None:
    packages = {f"linux-image-{name}": Package(version) for name, version in images.items()}
    plan = make_plan(replace(UBUNTU, kernel=kernel, packages=packages), FROM_UBUNTU)
    assert plan.names[0] == f"linux-modules-nvidia-580-server-open-{flavour}"


def test_the_kernel_that_is_held_is_the_one_that_moves() -> None:
    packages = {
        **installed("6.14.0-33.33~24.04.1", "linux-image-virtual-hwe-24.04", "linux-headers-generic-hwe-24.04"),
        **installed("6.14.0-33.33~24.04.1", "linux-image-6.14.0-33-generic"),
        **installed("6.8.0-85.85", "linux-image-generic"),
    }
    host = replace(UBUNTU, kernel="6.14.0-33-generic", packages=packages)
    held = to_hold(host, make_plan(host, FROM_UBUNTU))
    assert held == ["linux-headers-generic-hwe-24.04", "linux-image-virtual-hwe-24.04"]


def test_an_installation_that_did_not_end_is_due_and_replaces_nothing() -> None:
    host = replace(DEBIAN, headers=True, packages={"nvidia-open": Package("580.95.05-1", finished=False)})
    plan = make_plan(host, FROM_NVIDIA)
    assert plan.due and not plan.replaces


def test_the_driver_is_held_as_a_whole_and_the_kernel_with_it() -> None:
    packages = {
        **installed("580.95.05-0ubuntu1", "nvidia-utils-580-server", "nvidia-headless-no-dkms-580-server-open"),
        **installed("580.95.05-0ubuntu1", "libnvidia-compute-580-server"),
        **installed("580.95.05-0ubuntu1", "libnvidia-cfg1-580-server", held=True),
        **installed("6.8.0-87.88", "linux-modules-nvidia-580-server-open-generic", "linux-image-generic"),
        **installed("6.8.0-87.88", "linux-image-6.8.0-87-generic", "linux-base"),
        **installed("1.20.2-1", "nvidia-container-toolkit"),
    }
    host = replace(UBUNTU, packages=packages)
    assert to_hold(host, make_plan(host, FROM_UBUNTU)) == [
        "libnvidia-compute-580-server",
        "linux-image-generic",
        "linux-modules-nvidia-580-server-open-generic",
        "nvidia-headless-no-dkms-580-server-open",
        "nvidia-utils-580-server",
    ]
