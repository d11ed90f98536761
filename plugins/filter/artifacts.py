# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filters of the role artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.tenantry.gpu.plugins.module_utils._checksums import ArtifactsError
from ansible_collections.tenantry.gpu.plugins.module_utils._mirror import complete_list


def artifact_list(
    hosts: Iterable[str],
    hostvars: Mapping[str, Mapping[str, Any]],
    roles: Iterable[str],
    own: Mapping[str, Any],
    bases: Mapping[str, str],
    architecture: str = "amd64",
    lock: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything that roles said on hosts, once each and sorted."""
    facts = [f"__{role}_needs" for role in roles]
    wanted = [own, *(hostvars[host].get(fact) or {} for host in hosts for fact in facts)]
    try:
        return complete_list(wanted, bases, architecture, lock or {})
    except ArtifactsError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of artifacts."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"artifact_list": artifact_list}
