# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""What every module's documentation promises besides its text: a group, and rights that stand in a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
RIGHTS = ROOT / "docs" / "reference" / "rights"
MODULES = {path.stem: path.read_text() for path in sorted((ROOT / "plugins" / "modules").glob("*.py"))}
OF_A_CLUSTER = [name for name, text in MODULES.items() if "kubernetes.core.k8s_auth_options" in text]


def test_every_module_of_a_cluster_is_in_the_action_group() -> None:
    groups: dict[str, list[Any]] = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())["action_groups"]
    assert [entry for entry in groups["all"] if isinstance(entry, str)] == OF_A_CLUSTER


@pytest.mark.parametrize("name", OF_A_CLUSTER)
def test_every_module_of_a_cluster_has_its_rights_in_a_manifest(name: str) -> None:
    assert f"docs/reference/rights/{name}.yml" in MODULES[name]
    role = yaml.safe_load((RIGHTS / f"{name}.yml").read_text())
    assert (role["kind"], role["metadata"]["name"]) == ("ClusterRole", f"tenantry-gpu-{name.replace('_', '-')}")
    verbs = {verb for rule in role["rules"] for verb in rule["verbs"]}
    assert "*" not in verbs


def test_every_manifest_belongs_to_a_module() -> None:
    assert {path.stem for path in RIGHTS.glob("*.yml")} <= set(MODULES)
