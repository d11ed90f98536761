# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.tenantry.gpu.plugins.filter.gpu import (
    acceptance_card,
    acceptance_evidence,
    acceptance_workers,
    simulated_nodes,
    simulated_registers,
    simulated_slots,
    verification_evidence,
)

WORKERS = ["a-worker-0", "b-worker-0", "real-0"]
HOSTVARS: dict[str, dict[str, Any]] = {
    "a-worker-0": {"tenant_worker_tenant": "tenant-a", "gpu_simulator_cards": [{"profile": "a100-80g"}]},
    "b-worker-0": {"tenant_worker_tenant": "tenant-b", "gpu_simulator_cards": [{"profile": "l4", "count": 2}]},
    "real-0": {"tenant_worker_tenant": "tenant-a"},
    "tenant-a": {},
    "tenant-b": {"__verification_devices": {"msg": "No connection to the cluster: refused"}},
}


def test_the_registers_of_a_tenant() -> None:
    registers = simulated_registers(WORKERS, HOSTVARS, "tenant-b")
    assert list(registers) == ["b-worker-0"]
    assert [card["devmem"] for card in json.loads(registers["b-worker-0"])] == [24576, 24576]


def test_the_nodes_of_a_tenant() -> None:
    (node,) = simulated_nodes(WORKERS, HOSTVARS, "tenant-a")
    (card,) = node.pop("cards")
    assert node == {"name": "a-worker-0"}
    assert (card["index"], card["memory_mib"], card["healthy"]) == (0, 81920, True)
    assert card["uuid"] in simulated_registers(WORKERS, HOSTVARS, "tenant-a")["a-worker-0"]


def test_the_slots_of_a_tenant() -> None:
    assert simulated_slots(WORKERS, HOSTVARS, "tenant-a") == {"a-worker-0": 10}
    assert simulated_slots(WORKERS, HOSTVARS, "tenant-b") == {"b-worker-0": 20}
    assert simulated_slots(WORKERS, HOSTVARS, "tenant-c") == {}


def test_an_unknown_profile_is_named_with_its_worker() -> None:
    hostvars = {"w": {"tenant_worker_tenant": "t", "gpu_simulator_cards": [{"profile": "voodoo"}]}}
    with pytest.raises(AnsibleFilterError, match="w: card profile 'voodoo' is unknown"):
        simulated_registers(["w"], hostvars, "t")


def test_a_tenant_that_gave_no_results_fails_every_check() -> None:
    records = verification_evidence(["tenant-a", "tenant-b"], HOSTVARS, WORKERS, {})
    assert {record["verdict"] for record in records} == {"failed"}
    assert {record["id"] for record in records if record["subject"] == "tenant-a"} == {
        "tunnel-admission",
        "share-three",
        "core-exhausted",
        "memory-refused",
        "capacity-a",
        "allocation-lifecycle",
    }
    told = {record["id"]: record["reason"] for record in records if record["subject"] == "tenant-b"}
    assert told["share-three"] == told["capacity-b"] == "No connection to the cluster: refused"
    assert "did not run" in told["tunnel-admission"]


def test_real_workers_are_the_tenant_s_own_by_their_backend_or_its() -> None:
    hostvars: dict[str, dict[str, Any]] = {
        "tenant-a": {"gpu_backend": "simulator"},
        "tenant-b": {"gpu_backend": "nvidia"},
        "tenant-c": {},
        "a-0": {"tenant_worker_tenant": "tenant-a", "gpu_backend": "nvidia"},
        "a-1": {"tenant_worker_tenant": "tenant-a"},
        "b-0": {"tenant_worker_tenant": "tenant-b"},
        "b-1": {"tenant_worker_tenant": "tenant-b", "gpu_backend": "none"},
        "c-0": {"tenant_worker_tenant": "tenant-c"},
        "free": {},
    }
    workers = ["a-0", "a-1", "b-0", "b-1", "c-0", "free"]
    found = {tenant: acceptance_workers(workers, hostvars, tenant) for tenant in ("tenant-a", "tenant-b", "tenant-c")}
    assert found == {"tenant-a": ["a-0"], "tenant-b": ["b-0"], "tenant-c": []}


def test_the_card_to_accept_is_one_of_the_real_workers() -> None:
    card = {"uuid": "GPU-1", "memory_mib": 1000, "cores": 100, "mode": "hami-core", "healthy": True}
    card |= {"cordoned": False, "shares": []}
    nodes = [{"name": "a-0", "cards": [card]}]
    assert acceptance_card(nodes, ["a-0"]) == {"node": "a-0", "uuid": "GPU-1", "memory_mib": 1000}
    assert acceptance_card(nodes, []) == {}


ACCEPTED = {"id": "cuda-memory", "verdict": "passed"}
ACCEPTANCES = [
    ("no real cards", {}, [], None),
    ("well", {"devices": {"nodes": []}, "jobs": {"evidence": [ACCEPTED]}}, ["passed", "failed"], "it was not tried"),
    ("no idle card", {"devices": {"nodes": []}, "jobs": {"skipped": True}}, 12 * ["skipped"], "none of its real cards"),
    ("no cluster", {"devices": {"msg": "no connection"}, "jobs": {"skipped": True}}, 12 * ["failed"], "no connection"),
    ("no run", {"devices": {"nodes": []}, "jobs": {"msg": "interrupted"}}, 12 * ["failed"], "interrupted"),
]


@pytest.mark.parametrize(
    ("registered", "verdicts", "reason"), [case[1:] for case in ACCEPTANCES], ids=[case[0] for case in ACCEPTANCES]
)
def test_evidence_of_an_acceptance(registered: dict[str, Any], verdicts: list[str], reason: str | None) -> None:
    hostvars = {"tenant-a": {f"__gpu_acceptance_{part}": answer for part, answer in registered.items()}}
    records = acceptance_evidence(["tenant-a"], hostvars)
    assert [record["verdict"] for record in records] == verdicts
    assert not reason or reason in records[-1]["reason"]


def test_workers_go_by_the_name_of_their_node() -> None:
    named = {"tenant_worker_tenant": "tenant-a", "tenant_worker_node_name": "gpu-a-0"}
    real = {**named, "gpu_backend": "nvidia", "nvidia_cards": [{"model": "H100", "count": 8}]}
    simulated = {**named, "gpu_simulator_cards": [{"profile": "l4"}]}
    assert simulated_slots(["h100-0"], {"h100-0": simulated}, "tenant-a") == {"gpu-a-0": 10}
    hostvars: dict[str, dict[str, Any]] = {"h100-0": real, "tenant-a": {}}
    assert acceptance_workers(["h100-0"], hostvars, "tenant-a") == ["gpu-a-0"]
    records = verification_evidence(["tenant-a"], hostvars, ["h100-0"], {})
    assert {record["expected"] for record in records if record["id"] == "capacity-a"} == {"8 healthy of gpu-a-0"}
