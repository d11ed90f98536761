# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A capacity plan from options to result, for the module and the filter alike.

No input or output, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._capacity import Fleet, Host, Landing
from ansible_collections.tenantry.gpu.plugins.module_utils._changes import changes_for
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    PHASE_SUCCESS,
    POD_ALLOCATED,
    POD_BIND_PHASE,
    POD_NODE,
    SCHEDULER_NAME,
    format_allocation,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    Quota,
    Refusal,
    Rules,
    Usage,
    Version,
    reason_names,
    refusal_messages,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._plan import Bypass, Change, Denial, Outcome, Plan, Step
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import (
    CASE_OPTIONS,
    Case,
    Seen,
    case_from_options,
    check_names,
    judge,
)

Object = dict[str, Any]

PLACED, REFUSED, DENIED, WITHOUT_CARD = "placed", "refused", "denied", "without_card"

# As many places are named in a sentence; the pods' list has all.
PLACES_TOLD = 3

POLICIES = ["binpack", "spread"]
# What the module and the filter have in common, as Ansible checks it.
PLAN_OPTIONS: dict[str, Any] = {
    "cases": {"type": "list", "elements": "dict", "required": True, "options": CASE_OPTIONS},
    "namespace": {"type": "str", "default": "default"},
    "quota": {"type": "dict", "options": {"memory_mib": {"type": "int"}, "cores": {"type": "int"}}},
    "hami_version": {"type": "str", "choices": [version.value for version in Version], "default": "2.10"},
    "node_policy": {"type": "str", "choices": POLICIES, "default": "binpack"},
    "card_policy": {"type": "str", "default": "spread"},
    "default_cards": {"type": "int", "default": 1},
    "default_memory_mib": {"type": "int", "default": 0},
    "default_cores": {"type": "int", "default": 0},
    "scheduler_name": {"type": "str", "default": SCHEDULER_NAME},
    "suggest_changes": {"type": "bool", "default": True},
    "count_up_to": {"type": "int", "default": 1000},
}


def rules_from_options(options: Mapping[str, Any]) -> Rules:
    """HAMi's rules as the options say its scheduler has them."""
    return Rules(
        version=Version(options["hami_version"]),
        node_policy=options["node_policy"],
        gpu_policy=options["card_policy"],
        scheduler_name=options["scheduler_name"],
        default_count=options["default_cards"],
        default_memory_mib=options["default_memory_mib"],
        default_cores=options["default_cores"],
    )


def quota_from_options(options: Mapping[str, Any], found: Quota | None = None) -> Quota | None:
    """The quota to plan with: that of the options instead of the one that was found; what was taken stays."""
    given = options.get("quota")
    if not given:
        return found
    return Quota(given.get("memory_mib"), given.get("cores"), found.used if found else Usage())


def cases_from_options(options: Mapping[str, Any]) -> list[Case]:
    """The cases of a plan, in order. Raises CaseError."""
    cases = [case_from_options(case) for case in options["cases"]]
    check_names(cases)
    return cases


def make_plan(hosts: Sequence[Host], cases: Sequence[Case], options: Mapping[str, Any], quota: Quota | None) -> Object:
    """Place the cases' pods on the hosts and tell what became of them."""
    plan = Plan(hosts, rules_from_options(options), quota, options["namespace"])
    after = plan.run(cases)
    told = []
    for step in plan.steps:
        changes = changes_for(plan, step) if options["suggest_changes"] else []
        more = plan.how_many_more(after, step.case, options["count_up_to"])
        told.append(describe(step, changes, more, plan.rules))
    judged = [case["as_expected"] for case in told if case["as_expected"] is not None]
    return {
        "fits": all(case["fits"] for case in told),
        "as_expected": all(judged) if judged else None,
        "cases": told,
        "totals": totals(plan.before, after),
    }


def describe(step: Step, changes: Sequence[Change], more: int | None, rules: Rules) -> Object:
    """One case of a plan as the module returns it."""
    failure, case = step.failure, step.case
    told: Object = {
        "name": case.name,
        "fits": failure is None,
        "verdict": f"{case.name}: {sentence(step)}",
        "placed": len(step.landings),
        "not_placed": case.replicas - len(step.landings),
        "why": _why(failure),
        "reasons": _reasons(failure),
        "failed": dict(failure.failed) if isinstance(failure, Refusal) else {},
        "changes": [{"change": change.kind, "sentence": change.sentence} for change in changes],
        "how_many_more": more,
        "expected": None,
        "as_expected": None,
        "pods": [_pod(name, outcome) for name, outcome in zip(case.pod_names(), step.outcomes)],
    }
    if changes:
        told["verdict"] += f" It would fit with {changes[0].sentence}"
    if case.expect.outcome:
        seen = [_seen(case, name, outcome, rules) for name, outcome in zip(case.pod_names(), step.outcomes)]
        told["expected"] = case.expect.sentence(case.replicas)
        told["as_expected"] = judge(case, seen).passed
    return told


def sentence(step: Step) -> str:
    """What became of a case's pods."""
    placed, failure = step.landings, step.failure
    where = f"on {_places(placed)}" if placed else ""
    if failure is None:
        return f"{_number(len(placed), 'pod')} placed {where}."
    count = len(step.outcomes) - len(placed)
    what = {Refusal: "refused", Denial: "denied by the webhook", Bypass: "without a card"}[type(failure)]
    first = f"{_number(len(placed), 'pod')} placed {where}, " if placed else ""
    return f"{first}{_number(count, 'pod')} {what}: {_why(failure).rstrip('.')}."


def _number(count: int, thing: str) -> str:
    return f"1 {thing}" if count == 1 else f"{count} {thing}s"


def _places(landings: Iterable[Landing]) -> str:
    places = Counter(
        f"card {card.index} of {landing.node}" for landing in landings for entry in landing.cards for card, _ in entry
    )
    told = [f"{place} ({count}x)" if count > 1 else place for place, count in places.items()]
    rest = len(told) - PLACES_TOLD
    return ", ".join(told[:PLACES_TOLD]) + (f" and {_number(rest, 'other card')}" if rest > 0 else "")


def _why(failure: Outcome | None) -> str:
    """Why pods are not placed: HAMi's reasons with the number of nodes, or the webhook's words."""
    if isinstance(failure, Denial):
        return failure.message
    if isinstance(failure, Bypass):
        return failure.why
    if isinstance(failure, Refusal):
        told = [f"{reason} on {_number(count, 'node')}" for reason, count in _reasons(failure).items()]
        return ", ".join(told) or "there is no node"
    return ""


def _reasons(failure: Outcome | None) -> dict[str, int]:
    """The number of nodes for each reason, the most frequent first."""
    if not isinstance(failure, Refusal):
        return {}
    names = (name for reason in failure.failed.values() for name in reason_names(reason) or (reason,))
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _pod(name: str, outcome: Outcome) -> Object:
    told: Object = {"name": name, "outcome": _OUTCOMES[type(outcome)], "node": "", "containers": [], "ties": []}
    told["tie_count"] = 0
    if isinstance(outcome, Landing):
        told.update(node=outcome.node, ties=list(outcome.ties), tie_count=outcome.tie_count)
        told["containers"] = [
            [
                {"uuid": card.uuid, "index": card.index, "memory_mib": share.memory_mib, "cores": share.cores}
                for card, share in entry
            ]
            for entry in outcome.cards
        ]
    return told


_OUTCOMES: dict[type, str] = {Landing: PLACED, Refusal: REFUSED, Denial: DENIED, Bypass: WITHOUT_CARD}


def _seen(case: Case, name: str, outcome: Outcome, rules: Rules) -> Seen:
    """The prediction as gpu_scheduling_verify would see it come true, so that it is judged by the same rules."""
    seen = Seen(name, hami=rules.scheduler_name, containers=case.ordered)
    spec: Object = {"schedulerName": rules.scheduler_name}
    if isinstance(outcome, Denial):
        seen.denied = outcome.message
    elif isinstance(outcome, Bypass):
        seen.pod = {"metadata": {}, "spec": {"schedulerName": "default-scheduler"}}
    elif isinstance(outcome, Landing):
        annotations = {
            POD_NODE: outcome.node,
            POD_ALLOCATED: format_allocation(outcome.allocation),
            POD_BIND_PHASE: PHASE_SUCCESS,
        }
        seen.pod = {
            "metadata": {"annotations": annotations},
            "spec": {**spec, "nodeName": outcome.node},
            "status": {"phase": "Running"},
        }
    else:
        messages = refusal_messages(outcome.failed, len(outcome.failed))
        seen.events = [{"reason": "FilteringFailed", "message": message} for message in messages]
        condition = {"type": "PodScheduled", "status": "False", "message": _why(outcome)}
        seen.pod = {"metadata": {}, "spec": spec, "status": {"conditions": [condition]}}
    return seen


def totals(before: Fleet, after: Fleet) -> Object:
    """Sums over all cards, with what is allocated before and after the plan."""
    cards = [card for host in after.hosts for card in host.node.cards]
    return {
        "nodes": sum(1 for host in after.hosts if host.node.cards),
        "cards": len(cards),
        "slots": sum(card.slots for card in cards),
        "memory_mib": sum(card.memory_mib for card in cards),
        "cores": sum(card.cores for card in cards),
        "allocated_before": _allocated(before),
        "allocated_after": _allocated(after),
    }


def _allocated(fleet: Fleet) -> Object:
    used = [host.node.usage.get(card.uuid, Usage()) for host in fleet.hosts for card in host.node.cards]
    return {
        "slots": sum(usage.slots for usage in used),
        "memory_mib": sum(usage.memory_mib for usage in used),
        "cores": sum(usage.cores for usage in used),
    }
