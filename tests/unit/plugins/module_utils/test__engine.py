# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._engine import Engine, EngineError


class BusyEngine(Engine):
    """Fails the first removals, as podman does while a process does not die."""

    def __init__(self, failures):
        super().__init__("podman", "lab", "1")
        self.failures = failures
        self.removals = 0

    def call(self, *arguments, timeout_s=None):
        self.removals += 1
        if self.removals <= self.failures:
            raise EngineError("given PIDs did not die within timeout")
        return ""


@pytest.mark.parametrize("failures", [pytest.param(0, id="at-once"), pytest.param(1, id="late")])
def test_a_container_that_dies_late_is_removed(failures):
    engine = BusyEngine(failures)
    engine.remove_containers(["lab-a"])
    assert engine.removals == failures + 1


def test_a_container_that_does_not_die_is_an_error():
    with pytest.raises(EngineError, match="did not die"):
        BusyEngine(2).remove_containers(["lab-a"])
