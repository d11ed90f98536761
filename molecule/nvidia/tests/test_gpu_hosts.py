# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Hosts with stand-in cards after the driver's and the toolkit's role: first as they are, then through an upgrade."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import testinfra
import tomllib
from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[3]
STATE = ROOT / ".state/nvidia"
OLD, NEW, NEXT = "580.82.07", "580.95.05", "590.44.01"
PLUGINS = {2: "io.containerd.grpc.v1.cri", 4: "io.containerd.cri.v1.runtime"}
HOSTS = ("gpu-0", "gpu-1", "gpu-2")
LOCATION = "/var/run/nvidia-container-devices"


def host(name: str) -> Host:
    return testinfra.get_host(f"podman://nvidia-{name}")


@pytest.fixture(params=HOSTS, scope="module")
def each(request: pytest.FixtureRequest) -> Host:
    return host(str(request.param))


def stage(*options: str) -> tuple[int, str]:
    """Run stage 2's GPU plays as a user does. Returns the status and what was printed."""
    return play("playbooks/stages/2_nodes.yml", "--tags", "gpu_hosts", *options)


def play(playbook: str, *options: str) -> tuple[int, str]:
    command = [str(Path(sys.executable).with_name("ansible-playbook")), str(ROOT / playbook)]
    for inventory in ("hosts", "nvidia"):
        command += ["-i", str(ROOT / "molecule" / inventory / "inventory")]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    environment["ANSIBLE_FORCE_COLOR"] = "0"
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=180,
    )
    return done.returncode, done.stdout


def recap(output: str) -> dict[str, dict[str, int]]:
    """The last table: for each host its counts."""
    lines = re.findall(r"^(\S+)\s+: (ok=.*)$", output, re.MULTILINE)
    return {name: {key: int(number) for key, number in re.findall(r"(\w+)=(\d+)", counts)} for name, counts in lines}


def config(on: Host) -> tuple[int, dict[str, Any]]:
    """The version of containerd's merged configuration, and its CRI plugin's section."""
    dump = tomllib.loads(on.check_output("containerd config dump 2>/dev/null"))
    return dump["version"], dump["plugins"][PLUGINS[dump["version"]]]


def mig(on: Host) -> set[str]:
    """The MIG modes that a host's cards have now."""
    query = "nvidia-smi --query-gpu=uuid,name,mig.mode.current,mig.mode.pending --format=csv,noheader"
    return {line.split(", ")[2] for line in on.check_output(query).splitlines()}


# -- as the roles leave the hosts ----------------------------------------------------------------------------------


def test_the_driver_is_loaded_and_serves_every_card(each: Host) -> None:
    assert each.file("/sys/module/nvidia/version").content_string.strip() == OLD
    assert each.check_output("modinfo -F version nvidia") == OLD
    assert "GPU 0: " in each.check_output("nvidia-smi -L")


def test_the_driver_is_held_and_no_other_version_is_chosen(each: Host) -> None:
    installed = each.check_output("dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n' '*nvidia*'")
    ours = [line.split() for line in installed.splitlines() if OLD in line]
    assert ours and {state for name, version, state in ours} == {"hi"}
    for name in ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container1"):
        assert f"{name} 1.20.2-1 hi" in installed


def test_a_newer_version_in_the_repository_is_not_taken() -> None:
    for name in ("nvidia-open", "libcuda1", "firmware-nvidia-gsp"):
        policy = host("gpu-1").check_output(f"apt-cache policy {name}")
        assert f"Candidate: {OLD}-1" in policy and f"{NEW}-1" in policy and f"{NEXT}-1" in policy
    assert {"libcuda1", "firmware-nvidia-gsp"} <= set(host("gpu-1").check_output("apt-mark showhold").split())


def test_another_list_of_the_same_repository_is_gone_and_a_wrong_key_replaced() -> None:
    assert host("gpu-1").run("grep -rl /srv/repository/cuda /etc/apt/sources.list.d").stdout.split() == [
        "/etc/apt/sources.list.d/tenantry-nvidia-driver.list"
    ]
    assert host("gpu-1").run("cmp /srv/repository/key.asc /usr/share/keyrings/tenantry-nvidia-driver.asc").rc == 0


def test_unattended_upgrades_leave_the_driver_alone(each: Host) -> None:
    dump = each.check_output("apt-config dump Unattended-Upgrade::Package-Blacklist")
    patterns = re.findall(r'Blacklist:: "(.*)";', dump)
    for name in ("nvidia-open", "libnvidia-compute-580-server", "libcuda1", "libegl-nvidia0", "cuda-drivers"):
        assert any(re.match(pattern, name) for pattern in patterns)
    assert not any(re.match(pattern, "libnvme1") for pattern in patterns)


def test_precompiled_modules_hold_their_kernel() -> None:
    held = host("gpu-0").check_output("apt-mark showhold").split()
    assert "linux-modules-nvidia-580-server-open-generic" in held


def test_nouveau_stays_away(each: Host) -> None:
    assert "blacklist nouveau" in each.file("/etc/modprobe.d/tenantry-nouveau.conf").content_string


def test_services_run(each: Host) -> None:
    assert each.service("nvidia-persistenced").is_running


def test_fabric_manager_runs_where_there_is_an_nvswitch_and_is_of_the_drivers_version() -> None:
    assert host("gpu-0").service("nvidia-fabricmanager").is_running
    assert host("gpu-0").package("nvidia-fabricmanager-580").version.startswith(f"{OLD}-")
    assert not host("gpu-1").package("nvidia-fabricmanager-580").is_installed


def test_old_lists_are_gone(each: Host) -> None:
    assert each.run("grep -rl nvidia-docker /etc/apt/sources.list.d").stdout == ""


@pytest.mark.parametrize(
    ("name", "version", "cgroup", "default"),
    [("gpu-0", 4, False, "runc"), ("gpu-1", 2, True, "nvidia"), ("gpu-2", 4, False, "runc")],
)
def test_containerd_has_the_nvidia_runtime_beside_runc(name: str, version: int, cgroup: bool, default: str) -> None:
    found, cri = config(host(name))
    runtimes = cri["containerd"]["runtimes"]
    assert (found, cri["containerd"]["default_runtime_name"]) == (version, default)
    assert runtimes["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert runtimes["nvidia"]["runtime_type"] == "io.containerd.runc.v2"
    assert [runtimes[runtime]["options"]["SystemdCgroup"] for runtime in ("runc", "nvidia")] == [cgroup, cgroup]
    assert cri["enable_cdi"] is True


def test_a_drop_in_of_containerd_1_7_loses_nothing_of_the_others() -> None:
    cri = config(host("gpu-1"))[1]
    assert cri["restrict_oom_score_adj"] is True
    assert cri["sandbox_image"] == "registry.k8s.io/pause:3.10.2"


def test_the_running_containerd_answers(each: Host) -> None:
    assert each.service("containerd").is_running
    assert each.run("ctr version").rc == 0


def test_every_card_has_a_cdi_name() -> None:
    names = host("gpu-0").check_output("nvidia-ctk cdi list 2>/dev/null").split()
    uuids = [f"nvidia.com/gpu=GPU-00000000-0000-0000-0000-{number:012x}" for number in range(2)]
    assert sorted(names) == sorted(["nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all", *uuids])


def test_cdi_names_are_made_anew_at_every_start_and_change(each: Host) -> None:
    assert each.service("nvidia-cdi-refresh.path").is_running
    assert each.service("nvidia-cdi-refresh.path").is_enabled
    assert each.service("nvidia-cdi-refresh.service").is_enabled


def test_the_toolkit_reads_its_configuration_as_meant(each: Host) -> None:
    merged = tomllib.loads(each.check_output("nvidia-ctk config 2>/dev/null"))
    assert merged["accept-nvidia-visible-devices-envvar-when-unprivileged"] is False
    assert merged["accept-nvidia-visible-devices-as-volume-mounts"] is True


# -- what a container gets: the real nvidia-container-runtime, before a runc that only keeps what it was given -------

CARD = "GPU-00000000-0000-0000-0000-000000000001"
REQUESTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no request": ({}, []),
    "an image that says all": ({"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, []),
    "a pod that says a UUID": ({"env": [f"NVIDIA_VISIBLE_DEVICES={CARD}"]}, []),
    "the device plugin's mount": (
        {
            "env": [f"NVIDIA_VISIBLE_DEVICES={LOCATION}"],
            "mounts": [{"source": "/dev/null", "destination": f"{LOCATION}/{CARD}", "type": "bind"}],
        },
        ["/dev/nvidia1"],
    ),
    "HAMi's own pods": (
        {"env": ["NVIDIA_VISIBLE_DEVICES=all"], "bounding": ["CAP_SYS_ADMIN"]},
        ["/dev/nvidia0", "/dev/nvidia1"],
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_container_gets_only_what_the_device_plugin_gave_it(name: str) -> None:
    wanted, cards = REQUESTS[name]
    on, bundle = host("gpu-0"), "/run/test-bundle"
    spec = {
        "ociVersion": "1.2.0",
        "process": {
            "cwd": "/",
            "args": ["sh"],
            "user": {"uid": 0, "gid": 0},
            "env": wanted.get("env", []),
            "capabilities": {"bounding": wanted.get("bounding", [])},
        },
        "root": {"path": "rootfs"},
        "mounts": wanted.get("mounts", []),
        "linux": {},
    }
    script = (
        f"rm -rf {bundle} && mkdir -p {bundle}/rootfs {bundle}/bin && cat >{bundle}/config.json && "
        f"printf '#!/bin/sh\\n' >{bundle}/bin/runc && chmod +x {bundle}/bin/runc && "
        f"PATH={bundle}/bin:$PATH nvidia-container-runtime create --bundle {bundle} test && cat {bundle}/config.json"
    )
    done = subprocess.run(
        ["podman", "exec", "--interactive", "nvidia-gpu-0", "sh", "-c", script],
        input=json.dumps(spec),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    devices = [device["path"] for device in json.loads(done.stdout)["linux"].get("devices", [])]
    assert [path for path in devices if re.fullmatch(r"/dev/nvidia\d+", path)] == cards
    assert ("/dev/nvidiactl" in devices) is bool(cards)
    assert on.run(f"rm -r {bundle}").rc == 0


# -- what does not suit ----------------------------------------------------------------------------------------------


@pytest.fixture
def changed_hosts() -> Iterator[None]:
    """A Blackwell card, a Volta card, and Secure Boot without DKMS's key."""
    put = "echo {} >/srv/pci/0000:00:00.0/device"
    mokutil = "#!/bin/sh\\necho SecureBoot enabled\\n"
    host("gpu-0").check_output(put.format("0x2901"))
    host("gpu-1").check_output(put.format("0x1db5"))
    host("gpu-2").check_output(f"printf '{mokutil}' >/usr/local/bin/mokutil && chmod +x /usr/local/bin/mokutil")
    yield
    host("gpu-0").check_output(put.format("0x20b2"))
    host("gpu-1").check_output(put.format("0x2330"))
    host("gpu-2").check_output("rm /usr/local/bin/mokutil")


@pytest.mark.usefixtures("changed_hosts")
def test_each_host_is_told_why_its_driver_is_impossible() -> None:
    wanted = {"nvidia_driver_kernel_modules": "closed", "nvidia_driver_version": "", "nvidia_driver_branch": "590"}
    status, output = stage("-e", json.dumps(wanted))
    last = "\n".join(output.splitlines()[-4:])
    assert status != 0
    assert "gpu-0: closed kernel modules do not drive its Ampere and Blackwell cards; set nvidia_driver_kernel" in last
    assert "gpu-1: driver branch 590 has no support for its Volta cards; set nvidia_driver_branch to 580" in last
    assert "gpu-2: Secure Boot is on and would refuse kernel modules that DKMS signs" in last
    assert {counts["changed"] for counts in recap(output).values()} == {0}


# -- an upgrade, on which one host fails -------------------------------------------------------------------------------


def test_an_upgrade_names_the_host_that_failed_and_finishes_the_others() -> None:
    repository = STATE / "repository"
    publish = [sys.executable, str(ROOT / "molecule/nvidia/packages.py"), f"--out={repository}", "--publish"]
    subprocess.run([*publish, f"--cache={Path.home() / '.cache/tenantry-gpu'}"], check=True)
    subprocess.run(["podman", "cp", f"{repository}/archive", "nvidia-gpu-0:/srv/repository"], check=True)
    host("gpu-2").check_output("touch /etc/compiler-is-broken")

    status, output = stage("-e", f"nvidia_driver_version={NEW}")
    last = output.splitlines()[-1]
    assert status != 0
    assert last.startswith("Failed: gpu-2 at ")
    assert "gpu-2: the driver was not built for kernel " in last
    assert "error: implicit declaration of function 'vm_flags_set'" in last
    assert f"see /var/lib/dkms/nvidia/{NEW}/build/make.log there, then run this again." in last
    assert {name for name, counts in recap(output).items() if counts["failed"]} == {"gpu-2"}
    for name in ("gpu-0", "gpu-1"):
        assert host(name).check_output("modinfo -F version nvidia") == NEW
        assert host(name).file("/sys/module/nvidia/version").content_string.strip() == OLD
        reason = f"{name} must be started again. The NVIDIA driver {NEW} is installed and {OLD} is loaded."
        assert reason in " ".join(output.split())


def test_the_next_run_goes_on_where_the_build_failed() -> None:
    host("gpu-2").check_output("rm /etc/compiler-is-broken")
    for name in ("gpu-0", "gpu-1"):
        host(name).check_output("reboot")
    status, output = stage("-e", f"nvidia_driver_version={NEW}", "-e", "nvidia_driver_mig=enabled")
    assert status == 0, output
    assert host("gpu-2").check_output("modinfo -F version nvidia") == NEW
    assert recap(output)["gpu-2"]["changed"] > 0
    assert host("gpu-0").package("nvidia-fabricmanager-580").version.startswith(f"{NEW}-")
    assert mig(host("gpu-0")) == {"Disabled"}
    assert "gpu-0 must be started again. MIG is enabled after the next reset" in " ".join(output.split())


def test_a_reset_that_is_due_for_mig_is_not_forgotten_by_the_next_run() -> None:
    # gpu-1 was started again meanwhile.
    host("gpu-1").check_output("reboot")
    options = ("-e", f"nvidia_driver_version={NEW}", "-e", "nvidia_driver_mig=enabled", "--limit", "gpu-0,gpu-1")
    status, output = stage(*options)
    assert status == 0, output
    said = " ".join(output.split())
    assert "gpu-0 must be started again. MIG is enabled after the next reset of the cards." in said
    assert "gpu-1 must be started again" not in said
    host("gpu-0").check_output("reboot")
    assert mig(host("gpu-0")) == {"Enabled"}


def test_when_all_have_started_again_nothing_changes() -> None:
    host("gpu-2").check_output("reboot")
    status, output = stage("-e", f"nvidia_driver_version={NEW}")
    assert status == 0, output
    assert {name: counts["changed"] for name, counts in recap(output).items()} == dict.fromkeys(HOSTS, 0)
    for name in HOSTS:
        installed = host(name).check_output("dpkg-query -W -f '${Version} ${db:Status-Abbrev}\n' '*nvidia*'")
        assert {line.split()[1] for line in installed.splitlines() if NEW in line} == {"hi"}
    # Only gpu-2 says what MIG shall be.
    assert [mig(host(name)) for name in HOSTS] == [{"Enabled"}, {"Enabled"}, {"Disabled"}]


def test_a_build_that_failed_is_tried_again_where_every_package_is_there() -> None:
    on = host("gpu-2")
    options = ("-e", f"nvidia_driver_version={NEW}", "--limit", "gpu-2")
    on.check_output("rm -r /lib/modules/$(uname -r)/updates/dkms && depmod && touch /etc/compiler-is-broken")
    status, output = stage(*options)
    assert status != 0
    assert "gpu-2: the driver was not built for kernel " in output.splitlines()[-1]
    on.check_output("rm /etc/compiler-is-broken")
    status, output = stage(*options)
    assert status == 0, output
    assert on.check_output("modinfo -F version nvidia") == NEW


def test_an_older_toolkit_that_is_preinstalled_has_cdi_names_by_our_own_units() -> None:
    on, old = host("gpu-2"), "1.17.8-1"
    names = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools")
    packages = " ".join(f"{name}={old}" for name in (*names, "libnvidia-container1"))
    on.check_output(f"apt-get -q install --yes --allow-downgrades --allow-change-held-packages {packages}")
    on.check_output("rm -r /run/cdi")
    wanted = {"nvidia_container_toolkit_source": "preinstalled", "nvidia_driver_version": NEW}
    status, output = stage("-e", json.dumps(wanted), "--limit", "gpu-2")
    assert status == 0, output
    assert on.service("tenantry-cdi-refresh.path").is_running
    assert "nvidia.com/gpu=0" in on.check_output("nvidia-ctk cdi list 2>/dev/null")


def test_another_branch_without_a_version_comes_and_is_in_use_after_a_start() -> None:
    on = host("gpu-1")
    options = ("-e", json.dumps({"nvidia_driver_branch": "590", "nvidia_driver_version": ""}), "--limit", "gpu-1")
    on.check_output("systemctl disable --now nvidia-persistenced")
    status, output = stage(*options)
    assert status == 0, output
    assert f"The NVIDIA driver {NEXT} is installed and {NEW} is loaded." in " ".join(output.split())
    assert on.check_output("modinfo -F version nvidia") == NEXT
    assert not on.service("nvidia-persistenced").is_running
    on.check_output("reboot && rm -r /run/cdi")
    status, output = play("molecule/nvidia/restarted.yml", *options)
    assert status == 0, output
    assert on.service("nvidia-persistenced").is_running
    assert "nvidia.com/gpu=0" in on.check_output("nvidia-ctk cdi list 2>/dev/null")
    status, output = stage(*options)
    assert status == 0, output
    assert recap(output)["gpu-1"]["changed"] == 0
