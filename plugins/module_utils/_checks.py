# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The verification's checks: which pods show them on a tenant's cards, and what the modules' answers prove.

No input or output. The cases follow from the cards that the tenant has, so every tenant gets the checks that apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._evidence import FAILED, PASSED, SKIPPED, Evidence

Object = dict[str, Any]

TUNNEL, SHARE, CORES, MEMORY = "tunnel-admission", "share-three", "core-exhausted", "memory-refused"
ISOLATION, LIFECYCLE, CAPACITY = "api-isolation", "allocation-lifecycle", "capacity"
# Only where the cards are real.
UNREQUESTED = "no-card-unrequested"
UNREQUESTED_END = "tenantry.gpu: end of devices"

SHARES = 3
SHARE_CORES = 30

_CLAIMS = {
    TUNNEL: "The tenant's API server reaches HAMi's webhook in the tenant's own network through the tunnel.",
    SHARE: "Three pods share one card, each held to its own memory and compute.",
    CORES: "A pod that asks for more compute than a card has left is refused for that reason.",
    MEMORY: "A pod that asks for more memory than any card has is refused for that reason.",
    CAPACITY: "The tenant's cards are registered with all their memory, compute and slots.",
    ISOLATION: "Every tenant's API answers its own tenant and refuses all others.",
    UNREQUESTED: "A pod that asks for no card sees none, also where its environment says all.",
    LIFECYCLE: "An allocation is completed, the lock released, and the card free again once its pods are gone.",
}


def capacity_id(tenant: str) -> str:
    return f"{CAPACITY}-{tenant.removeprefix('tenant-')}"


def order_of(tenants: Iterable[str]) -> list[str]:
    """Ids of the checks as a report gives them."""
    return [TUNNEL, SHARE, CORES, MEMORY, *map(capacity_id, tenants), ISOLATION, LIFECYCLE]


def cases_of(nodes: Sequence[Mapping[str, Any]]) -> list[Object]:
    """Cases for gpu_scheduling_verify, from hami_device_info's nodes; none where no card is fit to be tried on.

    Share, exhaust and reuse the largest idle card; refuse more memory than any card has.
    """
    cards = [card for node in nodes for card in node["cards"] if card["healthy"] and not card["cordoned"]]
    if not cards:
        return []
    largest = max(card["memory_mib"] for card in cards)
    cases: list[Object] = [
        {
            "name": MEMORY,
            "memory_mib": _round(largest * 5 // 4),
            # A card that is ill or has no slot left has that reason first.
            "expect": {"outcome": "refused", "reason": "CardInsufficientMemory", "other_reasons": True},
        }
    ]
    idle = [card for card in cards if not card["shares"] and card["slots"] > SHARES]
    if not idle:
        return cases
    card = max(idle, key=lambda each: each["memory_mib"])
    # Where there are several cards, the pods are held to the one under trial.
    on_card = {"use_uuids": [card["uuid"]]} if len(cards) > 1 else {}
    share = {"memory_mib": _round(card["memory_mib"] // (SHARES + 1)), "cores": SHARE_CORES, **on_card}
    placed = {"outcome": "placed", "uuid": card["uuid"]}
    return [
        {"name": SHARE, "replicas": SHARES, **share, "expect": {**placed, "spread": "one_card"}},
        {
            "name": CORES,
            **share,
            "while_running": [SHARE],
            "expect": {"outcome": "refused", "reason": "CardInsufficientCore", "uuid": card["uuid"]},
        },
        *cases,
        {
            "name": LIFECYCLE,
            "memory_mib": card["memory_mib"],
            "cores": card["cores"],
            **on_card,
            "after": [SHARE],
            "expect": placed,
        },
    ]


def _round(memory_mib: int) -> int:
    """Rounded down to whole thousands where that leaves something."""
    return memory_mib // 1000 * 1000 or memory_mib


def capacity_of(nodes: Iterable[Mapping[str, Any]]) -> Object:
    """Sums over the cards of nodes, each a dictionary with ``cards``."""
    cards = [card for node in nodes for card in node["cards"]]
    return {key: sum(card[key] for card in cards) for key in ("memory_mib", "cores", "slots")}


def capacity_evidence(tenant: str, declared: Sequence[Mapping[str, Any]], devices: Mapping[str, Any]) -> Evidence:
    """Compare the cards that the inventory declares with those that the nodes registered."""
    expected = _capacity_text(capacity_of(declared))
    if not any(node["cards"] for node in declared):
        return _evidence(capacity_id(tenant), tenant, SKIPPED, "nothing", "", "the inventory declares no cards")
    if "nodes" not in devices:
        return _missing(capacity_id(tenant), tenant, expected, devices)
    observed = _capacity_text(capacity_of(devices["nodes"]))
    offered, slots = devices["totals"]["allocatable_slots"], capacity_of(declared)["slots"]
    if offered != slots:
        observed += f", {offered} of them allocatable"
    proof = {"declared": list(declared), "nodes": devices["nodes"]}
    return _evidence(
        capacity_id(tenant), tenant, PASSED if observed == expected else FAILED, expected, observed, "", proof
    )


def card_count_evidence(tenant: str, declared: Mapping[str, int], devices: Mapping[str, Any]) -> Evidence:
    """Compare how many real cards the inventory says of each worker with those that its node registered.

    How much memory a real card has, its driver says; the inventory cannot know it to the MiB.
    """
    expected = _counts_text(declared)
    if "nodes" not in devices:
        return _missing(capacity_id(tenant), tenant, expected, devices)
    found = {node["name"]: len([card for card in node["cards"] if card["healthy"]]) for node in devices["nodes"]}
    observed = _counts_text({name: found.get(name, 0) for name in declared})
    proof = {"declared": dict(declared), "nodes": devices["nodes"]}
    return _evidence(
        capacity_id(tenant), tenant, PASSED if observed == expected else FAILED, expected, observed, "", proof
    )


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} healthy of {name}" for name, count in sorted(counts.items()))


def _capacity_text(capacity: Mapping[str, int]) -> str:
    return "{memory_mib:,} MiB, {cores} cores, {slots} slots".format(**capacity)


def scheduling_evidence(tenant: str, cases: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> list[Evidence]:
    """What gpu_scheduling_verify's answer proves; ``cases`` are those that it was given."""
    found = {case["name"]: case for case in result.get("cases") or []}
    given = {case["name"] for case in cases}
    records = []
    for check in (SHARE, CORES, MEMORY, LIFECYCLE):
        if check in found:
            case = found[check]
            verdict = PASSED if case["passed"] else FAILED
            reason = "" if case["passed"] else case["verdict"]
            proof = {"duration_s": case["duration_s"], "broke_at": case["broke_at"], "pods": case["pods"]}
            records.append(_evidence(check, tenant, verdict, case["expected"], case["observed"], reason, proof))
        elif check in given or "msg" in result:
            records.append(_missing(check, tenant, "pods are tried", result))
        else:
            records.append(_evidence(check, tenant, SKIPPED, "nothing", "", "no card is idle to try it on"))
    return records


def tunnel_evidence(tenant: str, result: Mapping[str, Any]) -> Evidence:
    """What webhook_tunnel_info's answer proves."""
    expected = "the agent dialled the webhook's address, the webhook answers"
    if "tunnelled" not in result:
        return _missing(TUNNEL, tenant, expected, result)
    dials = sum(agent["dials"] for agent in result["agents"])
    observed = f"{result['address']} dialled {dials}x, {result['answered'] or 'not asked'}"
    proof = {key: result[key] for key in ("service", "address", "failure_policy", "answered", "agents", "metric")}
    verdict = PASSED if result["tunnelled"] else FAILED
    return _evidence(TUNNEL, tenant, verdict, expected, observed, result["reason"], proof)


def isolation_evidence(result: Mapping[str, Any]) -> Evidence:
    """What tenant_isolation_info's answer proves."""
    expected = "own credentials answered, all others refused"
    if "isolated" not in result:
        return _missing(ISOLATION, "", expected, result)
    own = [answer["status"] for answer in result["answers"] if answer["own"]]
    foreign = [answer["status"] for answer in result["answers"] if not answer["own"]]
    if result["isolated"] and not foreign:
        return _evidence(
            ISOLATION, "", SKIPPED, expected, "", "there is one tenant alone", {"answers": result["answers"]}
        )
    observed = f"{_statuses(own)} to its own, {_statuses(foreign)} to others"
    verdict = PASSED if result["isolated"] else FAILED
    reason = " ".join(result["violations"])
    return _evidence(ISOLATION, "", verdict, expected, observed, reason, {"answers": result["answers"]})


def unrequested_evidence(tenant: str, result: Mapping[str, Any]) -> Evidence:
    """What the log of a pod proves that asked for no card and listed the NVIDIA devices that it saw."""
    expected = "no /dev/nvidia*"
    lines = str(result.get("log") or "").split("\n")
    if UNREQUESTED_END not in lines:
        return _missing(UNREQUESTED, tenant, expected, result)
    devices = lines[: lines.index(UNREQUESTED_END)]
    reason = "see accept-nvidia-visible-devices-envvar-when-unprivileged on its worker" if devices else ""
    verdict = FAILED if devices else PASSED
    return _evidence(
        UNREQUESTED, tenant, verdict, expected, ", ".join(devices) or expected, reason, {"devices": devices}
    )


def _statuses(statuses: Sequence[int]) -> str:
    return " and ".join(f"{statuses.count(status)}x {status}" for status in sorted(set(statuses))) or "no answer"


def _missing(check: str, tenant: str, expected: str, result: Mapping[str, Any]) -> Evidence:
    reason = str(result.get("msg") or "the check did not run; see the run's output for what failed before it")
    return _evidence(check, tenant, FAILED, expected, "nothing", reason)


def _evidence(
    check: str,
    tenant: str,
    verdict: str,
    expected: str,
    observed: str,
    reason: str = "",
    proof: Mapping[str, Any] | None = None,
) -> Evidence:
    claim = _CLAIMS[CAPACITY if check.startswith(f"{CAPACITY}-") else check]
    return Evidence(
        id=check,
        subject=tenant,
        claim=claim,
        expected=expected,
        observed=observed,
        verdict=verdict,
        reason=reason,
        proof=proof or {},
    )
