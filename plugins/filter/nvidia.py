# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles nvidia_driver and nvidia_container_toolkit decide, from what nvidia_host_info has seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

import tomllib
from ansible.errors import AnsibleFilterError

from ansible_collections.tenantry.gpu.plugins.module_utils._nvidia import (
    DriverError,
    Host,
    Package,
    Plan,
    Wanted,
    make_plan,
    to_hold,
)

RUNTIME = "nvidia"
PROGRAM = "/usr/bin/nvidia-container-runtime"
# The CRI plugin by the version of the configuration: containerd 1.7 has 2, 2.0 has 3, 2.3 has 4.
PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime", 4: "io.containerd.cri.v1.runtime"}
Table = dict[str, Any]


def _host(found: Mapping[str, Any]) -> Host:
    known = {field.name for field in fields(Host)} - {"packages", "device_ids", "module_kernels"}
    return Host(
        device_ids=tuple(found["device_ids"]),
        module_kernels=tuple(found["module_kernels"]),
        packages={name: Package(**package) for name, package in found["packages"].items()},
        **{key: value for key, value in found.items() if key in known},
    )


def nvidia_driver_plan(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be done on a host; ``problem`` is a sentence without the host's name, or empty."""
    asked = {key: str(value) for key, value in wanted.items() if key != "packages"}
    try:
        plan = make_plan(_host(found), Wanted(**asked, packages=tuple(wanted.get("packages", ()))))
    except DriverError as error:
        return {"problem": str(error)}
    return {"problem": "", **asdict(plan)}


def nvidia_driver_holds(found: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    """Installed packages that are to be held and are not."""
    known = {key: tuple(value) if isinstance(value, list) else value for key, value in plan.items() if key != "problem"}
    return to_hold(_host(found), Plan(**known))


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def config_version(containerd_version: str) -> int:
    """The version of the configuration that a containerd writes itself."""
    version = _version(containerd_version)
    return 2 if version < (2, 0) else 3 if version < (2, 3) else 4


def _parse(dump: str, name: str) -> Table:
    try:
        return tomllib.loads(dump)
    except tomllib.TOMLDecodeError as error:
        raise AnsibleFilterError(f"{name}: this is no output of containerd config dump: {error}.") from error


def _section(dump: Table, version: int) -> Table:
    found = dump.get("plugins", {}).get(PLUGINS[version], {})
    return found if isinstance(found, dict) else {}


def nvidia_runtime_drop_in(dump: str, containerd_version: str, default: bool = False) -> str:
    """containerd's drop-in with the nvidia runtime, which is runc's in all but its program.

    ``dump`` is what ``containerd config dump`` says without this drop-in. Up to containerd 2.0 a drop-in replaces a
    plugin's whole section (containerd issue 5837), so there it repeats the section; later only what is its own.
    """
    version = config_version(containerd_version)
    section = _section(_parse(dump, "nvidia_runtime_drop_in"), version)
    containerd = section.get("containerd", {})
    runc = containerd.get("runtimes", {}).get("runc", {})
    runtime = {key: value for key, value in runc.items() if value or key == "runtime_type"}
    runtime.setdefault("runtime_type", "io.containerd.runc.v2")
    cgroup = bool(runc.get("options", {}).get("SystemdCgroup", False))
    runtime["options"] = {**runtime.get("options", {}), "BinaryName": PROGRAM, "SystemdCgroup": cgroup}
    own: Table = {"containerd": {"runtimes": {RUNTIME: runtime}}}
    if default:
        own["containerd"]["default_runtime_name"] = RUNTIME
    if version == 2:
        own["enable_cdi"] = True
    if _version(containerd_version) < (2, 1):
        own = _merged(section, own)
    return f"version = {version}\n" + _written({"plugins": {PLUGINS[version]: own}})


def _merged(below: Table, above: Table) -> Table:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _written(table: Table, path: tuple[str, ...] = ()) -> str:
    """A table as TOML: what is no table first, then each table under its full name."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"\n[{'.'.join(path)}]"] if path and (plain or not table) else []
    # A JSON scalar or list of scalars is TOML too.
    lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in plain.items()]
    text = "".join(f"{line}\n" for line in lines)
    inner = ((key, value) for key, value in table.items() if isinstance(value, dict))
    return text + "".join(_written(value, (*path, json.dumps(key))) for key, value in inner)


def nvidia_runtime_problem(dump: str, containerd_version: str, default: bool = False) -> str:
    """Why containerd would not run containers with the nvidia runtime, or empty."""
    containerd = _section(_parse(dump, "nvidia_runtime_problem"), config_version(containerd_version)).get(
        "containerd", {}
    )
    runtimes = containerd.get("runtimes", {})
    options = runtimes.get(RUNTIME, {}).get("options", {})
    if options.get("BinaryName") != PROGRAM:
        return (
            "containerd does not know the nvidia runtime, its configuration does not read the drop-in; "
            'add imports = ["/etc/containerd/conf.d/*.toml"] to /etc/containerd/config.toml.'
        )
    cgroup = [bool(runtimes.get(name, {}).get("options", {}).get("SystemdCgroup")) for name in (RUNTIME, "runc")]
    if cgroup[0] != cgroup[1]:
        return (
            f"SystemdCgroup is {str(cgroup[0]).lower()} for the nvidia runtime and {str(cgroup[1]).lower()} for runc; "
            "look for a file in /etc/containerd/conf.d that overrides one of them."
        )
    found = containerd.get("default_runtime_name", "")
    if default != (found == RUNTIME):
        return f"containerd's default runtime is {found}; look for a file in /etc/containerd/conf.d that sets it."
    return ""


def nvidia_slots(
    workers: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]], tenant: str, slots_per_card: int = 10
) -> dict[str, int]:
    """The tenant's nodes with real cards, and how many slots each shall offer; 0 where the inventory does not tell.

    A worker's cards are real where its gpu_backend, or else the tenant's, is nvidia.
    """
    own = (hostvars[worker] for worker in workers if hostvars[worker].get("tenant_worker_tenant") == tenant)
    usual = hostvars[tenant].get("gpu_backend")
    return {
        host.get("tenant_worker_node_name", host["inventory_hostname"]): int(slots_per_card)
        * sum(int(card["count"]) for card in host.get("nvidia_cards", ()))
        for host in own
        if host.get("gpu_backend", usual) == "nvidia"
    }


class FilterModule:
    """The collection's filters on NVIDIA's driver and runtime."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "nvidia_driver_holds": nvidia_driver_holds,
            "nvidia_driver_plan": nvidia_driver_plan,
            "nvidia_runtime_drop_in": nvidia_runtime_drop_in,
            "nvidia_runtime_problem": nvidia_runtime_problem,
            "nvidia_slots": nvidia_slots,
        }
