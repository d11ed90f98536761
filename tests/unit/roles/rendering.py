# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Values and templates of a role, as Ansible renders them from its defaults, its variables and an inventory's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLES = Path(__file__).resolve().parents[3] / "roles"
VERSIONS = {"tenantry_versions": {"kubernetes": "1.36.3", "kube_vip": "1.0.1", "kamaji": "26.8.2-edge",
                                  "etcd": "3.6.8-0", "konnectivity": "0.36.0"}}  # fmt: skip


class Role:
    """A role with the variables of one host."""

    def __init__(self, name: str, **variables: Any) -> None:
        self._folder = ROLES / name
        loader = DataLoader()
        merged: dict[str, Any] = {"groups": {}, "hostvars": {}, "tenantry_state_dir": "/state", **VERSIONS}
        for part in ("defaults", "vars"):
            merged |= loader.load_from_file(str(self._folder / part / "main.yml"), trusted_as_template=True) or {}
        self._templar = Templar(loader, merged | variables)

    def value(self, name: str) -> Any:
        return self._templar.template(trust_as_template("{{ " + name + " }}"))

    def text(self, template: str, **variables: Any) -> str:
        """A template of the role."""
        templar = self._templar.copy_with_new_env(available_variables=self._templar.available_variables | variables)
        source = (self._folder / "templates" / template).read_text(encoding="utf-8")
        options = {"trim_blocks": True, "lstrip_blocks": False}
        return str(templar.template(trust_as_template(source), overrides=options, convert_data=False))

    def objects(self, template: str, **variables: Any) -> list[dict[str, Any]]:
        return [each for each in yaml.safe_load_all(self.text(template, **variables)) if each]

    def one(self, template: str, kind: str, **variables: Any) -> Mapping[str, Any]:
        """The template's one object of a kind."""
        (found,) = (each for each in self.objects(template, **variables) if each["kind"] == kind)
        return found
