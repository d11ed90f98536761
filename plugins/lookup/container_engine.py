# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which container engine this machine's lab runs in."""

from __future__ import annotations

DOCUMENTATION = r"""
name: container_engine
author: The tenantry.gpu maintainers (@tenantry)
version_added: "0.1.0"
short_description: The container engine that a lab takes on this machine
description:
  - Gives V(podman) or V(docker), whichever this user can run a lab with.
  - For root it is podman where it is installed, since it needs no daemon. For another user it is docker where its
    socket may be written. Where there is neither it is podman, which the lab installs on Debian.
  - Looks at files only, and runs no program.
options:
  _terms:
    description: None are taken.
"""

EXAMPLES = r"""
- name: The engine
  ansible.builtin.debug:
    msg: "{{ lookup('tenantry.gpu.container_engine') }}"
"""

RETURN = r"""
_raw:
  description: The engine's program.
  type: list
  elements: str
"""

import os
import shutil
from collections.abc import Callable
from typing import Any

from ansible.plugins.lookup import LookupBase

DOCKER_SOCKET = "/var/run/docker.sock"


def choose(root: bool, which: Callable[[str], str | None], docker_answers: bool) -> str:
    """Podman or docker, by what is installed and who asks."""
    docker = docker_answers and which("docker") is not None
    if root and which("podman"):
        return "podman"
    return "docker" if docker else "podman"


def docker_socket_open(address: str) -> bool:
    """Whether docker's daemon may be asked at ``address`` (DOCKER_HOST, or "" for its default)."""
    if address and not address.startswith("unix://"):
        return True
    return os.access(address[len("unix://") :] or DOCKER_SOCKET, os.W_OK)


class LookupModule(LookupBase):  # type: ignore[misc]
    """The lookup."""

    def run(self, terms: list[Any], variables: Any = None, **kwargs: Any) -> list[str]:
        self.set_options(var_options=variables, direct=kwargs)
        return [choose(os.geteuid() == 0, shutil.which, docker_socket_open(os.environ.get("DOCKER_HOST", "")))]
