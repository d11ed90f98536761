# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses of a lab, computed from its name alone, and hosts' variables side by side."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

# 172.28.0.0/14 holds 1,024 networks /24: the upper end of the private block that
# engines fill from below (docker begins at 172.17.0.0/16).
LAB_NETWORKS = ipaddress.IPv4Network("172.28.0.0/14")

HOSTS_BEGIN = 10
POOL_BEGINS = 128  # from here on, load balancers


def lab_subnet(lab_name: str) -> str:
    """The /24 network of the lab called ``lab_name``, the same on every machine and at every time."""
    if not isinstance(lab_name, str) or not lab_name:
        raise AnsibleFilterError(f"lab_subnet: {lab_name!r} is no lab name; give a non-empty string.")
    digest = hashlib.sha256(lab_name.encode()).digest()
    position = int.from_bytes(digest[:4], "big") % 2 ** (24 - LAB_NETWORKS.prefixlen)
    return str(ipaddress.IPv4Network((int(LAB_NETWORKS.network_address) + position * 256, 24)))


def lab_address(subnet: str, number: int) -> str:
    """Address ``number`` of ``subnet``, counted from its network address (1 is the gateway)."""
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError as error:
        raise AnsibleFilterError(f"lab_address: {subnet!r} is no IPv4 network: {error}.") from error
    position = int(number)
    if not 0 < position < network.num_addresses - 1:
        raise AnsibleFilterError(
            f"lab_address: {subnet} has no host address {position}; give 1 to {network.num_addresses - 2}."
        )
    return str(network[position])


def lab_addresses(names: Iterable[str], subnet: str) -> dict[str, str]:
    """Addresses of a lab's hosts by name, in their order; a name that is added at the end moves none."""
    listed = list(names)
    if len(listed) > POOL_BEGINS - HOSTS_BEGIN:
        raise AnsibleFilterError(
            f"lab_addresses: a lab has room for {POOL_BEGINS - HOSTS_BEGIN} hosts, and the inventory has "
            f"{len(listed)}; take some out."
        )
    return {name: lab_address(subnet, HOSTS_BEGIN + position) for position, name in enumerate(listed)}


def host_variables(
    names: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]], keys: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One dictionary for each host: its ``name``, and under each of ``keys`` the variable that it names, if set."""
    # hostvars gathers a host's variables anew whenever it is asked for the host.
    known = {name: hostvars[name] for name in names}
    return [
        {"name": name, **{key: variables[variable] for key, variable in keys.items() if variable in variables}}
        for name, variables in known.items()
    ]


class FilterModule:
    """Filters of a lab and of its inventory."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "lab_subnet": lab_subnet,
            "lab_address": lab_address,
            "lab_addresses": lab_addresses,
            "host_variables": host_variables,
        }
