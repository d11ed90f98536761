# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.tenantry.gpu.plugins.filter.kubernetes import FilterModule, declared_change

SAME = {"changed": False, "method": "update", "result": {}}
CREATED = {"changed": True, "method": "create", "result": {"kind": "Secret"}}


def updated(before, after):
    return {"changed": True, "method": "update", "result": {"kind": "X"}, "diff": {"before": before, "after": after}}


STATUS = updated(
    {"metadata": {"resourceVersion": "1", "managedFields": []}, "status": {"ready": False}},
    {"metadata": {"resourceVersion": "2", "managedFields": [{}]}, "status": {"ready": True}},
)
SPEC = updated(
    {"metadata": {"resourceVersion": "1", "generation": 1}, "spec": {"replicas": 1}},
    {"metadata": {"resourceVersion": "2", "generation": 2}, "spec": {"replicas": 2}, "status": {"replicas": 1}},
)


@pytest.mark.parametrize(
    ("answer", "changed"),
    [
        pytest.param(SAME, False, id="nothing"),
        pytest.param(CREATED, True, id="created"),
        pytest.param(STATUS, False, id="status alone"),
        pytest.param(updated({}, {"status": {"ready": True}}), False, id="first status"),
        pytest.param(SPEC, True, id="spec"),
        pytest.param(updated({"data": {"a": "1"}}, {}), True, id="something taken away"),
        pytest.param(updated({"metadata": {}}, {"metadata": {"labels": {"a": "1"}}}), True, id="label"),
        pytest.param({"changed": True, "result": {"results": [SAME, STATUS]}}, False, id="status of many"),
        pytest.param({"changed": True, "result": {"results": [STATUS, SPEC]}}, True, id="spec of many"),
        pytest.param({"failed": True, "msg": "Forbidden"}, False, id="failure"),
    ],
)
def test_a_status_is_no_change(answer, changed):
    assert declared_change(answer) is changed


def test_annotations_that_somebody_else_writes_are_no_change():
    annotated = updated({"metadata": {"annotations": {"at": "1"}}}, {"metadata": {"annotations": {"at": "2"}}})
    labelled = updated({"metadata": {}}, {"metadata": {"annotations": {"at": "2"}, "labels": {"gpu": "on"}}})
    assert declared_change(annotated)
    assert not declared_change(annotated, ["annotations"])
    assert declared_change(labelled, ["annotations"])


def test_the_filter_has_its_name():
    assert FilterModule().filters() == {"declared_change": declared_change}
