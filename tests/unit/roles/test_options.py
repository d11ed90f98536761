# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""``-e option=false`` gives a role the text "false", which Jinja takes for true: switches are read with ``bool``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from rendering import ROLES

SPECS = sorted(ROLES.glob("*/meta/argument_specs.yml"))
# Handed to a module as it is, which knows its type.
HANDED_ON = r'^\s*[\w.]+: "\{\{ %s \}\}"$'


def switches(spec: str) -> set[str]:
    entries = yaml.safe_load(spec)["argument_specs"].values()
    return {
        name
        for entry in entries
        for name, option in (entry.get("options") or {}).items()
        if option.get("type") == "bool"
    }


def expressions(text: str) -> Iterator[str]:
    """Lines without comments and without what stands in quotes inside of them."""
    for line in text.splitlines():
        if not line.lstrip().startswith("#"):
            yield re.sub(r"'[^']*'", "''", line)


@pytest.mark.parametrize("spec", SPECS, ids=[path.parts[-3] for path in SPECS])
def test_switches_are_read_as_booleans(spec):
    role = spec.parents[1]
    names = switches(spec.read_text(encoding="utf-8"))
    files = [path for part in ("tasks", "vars", "handlers") for path in role.glob(f"{part}/*.yml")]
    read = [
        f"{path.name}: {line.strip()}"
        for path in files
        for line in expressions(path.read_text(encoding="utf-8"))
        for name in names
        if re.search(rf"(?<!set )\b{name}\b(?!:|=| \| bool)", line) and not re.match(HANDED_ON % name, line)
    ]
    assert read == []
