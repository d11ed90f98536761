# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import capacity
import pytest


def test_every_scenario_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("NODES", 4), ("PODS", 30), ("NAIVE_PODS", 1)):
        monkeypatch.setattr(capacity, name, number)
    results = capacity.measure()
    assert [result.scenario for result in results] == [scenario.name for scenario in capacity.SCENARIOS]
    assert all(result.placed == 30 and result.a_second > 0 and result.ratio > 0 for result in results)
