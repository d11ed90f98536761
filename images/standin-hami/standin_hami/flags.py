# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The flags of HAMi's scheduler, and its device configuration."""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    RESOURCE_MEMORY_PERCENT,
    SCHEDULER_NAME,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Rules

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NAMES = {
    "resourceCountName": RESOURCE_COUNT,
    "resourceMemoryName": RESOURCE_MEMORY,
    "resourceMemoryPercentageName": RESOURCE_MEMORY_PERCENT,
    "resourceCoreName": RESOURCE_CORES,
}


@dataclass(frozen=True)
class Settings:
    """What the program was started with."""

    bind: str
    metrics_bind: str
    certificate: Path | None
    key: Path | None
    node_selector: str
    lock_timeout: timedelta
    lock_wait: timedelta
    lock_group_wait: timedelta
    leader_elect: bool
    lease_name: str
    lease_namespace: str
    api_timeout_s: float
    verbose: bool
    rules: Rules


def parse_duration(text: str) -> timedelta:
    """Read a duration as Go writes it: 5m, 1h30m, 28s, 500ms."""
    parts = re.findall(r"([0-9.]+)(ms|h|m|s)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 5m or 30s")
    return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))


def parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "t", "f"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1", "t")


def parse_flags(arguments: Sequence[str]) -> Settings:
    """Read the flags of the original; those that mean nothing here are taken and left aside."""
    # -v is klog's level (-v=4).
    parser = argparse.ArgumentParser(prog="scheduler", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--http_bind", default="127.0.0.1:8080")
    add("--metrics-bind-address", default=":9395")
    add("--cert_file", type=Path)
    add("--key_file", type=Path)
    add("--scheduler-name", default="")
    add("--node-scheduler-policy", default="binpack")
    add("--gpu-scheduler-policy", default="spread")
    add("--node-label-selector", default="")
    add("--node-lock-timeout", type=parse_duration, default=timedelta(minutes=5))
    add("--node-lock-retry-timeout", type=parse_duration, default=timedelta(seconds=28))
    # Ours: the original refuses at once, and the kube-scheduler then waits for seconds before it tries again.
    add("--node-lock-wait", type=parse_duration, default=timedelta(0))
    add("--force-overwrite-default-scheduler", type=parse_bool, nargs="?", const=True, default=True)
    add("--leader-elect", type=parse_bool, nargs="?", const=True, default=False)
    add("--leader-elect-resource-name", default=SCHEDULER_NAME)
    add("--leader-elect-resource-namespace", default="")
    add("--device-config-file", type=Path)
    add("--kube-timeout", type=float, default=30.0)
    add("-v", "--v", default="0")
    add("--debug", type=parse_bool, nargs="?", const=True, default=False)
    for unused in ("--kube-qps", "--kube-burst", "--profiling", "--legacy-metrics", "--enable-ascend"):
        add(unused, nargs="?", help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    try:
        rules = _rules(flags)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return Settings(
        bind=flags.http_bind,
        metrics_bind=flags.metrics_bind_address,
        certificate=flags.cert_file,
        key=flags.key_file,
        node_selector=flags.node_label_selector,
        lock_timeout=flags.node_lock_timeout,
        lock_wait=flags.node_lock_wait,
        lock_group_wait=flags.node_lock_retry_timeout,
        leader_elect=flags.leader_elect,
        lease_name=flags.leader_elect_resource_name,
        lease_namespace=flags.leader_elect_resource_namespace,
        api_timeout_s=flags.kube_timeout,
        verbose=int(flags.v.lstrip("=") or 0) >= 5,
        rules=rules,
    )


def _rules(flags: argparse.Namespace) -> Rules:
    """The rules from the flags and the nvidia part of the device configuration, which the chart writes as JSON."""
    nvidia: dict[str, object] = {}
    if flags.device_config_file is not None:
        text = flags.device_config_file.read_text()
        try:
            nvidia = json.loads(text)["nvidia"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{flags.device_config_file} is not JSON with the key nvidia") from error
    for key, name in _NAMES.items():
        if nvidia.get(key, name) != name:
            raise ValueError(f"{key} {nvidia[key]!r} cannot be had here: the resource is named {name}")
    if str(nvidia.get("memoryFactor", 1)) != "1":
        raise ValueError(f"memoryFactor {nvidia['memoryFactor']!r} cannot be had here: memory is counted in MiB")
    return Rules(
        node_policy=flags.node_scheduler_policy,
        gpu_policy=flags.gpu_scheduler_policy,
        scheduler_name=flags.scheduler_name,
        overwrite_default_scheduler=flags.force_overwrite_default_scheduler,
        default_count=int(str(nvidia.get("defaultGPUNum", 1))),
        default_memory_mib=int(str(nvidia.get("defaultMemory", 0))),
        default_cores=int(str(nvidia.get("defaultCores", 0))),
        runtime_class=str(nvidia.get("runtimeClassName", "")),
        core_policy=str(nvidia.get("gpuCorePolicy", "default")),
        overwrite_env=str(nvidia.get("overwriteEnv", "false")).lower() == "true",
    )
