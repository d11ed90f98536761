# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""containerd's drop-in by version, and what is said of a configuration that does not use it."""

from __future__ import annotations

from typing import Any

import pytest
import tomllib
from ansible.errors import AnsibleFilterError

from ansible_collections.tenantry.gpu.plugins.filter.nvidia import (
    config_version,
    nvidia_driver_holds,
    nvidia_driver_plan,
    nvidia_runtime_drop_in,
    nvidia_runtime_problem,
    nvidia_slots,
)

OLD, NEW = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"

# As `containerd config dump` of 1.7.24 and 2.3.7 write it, shortened.
DUMP_1_7 = f"""
version = 2
[plugins."{OLD}"]
  sandbox_image = "registry.k8s.io/pause:3.10.2"
  enable_cdi = false
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  stream_idle_timeout = "4h0m0s"
  [plugins."{OLD}".cni]
    bin_dir = "/opt/cni/bin"
  [plugins."{OLD}".containerd]
    default_runtime_name = "runc"
    [plugins."{OLD}".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      privileged_without_host_devices = false
      container_annotations = []
      [plugins."{OLD}".containerd.runtimes.runc.options]
        SystemdCgroup = true
        CriuPath = ""
  [plugins."{OLD}".registry.mirrors."registry.k8s.io"]
    endpoint = ["http://192.0.2.2:5000"]
  [plugins."{OLD}".image_decryption]
"""
DUMP_2_3 = f"""
version = 4
[plugins.'{NEW}']
  enable_cdi = true
  [plugins.'{NEW}'.containerd]
    default_runtime_name = 'runc'
    [plugins.'{NEW}'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      base_runtime_spec = '/run/tenantry/cri-base.json'
      snapshotter = ''
      [plugins.'{NEW}'.containerd.runtimes.runc.options]
        SystemdCgroup = true
"""
NVIDIA = {
    "runtime_type": "io.containerd.runc.v2",
    "options": {"BinaryName": "/usr/bin/nvidia-container-runtime", "SystemdCgroup": True},
}


@pytest.mark.parametrize(
    ("containerd", "version"),
    [("1.7.28", 2), ("2.0.5", 3), ("2.1.4", 3), ("2.2.0", 3), ("2.3.7", 4), ("2.10.0", 4), ("3.0.0", 4)],
)
def test_the_configuration_has_the_version_of_its_containerd(containerd: str, version: int) -> None:
    assert config_version(containerd) == version


@pytest.mark.parametrize("containerd", ["2.1.4", "2.3.7"])
def test_a_new_containerd_is_told_what_is_new(containerd: str) -> None:
    drop_in = tomllib.loads(nvidia_runtime_drop_in(DUMP_2_3, containerd))
    runtime = {**NVIDIA, "base_runtime_spec": "/run/tenantry/cri-base.json"}
    assert drop_in == {
        "version": config_version(containerd),
        "plugins": {NEW: {"containerd": {"runtimes": {"nvidia": runtime}}}},
    }


def test_an_old_containerd_is_told_the_whole_section_again() -> None:
    drop_in = tomllib.loads(nvidia_runtime_drop_in(DUMP_1_7, "1.7.28", True))
    expected: dict[str, Any] = tomllib.loads(DUMP_1_7)["plugins"][OLD]
    expected["containerd"]["runtimes"]["nvidia"] = {**NVIDIA, "options": {**NVIDIA["options"], "CriuPath": ""}}
    expected["containerd"]["default_runtime_name"] = "nvidia"
    expected["enable_cdi"] = True
    assert drop_in == {"version": 2, "plugins": {OLD: expected}}


def test_a_host_without_any_setting_of_runc_gets_a_runtime() -> None:
    drop_in = tomllib.loads(nvidia_runtime_drop_in("version = 4", "2.3.7"))
    runtime = drop_in["plugins"][NEW]["containerd"]["runtimes"]["nvidia"]
    assert runtime == {**NVIDIA, "options": {**NVIDIA["options"], "SystemdCgroup": False}}


def test_what_is_no_configuration_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="this is no output of containerd config dump"):
        nvidia_runtime_drop_in("containerd: command not found", "2.3.7")


def dump(nvidia: str = "true", runc: str = "true", default: str = "runc", program: str = "nvidia") -> str:
    runtimes = f"[plugins.'{NEW}'.containerd.runtimes"
    return (
        f"version = 4\n[plugins.'{NEW}'.containerd]\ndefault_runtime_name = '{default}'\n"
        f"{runtimes}.runc.options]\nSystemdCgroup = {runc}\n"
        f"{runtimes}.nvidia.options]\nBinaryName = '/usr/bin/{program}-container-runtime'\nSystemdCgroup = {nvidia}\n"
    )


@pytest.mark.parametrize(
    ("text", "default", "problem"),
    [
        (dump(), False, ""),
        (dump(default="nvidia"), True, ""),
        ("version = 4", False, "does not read the drop-in; add imports = "),
        (dump(program="other"), False, "containerd does not know the nvidia runtime"),
        (dump(nvidia="false"), False, "SystemdCgroup is false for the nvidia runtime and true for runc"),
        (dump(default="nvidia"), False, "containerd's default runtime is nvidia; look for a file"),
        (dump(), True, "containerd's default runtime is runc; look for a file"),
    ],
)
def test_what_containerd_makes_of_it_is_judged(text: str, default: bool, problem: str) -> None:
    found = nvidia_runtime_problem(text, "2.3.7", default)
    assert problem in found and bool(found) is bool(problem)


FOUND: dict[str, Any] = {
    "distribution": "ubuntu",
    "distribution_version": "24.04",
    "family": "debian",
    "machine": "x86_64",
    "kernel": "6.8.0-87-generic",
    "headers": False,
    "device_ids": ["20b2"],
    "nvswitches": 0,
    "secure_boot": False,
    "dkms_key_enrolled": False,
    "nouveau_loaded": False,
    "module_loaded": "",
    "module_installed": "",
    "module_kernels": [],
    "library_installed": "",
    "module_stream": "",
    "failed_build": {"log": "", "error": ""},
    "packages": {"nvidia-utils-580-server": {"version": "580.95.05-0ubuntu1", "finished": True, "held": False}},
    "package_sources": [],
    "containerd_version": "",
    "cards": [],
}


def test_a_plan_says_what_the_tasks_need() -> None:
    plan = nvidia_driver_plan(FOUND, {"source": "ubuntu", "branch": 580, "fabric_manager": True, "packages": []})
    assert (plan["problem"], plan["due"], plan["fabric_manager"]) == ("", True, True)
    assert nvidia_driver_holds(FOUND, plan) == ["nvidia-utils-580-server"]


def test_a_problem_is_a_sentence_and_no_failure_of_the_filter() -> None:
    plan = nvidia_driver_plan({**FOUND, "device_ids": []}, {"source": "ubuntu", "branch": "580"})
    assert plan == {"problem": "there is no NVIDIA card on its PCI bus; set nvidia_driver_source to none."}


def test_slots_of_real_cards_by_node() -> None:
    def worker(name: str, tenant: str, backend: str, **variables: Any) -> dict[str, Any]:
        return {"inventory_hostname": name, "tenant_worker_tenant": tenant, "gpu_backend": backend, **variables}

    cards = [{"model": "NVIDIA H100 80GB HBM3", "count": 8}, {"model": "NVIDIA L4", "count": 1}]
    hosts = [
        worker("w0", "a", "nvidia", nvidia_cards=cards, tenant_worker_node_name="node-0"),
        worker("w1", "a", "nvidia"),
        worker("w2", "a", "none", nvidia_cards=cards),
        worker("w3", "b", "nvidia", nvidia_cards=cards),
    ]
    hostvars: dict[str, dict[str, Any]] = {host["inventory_hostname"]: host for host in hosts}
    del hostvars["w3"]["gpu_backend"]
    hostvars |= {"a": {}, "b": {"gpu_backend": "nvidia"}}
    assert nvidia_slots(("w0", "w1", "w2", "w3"), hostvars, "a") == {"node-0": 90, "w1": 0}
    assert nvidia_slots(("w0", "w1", "w2", "w3"), hostvars, "b", 4) == {"w3": 36}
