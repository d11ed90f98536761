"""Every folder of targets/ holds a module's tasks; they run against a real API server, with the module's own rights."""

from __future__ import annotations

from pathlib import Path

import pytest
from control_plane import ControlPlane
from playbook import run_play

TARGETS = Path(__file__).parent / "targets"
# What looks at two tenants gets a second API; starting one takes seconds.
TWO_CONTROL_PLANES = ("tenant_isolation_info",)


@pytest.mark.parametrize("target", sorted(path.parent.parent.name for path in TARGETS.glob("*/tasks/main.yml")))
def test_target(
    target: str,
    control_plane: ControlPlane,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    target_tmp = tmp_path / "target"
    target_tmp.mkdir()
    variables = {
        "admin_kubeconfig": str(control_plane.kubeconfig),
        "kubeconfig": str(control_plane.kubeconfig_of_module(target)),
        "target_tmp": str(target_tmp),
    }
    if target in TWO_CONTROL_PLANES:
        second: ControlPlane = request.getfixturevalue("second_control_plane")
        variables["second_kubeconfig"] = str(second.kubeconfig_of_module(target))
    tasks = [{"ansible.builtin.import_tasks": str(TARGETS / target / "tasks" / "main.yml")}]
    run = run_play(tmp_path / "run", {"name": target, "tasks": tasks}, variables)
    if run.status:
        pytest.fail(f"{target}: {run.failure()}\nThe whole output: {tmp_path / 'run' / 'output.log'}", pytrace=False)
