# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Capacity plans for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible.errors import AnsibleFilterError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.tenantry.gpu.plugins.module_utils._plan_report import (
    PLAN_OPTIONS,
    cases_from_options,
    make_plan,
    quota_from_options,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import CaseError
from ansible_collections.tenantry.gpu.plugins.module_utils._snapshot import SnapshotError, declared_hosts


def capacity_plan(
    nodes: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]], **options: Any
) -> dict[str, Any]:
    """Where the cases' pods would land on the nodes, as gpu_capacity_plan returns it."""
    checked = ArgumentSpecValidator(PLAN_OPTIONS).validate({"cases": cases, **options})
    if checked.error_messages:
        raise AnsibleFilterError(f"capacity_plan: {'; '.join(checked.error_messages)}")
    known = checked.validated_parameters
    try:
        return make_plan(declared_hosts(nodes), cases_from_options(known), known, quota_from_options(known))
    except (CaseError, SnapshotError) as error:
        raise AnsibleFilterError(f"capacity_plan: {error}") from error


class FilterModule:
    """Filters of capacity plans."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"capacity_plan": capacity_plan}
