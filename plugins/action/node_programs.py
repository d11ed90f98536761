# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of node_programs: copies to the host what it lacks, after a look at the checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.tenantry.gpu.plugins.module_utils._checksums import ArtifactsError, read_sums, verify

MODULE = "tenantry.gpu.node_programs"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Ask the host what it lacks, bring that, and let it install."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Answer what the module answers."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            result.update(self._ensure(task_vars or {}))
        except ArtifactsError as error:
            result.update(failed=True, msg=str(error))
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return result

    def _ensure(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        folder = Path(str(self._task.args.get("src", "")))
        programs = dict(self._task.args.get("programs") or {})
        sums = read_sums(folder)
        absent = [name for name in programs if name not in sums]
        if absent:
            raise ArtifactsError(
                f"{folder} holds no {', '.join(sorted(absent))}; fetch it with playbooks/artifacts.yml."
            )
        arguments = {**self._task.args, "checksums": {name: sums[name] for name in programs}}
        answer = self._module(arguments, task_vars)
        missing = answer.get("missing") or []
        if not missing or self._task.check_mode:
            return answer
        verify(folder, missing, sums)
        received = {}
        tmp = self._connection._shell.tmpdir or self._make_tmp_path()
        for number, name in enumerate(missing):
            received[name] = self._connection._shell.join_path(tmp, f"artifact-{number}")
            self._transfer_file(str(folder / name), received[name])
        return self._module({**arguments, "received": received}, task_vars)

    def _module(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args=arguments, task_vars=task_vars, persist_files=True
        )
        return answer
