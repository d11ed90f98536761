# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The production example sets nothing that no role takes, and explains what it sets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "inventories" / "production"
# What several roles or playbooks read, beside the roles' own arguments.
SHARED = {
    "gpu_backend",
    "nvidia_cards",
    "tenantry_artifacts_dir",
    "tenantry_cache_dir",
    "tenantry_components",
    "tenantry_helm_binary",
    "tenantry_reboot_batch",
    "tenantry_registry_mirror",
    "tenantry_state_dir",
    "tenantry_versions",
}
DOCUMENTATION_RANGES = ("192.0.2.", "198.51.100.", "203.0.113.")


def arguments() -> dict[str, dict[str, Any]]:
    """Every argument of every role."""
    found: dict[str, dict[str, Any]] = {}
    for path in (ROOT / "roles").glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            found |= entry.get("options", {})
    return found


def files() -> list[Path]:
    return sorted((EXAMPLE / "group_vars").glob("*/*.yml"))


def host_variables(group: dict[str, Any]) -> Iterator[str]:
    for variables in (group.get("hosts") or {}).values():
        yield from variables or ()
    for child in (group.get("children") or {}).values():
        yield from host_variables(child or {})


def test_every_variable_is_an_argument_of_a_role() -> None:
    used = set(host_variables(yaml.safe_load((EXAMPLE / "hosts.yml").read_text())["all"]))
    for path in files():
        # Those that a reader may take the # from count as well.
        used |= set(yaml.safe_load(path.read_text())) | set(
            re.findall(r"^# ([a-z_]+_[a-z_]+): ", path.read_text(), re.M)
        )
    assert {name for name in used - set(arguments()) - SHARED if not name.startswith("ansible_")} == set()


def test_every_value_is_one_that_the_role_knows() -> None:
    known = arguments()
    for path in files():
        text = path.read_text()
        # Those that a reader may take the # from count as well.
        for name, value in re.findall(r"^(?:# )?([a-z_]+): ([A-Za-z0-9_.-]+)$", text, re.M):
            choices = known.get(name, {}).get("choices")
            assert choices is None or value in map(str, choices), f"{path}: {name}: {value} is none of {choices}"


def test_every_variable_is_explained_where_it_stands() -> None:
    for path in files():
        if path.name == "versions.yml":
            continue
        blocks = re.split(r"\n\s*\n", path.read_text())
        bare = [block for block in blocks if re.search(r"^\w+:", block, re.M) and not re.search(r"^# ", block, re.M)]
        assert [block for block in bare if not block.startswith("ansible_")] == [], path


def test_every_address_is_of_a_documentation_range() -> None:
    for path in (EXAMPLE / "hosts.yml", *files()):
        for address in re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", path.read_text()):
            private = address.startswith("10.")  # pods and services
            assert private or address.startswith(DOCUMENTATION_RANGES), f"{path}: {address}"


def test_there_is_no_secret() -> None:
    names = [path.name for path in EXAMPLE.rglob("*") if path.is_file()]
    assert "secrets.yml" not in names
    template = yaml.safe_load((EXAMPLE / "group_vars" / "all" / "secrets.yml.example").read_text())
    assert set(template.values()) == {"replace me"}
