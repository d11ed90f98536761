# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of the modules that mirror artifacts and look at a mirror; doc_fragments/artifacts.py says what they mean."""

from __future__ import annotations

from typing import Any

_NEEDED = {"type": "str", "required": True}
_OPTIONAL = {"type": "str", "default": ""}
_CHART = {
    "name": _NEEDED,
    "version": _NEEDED,
    "ref": _NEEDED,
    "repo_url": _OPTIONAL,
    "values": {"type": "dict", "default": {}},
    "kubernetes_version": _OPTIONAL,
}
OPTIONS: dict[str, Any] = {
    "folder": {"type": "path", "required": True},
    "registry": _OPTIONAL,
    "images": {"type": "list", "elements": "str", "default": []},
    "charts": {"type": "list", "elements": "dict", "default": [], "options": _CHART},
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"path": _NEEDED, "url": _NEEDED, "checksum_url": _NEEDED},
    },
    "concurrency": {"type": "int", "default": 4},
    "auth_file": _OPTIONAL,
    "helm": {"type": "str", "default": "helm"},
}
