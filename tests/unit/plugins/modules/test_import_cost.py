# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import ansible_collections

pytest.importorskip("kubernetes")

PROGRAM = """
import sys
import ansible_collections
ansible_collections.__path__[:] = sys.argv[2].split(":")
import ansible_collections.kubernetes.core.plugins.modules.k8s_info
before = set(sys.modules)
__import__("ansible_collections.tenantry.gpu.plugins.modules." + sys.argv[1])
ours = "ansible_collections.tenantry"
print(*sorted(name for name in set(sys.modules) - before if not name.startswith(ours)))
"""


@pytest.mark.parametrize("module", ["gpu_capacity_plan", "gpu_scheduling_verify", "hami_device_info"])
def test_importing_a_module_costs_what_kubernetes_core_s_own_costs(module: str) -> None:
    folders = ":".join(map(os.path.abspath, ansible_collections.__path__))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, folders], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []
