# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The model against decisions that HAMi 2.10.0 and 2.9.0 made themselves, and what replay says of other files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from replay import KINDS, main, replay

from ansible_collections.tenantry.gpu.plugins.module_utils._placement import Version

DECISIONS = Path(__file__).parents[2] / "data" / "hami-decisions"


@pytest.mark.parametrize(
    ("name", "steps", "verdicts", "mutations", "nodes", "cards", "reasons", "binds"),
    [
        ("main-2.10", 3788, 3788, 3788, 3648, 1542, 2106, 0),
        ("main-2.9", 1058, 1058, 1058, 1012, 419, 593, 0),
        ("quota-2.10", 292, 292, 167, 160, 103, 57, 0),
        ("webhook-2.10", 48, 48, 45, 43, 34, 7, 0),
        ("webhook-2.9", 48, 48, 47, 44, 35, 8, 0),
        ("random-2.10", 705, 705, 531, 467, 183, 203, 183),
        ("random-2.9", 705, 705, 639, 550, 201, 321, 201),
        ("surprises-2.10", 9, 9, 9, 9, 6, 3, 6),
        ("surprises-2.9", 9, 9, 9, 9, 5, 4, 5),
    ],
)
def test_hami_decided_the_same(name, steps, verdicts, mutations, nodes, cards, reasons, binds):
    tally = replay([DECISIONS / f"{name}.jsonl.gz"])
    assert [str(difference) for difference in tally.differences] == []
    assert (tally.unreadable, tally.agreed_steps, tally.steps) == ([], steps, steps)
    counts = dict(zip(KINDS, (verdicts, mutations, nodes, cards, reasons, binds)))
    assert tally.agreed == {kind: count for kind, count in counts.items() if count}


def test_every_recording_is_replayed():
    (mark,) = test_hami_decided_the_same.pytestmark
    assert {f"{row[0]}.jsonl.gz" for row in mark.args[1]} == {path.name for path in DECISIONS.glob("*.gz")}


def test_the_rules_of_one_version_do_not_explain_the_other():
    assert replay([DECISIONS / "main-2.9.jsonl.gz"], Version.V2_10).status == 1


SCENARIO = {
    "scenario": "s",
    "nodes": [
        {
            "name": "n",
            "cards": [
                {
                    "id": f"u{index}",
                    "index": index,
                    "count": 2,
                    "devmem": 100,
                    "devcore": 100,
                    "type": "NVIDIA",
                    "health": True,
                }
                for index in range(2)
            ],
        }
    ],
    "steps": [
        {
            "create": {
                "metadata": {"name": "p"},
                "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpumem": "50"}}}]},
            },
            "webhook": {
                "allowed": True,
                "scheduler": "hami-scheduler",
                "limits": [{"nvidia.com/gpumem": "50", "nvidia.com/gpu": "1"}],
            },
            "filter": {"node": "n", "allocated": [[{"uuid": "u1", "memory_mib": 50, "cores": 0}]], "failed": {}},
        },
        {"delete": "p"},
    ],
}


def write(path: Path, **changes: object) -> Path:
    scenario = json.loads(json.dumps(SCENARIO))
    step = scenario["steps"][0]
    step["webhook"].update(changes.pop("webhook", {}))
    step["filter"].update(changes.pop("filter", {}))
    path.write_text(json.dumps({**scenario, **changes}) + "\n\n")
    return path


def test_agreement_is_printed_by_kind(tmp_path, capsys):
    assert main([str(write(tmp_path / "f.jsonl"))]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "webhook verdict        1 of      1 agree   100.00%",
        "webhook mutation       1 of      1 agree   100.00%",
        "node                   1 of      1 agree   100.00%",
        "cards                  1 of      1 agree   100.00%",
        "1 scenarios, 1 steps: 1 agree in everything (100.00%; 99.5% is enough)",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"webhook": {"allowed": False, "message": "no"}},
            'webhook verdict: HAMi [false, "no"], model [true, ""]',
        ),
        (
            {"webhook": {"scheduler": "other"}},
            'webhook mutation: HAMi ["other", [{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "50"}]], '
            'model ["hami-scheduler", [{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "50"}]]',
        ),
        ({"filter": {"node": "m"}}, 'node: HAMi "m", model ["n"]'),
        (
            {"filter": {"allocated": [[{"uuid": "u0", "memory_mib": 50, "cores": 0}]]}},
            'cards: HAMi [[["u0", 50, 0]]], model [[["u1", 50, 0]]]',
        ),
        ({"filter": {"node": None, "failed": {"n": "2/2 X"}}}, 'node: HAMi "refused", model ["n"]'),
        ({"filter": {"passed_without_cards": True}}, 'node: HAMi "passed without cards", model ["n"]'),
    ],
)
def test_a_disagreement_is_printed_with_both_answers(tmp_path, capsys, changes, line):
    assert main([str(write(tmp_path / "f.jsonl", **changes))]) == 1
    assert f"f.jsonl:1 s step 1 pod p: {line}" in capsys.readouterr().out.splitlines()


def test_the_reasons_are_those_of_the_version(tmp_path):
    path = write(tmp_path / "f.jsonl", nodes=[], filter={"node": None, "failed": {}})
    assert replay([path]).status == 0
    full = [{"name": "n", "cards": [{**SCENARIO["nodes"][0]["cards"][0], "count": 0}]}]
    path = write(
        tmp_path / "f.jsonl", nodes=full, filter={"node": None, "failed": {"n": "1/1 CardTimeSlicingExhausted"}}
    )
    assert replay([path]).status == 0
    path = write(tmp_path / "f.jsonl", nodes=full, hami="2.9.0", filter={"node": None, "failed": {"n": "NodeUnfitPod"}})
    assert replay([path]).status == 0
    assert replay([path], Version.V2_10).status == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "a JSON object is wanted"),
        ("{}", "no 'scenario'"),
        (json.dumps({**SCENARIO, "hami": "2.8.1"}), "HAMi 2.8.1 is not modelled; give --hami 2.9 or 2.10"),
        (json.dumps({**SCENARIO, "nodes": [{"name": "n", "cards": [{"count": 1}]}]}), "has no id"),
        (json.dumps({**SCENARIO, "steps": [{"create": {"metadata": {"name": "p"}, "spec": {}}}]}), "no 'webhook'"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, capsys, line, message):
    path = write(tmp_path / "f.jsonl")
    path.write_text(path.read_text() + line)
    assert main([str(path)]) == 2
    told = capsys.readouterr()
    assert "1 scenarios, 1 steps: 1 agree in everything" in told.out
    assert told.err.startswith(f"{path}:3: this is no scenario in the recording's format: ")
    assert message in told.err


def test_a_file_that_cannot_be_read_is_named(tmp_path, capsys):
    damaged = tmp_path / "f.jsonl.gz"
    damaged.write_bytes(gzip.compress(b"{}\n" * 1000)[:-20])
    assert main([str(tmp_path / "none.jsonl"), str(damaged)]) == 2
    assert "none.jsonl cannot be read: [Errno 2] No such file or directory" in capsys.readouterr().err


def test_a_version_that_is_not_modelled_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["f.jsonl", "--hami", "2.8"])
    assert "HAMi 2.8 is not modelled" in capsys.readouterr().err
