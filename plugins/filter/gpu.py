# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cards of an inventory, and what a verification makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Callable

from ansible.errors import AnsibleFilterError

from ansible_collections.tenantry.gpu.plugins.module_utils._acceptance import card_of, quota_evidence, untried
from ansible_collections.tenantry.gpu.plugins.module_utils._checks import (
    capacity_evidence,
    card_count_evidence,
    cases_of,
    isolation_evidence,
    order_of,
    scheduling_evidence,
    tunnel_evidence,
    unrequested_evidence,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._evidence import FAILED, SKIPPED
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    Card,
    HamiFormatError,
    cards_from_profiles,
    format_register,
)

HostVars = Mapping[str, Mapping[str, Any]]

# What the role verification registers on each tenant: __verification_devices and so on.
PARTS = ("devices", "scheduling", "tunnel")
# And the role gpu_acceptance.
ACCEPTANCE_PARTS = ("devices", "jobs", "quota")


def _hosts_of(workers: Iterable[str], hostvars: HostVars, tenant: str) -> dict[str, Mapping[str, Any]]:
    """The variables of the tenant's workers, by the name of the Node that each has."""
    own = ((worker, hostvars[worker]) for worker in workers)
    return {
        host.get("tenant_worker_node_name", worker): host
        for worker, host in own
        if host.get("tenant_worker_tenant") == tenant
    }


def _cards(workers: Iterable[str], hostvars: HostVars, tenant: str) -> dict[str, list[Card]]:
    try:
        return {
            node: cards_from_profiles(node, host["gpu_simulator_cards"])
            for node, host in _hosts_of(workers, hostvars, tenant).items()
            if host.get("gpu_simulator_cards")
        }
    except HamiFormatError as error:
        raise AnsibleFilterError(str(error)) from error


def simulated_registers(workers: Iterable[str], hostvars: HostVars, tenant: str) -> dict[str, str]:
    """The register of each of the tenant's workers that has simulated cards, by node name."""
    return {node: format_register(cards) for node, cards in _cards(workers, hostvars, tenant).items()}


def simulated_slots(workers: Iterable[str], hostvars: HostVars, tenant: str) -> dict[str, int]:
    """The number of slots that each of the tenant's workers with simulated cards offers, by node name."""
    return {
        node: sum(card.slots for card in cards if card.healthy)
        for node, cards in _cards(workers, hostvars, tenant).items()
    }


def simulated_nodes(workers: Iterable[str], hostvars: HostVars, tenant: str) -> list[dict[str, Any]]:
    """The tenant's workers that have simulated cards, as hami_node_devices takes them."""
    return [
        {"name": node, "cards": [asdict(card) for card in cards]}
        for node, cards in _cards(workers, hostvars, tenant).items()
    ]


def _real_cards(workers: Iterable[str], hostvars: HostVars, tenant: str) -> dict[str, int]:
    """How many real cards the inventory says of each of the tenant's workers that has some, by node name."""
    return {
        node: sum(int(cards["count"]) for cards in host["nvidia_cards"])
        for node, host in _real_workers(workers, hostvars, tenant).items()
        if host.get("nvidia_cards")
    }


def _real_workers(workers: Iterable[str], hostvars: HostVars, tenant: str) -> dict[str, Mapping[str, Any]]:
    usual = hostvars[tenant].get("gpu_backend")
    hosts = _hosts_of(workers, hostvars, tenant)
    return {node: host for node, host in hosts.items() if host.get("gpu_backend", usual) == "nvidia"}


def verification_cases(nodes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Cases for gpu_scheduling_verify that fit the cards of hami_device_info's nodes."""
    return cases_of(nodes)


def verification_evidence(
    tenants: Sequence[str], hostvars: HostVars, workers: Iterable[str], isolation: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Evidence of all tenants, from what the role verification registered on each."""
    listed = list(workers)
    records = [isolation_evidence(isolation)]
    for tenant in tenants:
        devices, scheduling, tunnel = (hostvars[tenant].get(f"__verification_{part}") or {} for part in PARTS)
        if "nodes" not in devices:
            scheduling = {"msg": devices.get("msg")}
        real = _real_cards(listed, hostvars, tenant)
        records += [
            tunnel_evidence(tenant, tunnel),
            card_count_evidence(tenant, real, devices)
            if real
            else capacity_evidence(tenant, simulated_nodes(listed, hostvars, tenant), devices),
            *scheduling_evidence(tenant, cases_of(devices.get("nodes") or []), scheduling),
        ]
    looked = {tenant: hostvars[tenant].get("__verification_unrequested") for tenant in tenants}
    records += [unrequested_evidence(tenant, answer) for tenant, answer in looked.items() if answer]
    return [record.to_dict() for record in records]


def verification_order(tenants: Iterable[str]) -> list[str]:
    """Ids of the checks in the order in which a report gives them."""
    return order_of(tenants)


def acceptance_workers(workers: Iterable[str], hostvars: HostVars, tenant: str) -> list[str]:
    """The Nodes of the tenant's workers with real cards: their gpu_backend, or else the tenant's, is nvidia."""
    return list(_real_workers(workers, hostvars, tenant))


def acceptance_card(nodes: Sequence[Mapping[str, Any]], workers: Iterable[str]) -> dict[str, Any]:
    """The card of the workers on which gpu_acceptance_verify is to try its jobs; empty where none is idle."""
    return card_of(nodes, list(workers))


def acceptance_evidence(tenants: Sequence[str], hostvars: HostVars) -> list[dict[str, Any]]:
    """Evidence of all tenants with real cards, from what the role gpu_acceptance registered on each."""
    found: list[dict[str, Any]] = []
    for tenant in tenants:
        devices, jobs, quota = (hostvars[tenant].get(f"__gpu_acceptance_{part}") or {} for part in ACCEPTANCE_PARTS)
        if not devices:
            continue  # it has no real cards
        if "evidence" in jobs:
            found += [*jobs["evidence"], quota_evidence(tenant, quota).to_dict()]
            continue
        verdict, reason = SKIPPED, "none of its real cards is idle"
        if "nodes" not in devices or not jobs.get("skipped"):
            verdict, reason = FAILED, str(devices.get("msg") or jobs.get("msg"))
        found += [record.to_dict() for record in untried(tenant, verdict, reason)]
    return found


class FilterModule:
    """Filters of cards and of their verification."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "acceptance_card": acceptance_card,
            "acceptance_evidence": acceptance_evidence,
            "acceptance_workers": acceptance_workers,
            "simulated_nodes": simulated_nodes,
            "simulated_registers": simulated_registers,
            "simulated_slots": simulated_slots,
            "verification_cases": verification_cases,
            "verification_evidence": verification_evidence,
            "verification_order": verification_order,
        }
