#!/usr/bin/env python3
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Replay recorded decisions of HAMi through the model, and print where the two disagree.

Each line of a recording is one scenario: nodes, and steps in which a pod is created (with what the webhook and the
filter answered) or deleted. After each step the recorded placement counts, not the model's, so that one disagreement
does not bring others. docs/reference/placement.md describes the format. Files may be compressed (.gz).

Exits with 0 where at least 99.5 % of the steps agree, with 1 where fewer do, with 2 where a line cannot be read.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkout  # noqa: F401

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    DEVICE_NVIDIA,
    RESOURCE_CORES,
    RESOURCE_MEMORY,
    Allocation,
    Share,
    parse_cordon,
    parse_pair_scores,
    parse_register,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._placement import (
    Fit,
    Node,
    Placement,
    PlacementError,
    PodRequest,
    Quota,
    Rules,
    Usage,
    Version,
    add_usage,
    answered_reasons,
    fit_node,
    mutate,
    parse_quantity,
    place,
    usage_of,
)

Json = dict[str, Any]

ENOUGH = 0.995
VERDICT, MUTATION, NODE, CARDS, REASONS, BIND = KINDS = (
    "webhook verdict",
    "webhook mutation",
    "node",
    "cards",
    "failure reasons",
    "bind",
)


@dataclass(frozen=True)
class Difference:
    """One disagreement: where in the recording, about what, and both answers."""

    where: str
    kind: str
    recorded: object
    modelled: object

    def __str__(self) -> str:
        recorded, modelled = (json.dumps(answer, sort_keys=True) for answer in (self.recorded, self.modelled))
        return f"{self.where}: {self.kind}: HAMi {recorded}, model {modelled}"


@dataclass
class Tally:
    """What was compared and what agreed, by kind; a step agrees where everything in it does."""

    scenarios: int = 0
    steps: int = 0
    agreed_steps: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    agreed: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def add(self, differences: Sequence[Difference], kinds: Sequence[str]) -> None:
        """Count one step in which these kinds were compared."""
        self.steps += 1
        self.agreed_steps += not differences
        self.compared.update(kinds)
        self.agreed.update(set(kinds) - {difference.kind for difference in differences})
        self.differences += differences

    @property
    def agreement(self) -> float:
        return self.agreed_steps / self.steps if self.steps else 0.0

    @property
    def status(self) -> int:
        if self.unreadable:
            return 2
        return 0 if self.agreement >= ENOUGH else 1


class Scenario:
    """One line of a recording with the recorded placements applied so far. Raises ValueError for what it is not."""

    def __init__(self, line: str, version: Version | None = None) -> None:
        content = json.loads(line)
        if not isinstance(content, dict):
            raise ValueError("a JSON object is wanted")
        policy = content.get("policy") or {}
        self.name: str = content["scenario"]
        self.rules = Rules(
            version=version or _version_of(content.get("hami")),
            node_policy=policy.get("node", "binpack"),
            gpu_policy=policy.get("gpu", "spread"),
        )
        self.steps: list[Json] = content["steps"]
        self._nodes = [_node_of(node) for node in content["nodes"]]
        self._limits: Mapping[str, object] | None = content.get("quota")
        self._pods: dict[str, tuple[str, dict[str, Usage]]] = {}

    def nodes(self) -> list[Node]:
        return [
            Node(node.name, node.cards, add_usage(self._taken(node.name)), node.cordoned, node.pair_scores)
            for node in self._nodes
        ]

    def quota(self) -> Quota | None:
        if self._limits is None:
            return None
        memory_mib, cores = (self._limits.get(f"limits.{resource}") for resource in (RESOURCE_MEMORY, RESOURCE_CORES))
        used = add_usage(usage for _node, usage in self._pods.values()).values()
        return Quota(
            None if memory_mib is None else int(parse_quantity(memory_mib)),
            None if cores is None else int(parse_quantity(cores)),
            Usage(0, sum(usage.memory_mib for usage in used), sum(usage.cores for usage in used)),
        )

    def delete(self, pod: str) -> None:
        self._pods.pop(pod, None)

    def apply(self, pod: Json, node: str, allocation: Allocation) -> None:
        init_count = len(pod["spec"].get("initContainers") or ())
        usage = usage_of(allocation, init_count, version=self.rules.version)
        self._pods[pod["metadata"]["name"]] = node, usage

    def _taken(self, node: str) -> list[dict[str, Usage]]:
        return [usage for name, usage in self._pods.values() if name == node]


def _version_of(text: str | None) -> Version:
    """The model's version for a release such as 2.10.0; 2.10 where a recording does not say."""
    release = ".".join((text or "2.10").split(".")[:2])
    known = [version.value for version in Version]
    if release not in known:
        raise ValueError(f"HAMi {text} is not modelled; give --hami {' or '.join(known)} to compare with those rules")
    return Version(release)


def _version_argument(text: str) -> Version:
    try:
        return _version_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _node_of(node: Json) -> Node:
    cordon = node.get("cordon") or ()
    return Node(
        node["name"],
        tuple(parse_register(json.dumps(node["cards"]))) if node["cards"] else (),
        cordoned=parse_cordon(cordon if isinstance(cordon, str) else ",".join(cordon)),
        pair_scores=parse_pair_scores(json.dumps(node.get("pair_scores") or [])),
    )


# --- one step ----------------------------------------------------------------------------


def compare_step(scenario: Scenario, step: Json, where: str) -> tuple[list[Difference], list[str]]:
    """Judge the creation of a pod and compare; what differs, and the kinds that were compared."""
    pairs: dict[str, tuple[object, object]] = {}
    pod = _compare_webhook(scenario, step, pairs)
    if step.get("filter") is not None:
        _compare_filter(scenario, pod, step["filter"], pairs)
    if "bind" in step:
        _compare_bind(scenario, pod, step, pairs)
    differences = [Difference(where, kind, *pair) for kind, pair in pairs.items() if pair[0] != pair[1]]
    return differences, list(pairs)


def _compare_webhook(scenario: Scenario, step: Json, pairs: dict[str, tuple[object, object]]) -> Json:
    recorded = step["webhook"]
    try:
        verdict = mutate(step["create"], scenario.rules, scenario.quota())
    except PlacementError as error:
        pairs[VERDICT] = recorded, str(error)
        return dict(step["create"])
    told = "" if recorded["allowed"] else recorded.get("message", "")
    pairs[VERDICT] = [recorded["allowed"], told], [verdict.allowed, verdict.message]
    if recorded["allowed"] and verdict.allowed:
        mutated = [verdict.pod["spec"].get("schedulerName"), _limits_of(verdict.pod)]
        pairs[MUTATION] = [recorded.get("scheduler"), [_amounts(each) for each in recorded["limits"]]], mutated
    return verdict.pod


def _limits_of(pod: Json) -> list[dict[str, str]]:
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    return [_amounts((container.get("resources") or {}).get("limits")) for container in containers]


def _amounts(limits: Mapping[str, object] | None) -> dict[str, str]:
    """Limits in one way of writing: 20000 and 20k are the same."""
    return {name: f"{parse_quantity(amount).normalize():f}" for name, amount in (limits or {}).items()}


def _compare_filter(scenario: Scenario, pod: Json, recorded: Json, pairs: dict[str, tuple[object, object]]) -> None:
    request = PodRequest.of(pod, scenario.rules)
    outcome = _outcome(scenario, request, pod)
    if recorded.get("passed_without_cards"):
        pairs[NODE] = "passed without cards", "passed without cards" if not request.asks_cards else outcome
        return
    if recorded.get("node") is None:
        pairs[NODE] = "refused", "refused" if isinstance(outcome, (dict, str)) else outcome
        if isinstance(outcome, (dict, str)):
            pairs[REASONS] = recorded.get("error") or recorded.get("failed") or {}, outcome
        return
    # Between nodes that score the same HAMi's choice is arbitrary; the cards of the one it took are not.
    node = recorded["node"]
    pairs[NODE] = node, node if isinstance(outcome, list) and node in outcome else outcome
    fits = [fit_node(request, each, scenario.rules, scenario.quota()) for each in scenario.nodes() if each.name == node]
    allocated = [
        [(share["uuid"], share["memory_mib"], share["cores"]) for share in each] for each in recorded["allocated"]
    ]
    if fits and isinstance(fits[0], Fit):
        pairs[CARDS] = _filled(allocated), _filled([[_triple(share) for share in each] for each in fits[0].written])
    scenario.apply(pod, node, tuple(tuple(Share(u, DEVICE_NVIDIA, m, c) for u, m, c in each) for each in allocated))


def _compare_bind(scenario: Scenario, pod: Json, step: Json, pairs: dict[str, tuple[object, object]]) -> None:
    """A bound pod is on the filter's node, which is locked for it if a container (not only an init one) asks for cards.

    LockNode, HAMi 2.9 and 2.10 pkg/device/nvidia/device.go.
    """
    locks = any(request.count for request in PodRequest.of(pod, scenario.rules).containers)
    bind = step["bind"]
    expected = ["", step["filter"]["node"], pod["metadata"]["name"] if locks else ""]
    pairs[BIND] = [bind["error"], bind["node"], bind["locked_for"]], expected


def _outcome(scenario: Scenario, request: PodRequest, pod: Json) -> object:
    """The nodes that are as good as each other, or the reason of each node, or the text of an error."""
    if not request.asks_cards:
        return "passed without cards"
    try:
        decision = place(request, scenario.nodes(), scenario.rules, scenario.quota())
    except PlacementError as error:
        return f"calcScore failed {error} for pod {pod['metadata']['name']}"
    if isinstance(decision, Placement):
        return list(decision.ties)
    return answered_reasons(decision.failed, scenario.rules.version)


def _triple(share: Share) -> tuple[str, int, int]:
    return share.uuid, share.memory_mib, share.cores


def _filled(allocation: Sequence[Sequence[object]]) -> list[Sequence[object]]:
    """Without the containers that get nothing: a recording may leave them out."""
    return [shares for shares in allocation if shares]


# --- files -------------------------------------------------------------------------------


def replay(paths: Sequence[Path], version: Version | None = None) -> Tally:
    """Replay recordings; with a version by its rules, otherwise by those that each scenario names (or else 2.10)."""
    tally = Tally()
    for path in paths:
        for number, line in _lines(path, tally):
            where = f"{path.name}:{number}"
            try:
                _replay_line(line, version, where, tally)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                what = f"no {error}" if isinstance(error, KeyError) else str(error)
                tally.unreadable.append(f"{path}:{number}: this is no scenario in the recording's format: {what}.")
    return tally


def _lines(path: Path, tally: Tally) -> Iterator[tuple[int, str]]:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    except (OSError, EOFError, UnicodeDecodeError) as error:
        tally.unreadable.append(f"{path} cannot be read: {error}.")


def _replay_line(line: str, version: Version | None, where: str, tally: Tally) -> None:
    scenario = Scenario(line, version)
    for number, step in enumerate(scenario.steps, 1):
        if "delete" in step:
            scenario.delete(step["delete"])
            continue
        name = step["create"]["metadata"]["name"]
        tally.add(*compare_step(scenario, step, f"{where} {scenario.name} step {number} pod {name}"))
    tally.scenarios += 1


def report(tally: Tally) -> str:
    """What replay found, in lines for a reader."""
    lines = [str(difference) for difference in tally.differences]
    for kind in KINDS:
        if tally.compared[kind]:
            share = tally.agreed[kind] / tally.compared[kind]
            lines.append(f"{kind:16}  {tally.agreed[kind]:6} of {tally.compared[kind]:6} agree  {share:8.2%}")
    lines.append(
        f"{tally.scenarios} scenarios, {tally.steps} steps: {tally.agreed_steps} agree in everything "
        f"({tally.agreement:.2%}; {ENOUGH:.1%} is enough)"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl", help="recordings, may be .gz")
    parser.add_argument(
        "--hami",
        type=_version_argument,
        metavar="VERSION",
        help="by whose rules: 2.10 or 2.9; left out: those of the version that each scenario names, or else 2.10",
    )
    options = parser.parse_args(arguments)
    tally = replay(options.files, options.hami)
    print(report(tally))
    for sentence in tally.unreadable:
        print(sentence, file=sys.stderr)
    return tally.status


if __name__ == "__main__":
    sys.exit(main())
