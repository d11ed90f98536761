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
                "nvidia-headless-no-dkms-580-server-open",
                "nvidia-utils-580-server",
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
                "nvidia-headless-no-dkms-580-server-open",
                "nvidia-utils-580-server",
                "nvidia-fabricmanager-580",
            ),
            "",
        ),
        (
            UBUNTU,
            replace(FROM_UBUNTU, build="dkms"),
            (
                "linux-headers-6.8.0-87-generic",
                "nvidia-dkms-580-server-open",
                "nvidia-headless-no-dkms-580-server-open",
                "nvidia-utils-580-server",
            ),
            "",
        ),
        (DEBIAN, FROM_NVIDIA, ("linux-headers-6.1.0-40-amd64", "nvidia-open"), ""),
        (
            replace(DEBIAN, device_ids=(P100,)),
            replace(FROM_NVIDIA, version="580.95.05"),
            ("linux-headers-6.1.0-40-amd64", "cuda-drivers=580.95.05*"),
            "",
        ),
        (ROCKY_8, FROM_NVIDIA, ("kernel-devel-4.18.0-553.el8.x86_64", "nvidia-open"), "580-open"),
        (
            replace(ROCKY_9, device_ids=(P100,)),
            FROM_NVIDIA,
            ("kernel-devel-5.14.0-570.el9.x86_64", "cuda-drivers"),
            "580-dkms",
        ),
        (
            replace(ROCKY_9, device_ids=(P100,)),
            replace(FROM_NVIDIA, build="precompiled"),
            ("cuda-drivers",),
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


def test_what_is_there_is_not_due() -> None:
    packages = installed("580.95.05-1", "nvidia-open")
    host = replace(DEBIAN, headers=True, packages=packages, module_loaded="580.95.05")
    assert not make_plan(host, FROM_NVIDIA).due
    assert not make_plan(host, replace(FROM_NVIDIA, version="580.95.05")).due


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        (DEBIAN, replace(FROM_NVIDIA, version="580.105.08")),
        (DEBIAN, replace(FROM_NVIDIA, branch="590")),
        (DEBIAN, replace(FROM_NVIDIA, packages=("nvidia-driver-cuda", "nvidia-kernel-open-dkms"))),
        (replace(DEBIAN, nvswitches=2), FROM_NVIDIA),
        (replace(DEBIAN, headers=False), FROM_NVIDIA),
    ],
    ids=["version", "branch", "packages", "fabric manager", "kernel"],
)
def test_a_driver_in_use_is_replaced_only_for_a_reason(host: Host, wanted: Wanted) -> None:
    packages = installed("580.95.05-1", "nvidia-open")
    host = replace(host, packages=packages, module_loaded="580.95.05")
    plan = make_plan(host, wanted)
    assert plan.due and plan.replaces


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
