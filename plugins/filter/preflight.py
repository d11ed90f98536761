# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What preflight has to know of an inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Callable

from ansible_collections.tenantry.gpu.plugins.module_utils._site import (
    Site,
    cluster_from,
    describe,
    host_from,
    targets_of,
)


def preflight_site(
    groups: Mapping[str, Sequence[str]],
    hostvars: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any],
    peers: int = 8,
) -> dict[str, Any]:
    """The hosts and clusters of an inventory as plain data, and what each host will dial.

    For all hosts in one call: a filter in each host's task would be loaded anew for each.
    """
    described = dict(describe(groups, hostvars, defaults))
    clusters = {each["name"]: cluster_from(each) for each in described["clusters"]}
    site = Site([host_from(each) for each in described["hosts"]], clusters)
    targets = {host.name: [asdict(target) for target in targets_of(host, site, peers)] for host in site.hosts}
    return {**described, "targets": targets}


class FilterModule:
    """Filters of preflight."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"preflight_site": preflight_site}
