# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""nvidia_host_info on hosts that are folders, with programs that answer what real ones answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.tenantry.gpu.plugins.modules import nvidia_host_info as module

KERNEL = "6.8.0-87-generic"
DPKG = (
    "adduser\t3.137\tii",
    "nvidia-utils-580-server\t580.95.05-0ubuntu1\thi",
    "libnvidia-compute-580-server\t580.95.05-0ubuntu1\tii",
    "nvidia-dkms-580-server-open\t580.95.05-0ubuntu1\tiF",
    "nvidia-old\t470.1\trc",
    "libcuda1\t580.95.05-1\tii",
    "libcudart12\t12.4.127\tii",
    "linux-image-generic\t6.8.0-87.88\tii",
)
RPM = "bash\t5.1-1.el9\nnvidia-open\t580.95.05-1.el9\nkmod-nvidia-open-dkms\t580.95.05-1.el9\n"
LOCKS = "nvidia-open-3:580.95.05-1.el9.*\n"
ANSWERS = {
    ("modinfo", "nvidia"): (0, "580.95.05\n"),
    ("containerd", "--version"): (0, "containerd github.com/containerd/containerd/v2 v2.3.7 \n"),
    ("dpkg-query", "--show"): (0, "".join(f"{line} \n" for line in DPKG)),
    ("rpm", "--query"): (0, RPM),
    ("dnf", "--quiet"): (0, LOCKS),
    ("nvidia-smi", "--query-gpu=uuid,name,mig.mode.current,mig.mode.pending"): (
        0,
        "GPU-1, NVIDIA H100 80GB HBM3, Disabled, Enabled\nGPU-2, NVIDIA L4, [N/A], [N/A]\n",
    ),
}


def run(argv: list[str]) -> tuple[int, str]:
    return ANSWERS.get((argv[0], argv[-1] if argv[0] == "modinfo" else argv[1]), (127, ""))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def device(number: int, vendor: str, identity: str, kind: str) -> dict[str, str]:
    folder = f"sys/bus/pci/devices/0000:0{number}:00.0"
    return {f"{folder}/vendor": f"{vendor}\n", f"{folder}/device": f"{identity}\n", f"{folder}/class": f"{kind}\n"}


def test_a_host_is_read_at_once(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            **device(1, "0x10de", "0x2330", "0x030200"),
            **device(2, "0x10de", "0x2330", "0x030200"),
            **device(3, "0x10de", "0x22a3", "0x068000"),
            **device(4, "0x10de", "0x22bc", "0x040300"),  # a card's sound
            **device(5, "0x8086", "0x1234", "0x030000"),
            "etc/os-release": 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n',
            "sys/module/nvidia/version": "580.82.07\n",
            "etc/apt/sources.list.d/nvidia-docker.list": "deb https://nvidia.github.io/nvidia-docker/ubuntu22.04 /",
            "etc/apt/sources.list.d/ubuntu.sources": "URIs: http://archive.ubuntu.com/ubuntu",
            f"lib/modules/{KERNEL}/build/Makefile": "",
            f"lib/modules/{KERNEL}/modules.dep": "updates/dkms/nvidia-uvm.ko.zst: updates/dkms/nvidia.ko.zst\n",
            "lib/modules/6.8.0-90-generic/modules.dep": "kernel/nvidia-580srv-open/nvidia.ko:\n",
            "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05": "",
        },
    )
    (root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.95.05")
    found = module.look(root, "x86_64", KERNEL, run)
    assert found == {
        "distribution": "ubuntu",
        "distribution_version": "24.04",
        "family": "debian",
        "machine": "x86_64",
        "device_ids": ["2330", "2330"],
        "nvswitches": 1,
        "secure_boot": False,
        "dkms_key_enrolled": False,
        "kernel": KERNEL,
        "headers": True,
        "nouveau_loaded": False,
        "module_loaded": "580.82.07",
        "module_installed": "580.95.05",
        "module_kernels": ["6.8.0-90-generic"],
        "library_installed": "580.95.05",
        "module_stream": "",
        "failed_build": {"log": "", "error": ""},
        "packages": {
            "nvidia-utils-580-server": {"version": "580.95.05-0ubuntu1", "finished": True, "held": True},
            "libnvidia-compute-580-server": {"version": "580.95.05-0ubuntu1", "finished": True, "held": False},
            "nvidia-dkms-580-server-open": {"version": "580.95.05-0ubuntu1", "finished": False, "held": False},
            "libcuda1": {"version": "580.95.05-1", "finished": True, "held": False},
            "linux-image-generic": {"version": "6.8.0-87.88", "finished": True, "held": False},
        },
        "package_sources": ["/etc/apt/sources.list.d/nvidia-docker.list"],
        "containerd_version": "2.3.7",
        "cards": [
            {"uuid": "GPU-1", "name": "NVIDIA H100 80GB HBM3", "mig_current": "Disabled", "mig_pending": "Enabled"},
            {"uuid": "GPU-2", "name": "NVIDIA L4", "mig_current": "[N/A]", "mig_pending": "[N/A]"},
        ],
    }


def test_a_bare_host_has_nothing_and_fails_nothing(tmp_path: Path) -> None:
    found = module.look(tmp_path, "x86_64", KERNEL, lambda argv: (127, ""))
    assert (found["family"], found["device_ids"], found["packages"], found["cards"]) == ("", [], {}, [])
    assert (found["module_loaded"], found["module_installed"], found["containerd_version"]) == ("", "", "")


@pytest.mark.parametrize("name", ["nvidia-current", "nvidia-current-open"])
def test_debians_own_driver_is_found_by_the_name_of_its_file(tmp_path: Path, name: str) -> None:
    write(
        tmp_path,
        {
            f"lib/modules/{KERNEL}/modules.dep": f"updates/dkms/{name}.ko.xz: kernel/drivers/char/ipmi.ko.xz\n",
            "lib/modules/6.8.0-90-generic/modules.dep": f"updates/dkms/{name}-uvm.ko.xz: updates/dkms/{name}.ko.xz\n",
        },
    )

    def modinfo(argv: list[str]) -> tuple[int, str]:
        return (0, "550.163.01\n") if argv[-1] == name else (1, "")

    found = module.kernel_module(tmp_path, KERNEL, modinfo)
    assert (found["module_installed"], found["module_kernels"]) == ("550.163.01", [KERNEL])


def test_red_hats_packages_streams_and_locks(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "etc/os-release": 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\n',
            "etc/dnf/modules.d/nvidia-driver.module": "name=nvidia-driver\nstream=580-open\nstate=enabled\n",
        },
    )
    found = module.look(root, "x86_64", KERNEL, run)
    assert (found["family"], found["module_stream"]) == ("redhat", "580-open")
    assert found["packages"] == {
        "nvidia-open": {"version": "580.95.05-1.el9", "finished": True, "held": True},
        "kmod-nvidia-open-dkms": {"version": "580.95.05-1.el9", "finished": True, "held": False},
    }


@pytest.mark.parametrize("state", ["", "state=disabled"])
def test_a_stream_that_is_not_enabled_does_not_count(tmp_path: Path, state: str) -> None:
    write(tmp_path, {"etc/dnf/modules.d/nvidia-driver.module": f"stream=580-open\n{state}\n"})
    assert module.module_stream(tmp_path) == ""


@pytest.mark.parametrize(("value", "on"), [(b"\x06\x00\x00\x00\x01", True), (b"\x06\x00\x00\x00\x00", False)])
def test_secure_boot_by_the_firmwares_variable(tmp_path: Path, value: bytes, on: bool) -> None:
    variable = tmp_path / module.SECURE_BOOT
    variable.parent.mkdir(parents=True)
    variable.write_bytes(value)
    assert module.secure_boot(tmp_path, run)["secure_boot"] is on


@pytest.mark.parametrize(("answer", "enrolled"), [("mok.pub is already enrolled", True), ("is not enrolled", False)])
def test_dkmss_key_is_tested_where_secure_boot_is_on(tmp_path: Path, answer: str, enrolled: bool) -> None:
    write(tmp_path, {"var/lib/dkms/mok.pub": "key"})

    def mokutil(argv: list[str]) -> tuple[int, str]:
        return 0, "SecureBoot enabled\n" if argv[1] == "--sb-state" else answer

    assert module.secure_boot(tmp_path, mokutil) == {"secure_boot": True, "dkms_key_enrolled": enrolled}


def test_a_failed_build_is_its_newest_log_with_an_error(tmp_path: Path) -> None:
    log = "var/lib/dkms/nvidia/580.95.05/build/make.log"
    write(tmp_path, {log: "CC nv.o\nnv.c:42:10: error: no such thing\nmake: *** [nv.o] Error 1\nleft\n"})
    assert module.failed_build(tmp_path) == {"log": f"/{log}", "error": "make: *** [nv.o] Error 1"}
