# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.tenantry.gpu.plugins.filter import plan as filter_plugin
from ansible_collections.tenantry.gpu.plugins.filter.plan import capacity_plan

NODES = [{"name": "w0", "cards": [{"profile": "a100-80g", "count": 2}]}]


def test_a_plan_on_profiles():
    result = capacity_plan(NODES, [{"name": "notebooks", "replicas": "6", "memory_mib": 20000, "cores": 30}])
    assert result["fits"]
    assert result["cases"][0]["verdict"] == "notebooks: 6 pods placed on card 1 of w0 (3x), card 0 of w0 (3x)."


def test_options_are_those_of_the_module():
    cases = [{"name": "x", "memory_mib": 5000, "expect": {"outcome": "over_quota"}}]
    assert capacity_plan(NODES, cases, quota={"memory_mib": 4000}, hami_version="2.9")["as_expected"] is True


@pytest.mark.parametrize(
    ("nodes", "cases", "options", "message"),
    [
        (NODES, [{"name": "x", "cores": "many"}], {}, "capacity_plan: .*'many'"),
        (NODES, [{"name": "x", "cards": 1, "colour": 3}], {}, "capacity_plan: .*colour"),
        (NODES, [{"name": "x", "cards": 1}], {"node_policy": "first"}, "capacity_plan: .*node_policy"),
        (NODES, [{"name": "x"}], {}, "capacity_plan: case x: asks for no card"),
        ([{"name": "w0", "cards": [{"profile": "z"}]}], [{"name": "x", "cards": 1}], {}, "node w0: card profile 'z'"),
    ],
)
def test_what_is_wrong_is_told(nodes, cases, options, message):
    with pytest.raises(AnsibleFilterError, match=message):
        capacity_plan(nodes, cases, **options)


def test_every_option_is_documented_with_its_default():
    path = filter_plugin.__file__.replace("plan.py", "capacity_plan.yml")
    with open(path, encoding="utf-8") as text:
        documented = yaml.safe_load(text)["DOCUMENTATION"]["options"]
    spec = {name: option.get("default") for name, option in filter_plugin.PLAN_OPTIONS.items()}
    assert spec == {name: option.get("default") for name, option in documented.items() if name != "_input"}
