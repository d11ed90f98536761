#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a host's configuration files in one call. Runs on the host: Python 3.9, standard library."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_files
short_description: Write a host's configuration files in one call
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Makes many small text files what they shall be, in one round trip to the host.
  - Every file must contain O(mark), by which the next call knows it. A file without the mark is somebody else's. It is
    kept beside the new one, as C(<path>.<time>.orig), before it is replaced, and never removed.
  - A file is replaced whole or not at all, with mode 0644 and root as its owner.
attributes:
  check_mode:
    support: full
    description: Says which files would change, and changes none.
  diff_mode:
    support: full
    description: Shows each file that changes.
  idempotent:
    support: full
    description: Changes nothing when every file is as it shall be.
options:
  mark:
    description: Text by which a file is known as ours.
    type: str
    required: true
  files:
    description: Path and content of every file that shall be there, or empty content for one that shall not.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Containerd reads its drop-ins
  tenantry.gpu.node_files:
    mark: Written by tenantry.gpu
    files:
      /etc/containerd/config.toml: |
        # Written by tenantry.gpu
        version = 3
        imports = ["/etc/containerd/conf.d/*.toml"]
      /etc/containerd/certs.d/_default/hosts.toml: ""
"""

RETURN = r"""
written:
  description: Files that were written or removed, or would be.
  returned: success
  type: list
  elements: str
  sample: [/etc/containerd/config.toml]
kept:
  description: Where the files of others are, or would be.
  returned: success
  type: list
  elements: str
  sample: [/etc/containerd/config.toml.20261130T120000.orig]
"""

import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule


class FilesError(Exception):
    """What went wrong, in one sentence for the user."""


def read(path: Path) -> str | None:
    """The file's text, or None where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FilesError(f"{path} cannot be read ({error.strerror}); make it a plain file or remove it.") from error


def write(path: Path, content: str) -> None:
    """Replace a file in one step, so that a reader or a cut finds the old one or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=".tenantry-", encoding="utf-8", delete=False
        ) as new:
            new.write(content)
            os.fchmod(new.fileno(), 0o644)
        os.replace(new.name, path)
    except OSError as error:
        raise FilesError(f"{path} cannot be written: {error.strerror}.") from error


def apply(files: dict[str, str], mark: str, check: bool, root: Path = Path("/")) -> dict[str, Any]:
    """Make the files what they shall be; raises FilesError. ``root`` is the host's root folder."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    written, kept, diff = [], [], []
    for name, wanted in sorted(files.items()):
        if wanted and mark not in wanted:
            raise FilesError(f"{name} shall be written without its mark '{mark}'; put it in a comment.")
        path = root / name.lstrip("/")
        found = read(path)
        foreign = found is not None and mark not in found
        if (found or "") == wanted or (foreign and not wanted):
            continue
        written.append(name)
        diff.append({"before_header": name, "after_header": name, "before": found or "", "after": wanted})
        if foreign and found:
            kept.append(f"{name}.{stamp}.orig")
        if check:
            continue
        if foreign and found:
            os.replace(path, f"{path}.{stamp}.orig")
        if wanted:
            write(path, wanted)
        else:
            path.unlink()
    return {"changed": bool(written), "written": written, "kept": kept, "diff": diff}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={"mark": {"type": "str", "required": True}, "files": {"type": "dict", "required": True}},
        supports_check_mode=True,
    )
    try:
        result = apply(module.params["files"], module.params["mark"], module.check_mode)
    except FilesError as error:
        module.fail_json(msg=str(error))
    for path in result["kept"]:
        module.warn(f"{socket.gethostname()}: what somebody else wrote is kept as {path}.")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
