# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task of kubernetes.core has changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Callable

# These move with an object's status; a spec that moves is in the difference itself.
BOOKKEEPING = {"generation", "managedFields", "resourceVersion"}


def declared_change(answer: Mapping[str, Any], moving: Collection[str] = ()) -> bool:
    """Whether a result of ``kubernetes.core.k8s``, run with diff, holds a change that the task itself made.

    The module compares an object before and after as a whole (kubernetes.core 6, ``diff_objects``), so a controller
    that writes the status in between makes it say changed. ``moving`` are further parts of the metadata that somebody
    else writes.
    """
    result = answer.get("result") or {}
    parts = result.get("results", [answer])
    return any(part.get("changed") and _declared(part, BOOKKEEPING | set(moving)) for part in parts)


def _declared(part: Mapping[str, Any], moving: Collection[str]) -> bool:
    diff = part.get("diff")
    if not diff:
        return True  # created, or deleted
    return any(
        set(side) - {"metadata", "status"} or set(side.get("metadata") or {}) - set(moving)
        for side in (diff["before"], diff["after"])
    )


class FilterModule:
    """Filters of objects in a cluster."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"declared_change": declared_change}
