"""Helm releases that a killed run left, and charts that fail: role helm_release, as the role cert_manager uses it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
import yaml
from control_plane import ControlPlane, program
from playbook import Run, run_play

NAMESPACE = "cert-manager"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets?labelSelector=owner%3Dhelm"
STANDS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stands", "namespace": NAMESPACE}}
# Nothing runs here, so a Helm that waits for this one waits for ever.
NEVER_READY = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "never", "namespace": NAMESPACE},
    "spec": {
        "selector": {"matchLabels": {"app": "never"}},
        "template": {
            "metadata": {"labels": {"app": "never"}},
            "spec": {"containers": [{"name": "never", "image": "never"}]},
        },
    },
}
# The API refuses a job that restarts for ever: a check after the installation that fails at once.
FAILING_CHECK = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "check", "namespace": NAMESPACE, "annotations": {"helm.sh/hook": "post-install"}},
    "spec": {
        "template": {"spec": {"restartPolicy": "Always", "containers": [{"name": "check", "image": "check"}]}},
    },
}


def chart(folder: Path, *objects: dict[str, object]) -> Path:
    """A chart of these objects, always of the same name and version."""
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": NAMESPACE, "version": "1.0.0"}))
    (folder / "templates" / "all.yaml").write_text(yaml.safe_dump_all(objects))
    return folder


def statuses(control_plane: ControlPlane) -> list[str]:
    """Status of each revision of the release, the oldest first."""
    labels = [secret["metadata"]["labels"] for secret in control_plane.api.items(SECRETS)]
    return [label["status"] for label in sorted(labels, key=lambda label: int(label["version"]))]


def helm(control_plane: ControlPlane, *arguments: str | Path) -> list[str | Path]:
    """The command line of Helm for the release's cluster and namespace."""
    return [
        program("helm", "helm"), *arguments, "--namespace", NAMESPACE, "--kubeconfig", control_plane.kubeconfig,
    ]  # fmt: skip


def interrupt(control_plane: ControlPlane, folder: Path, *, waiting_for: str) -> None:
    """Kill a Helm that waits for its chart to be ready."""
    upgrade = ("upgrade", "--install", "cert-manager", folder, "--wait", "--create-namespace")
    running = subprocess.Popen(helm(control_plane, *upgrade))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and waiting_for not in statuses(control_plane):
        time.sleep(0.1)
    running.kill()
    running.wait()
    assert waiting_for in statuses(control_plane)


def deploy(control_plane: ControlPlane, folder: Path, run_folder: Path) -> Run:
    """Run the role cert_manager with a chart."""
    variables = {
        "tenantry_state_dir": str(run_folder),
        "tenantry_versions": {"cert_manager": "1.0.0"},
        "cert_manager_kubeconfig": str(control_plane.kubeconfig),
        "cert_manager_chart_ref": str(folder),
        "cert_manager_helm_binary": str(program("helm", "helm")),
    }
    return run_play(run_folder, {"roles": ["tenantry.gpu.cert_manager"]}, variables)


@pytest.fixture(autouse=True)
def no_release(control_plane: ControlPlane) -> None:
    """What a test before left is gone."""
    uninstall = ("uninstall", "cert-manager", "--ignore-not-found")
    subprocess.run(helm(control_plane, *uninstall), check=True, capture_output=True)


def test_an_interrupted_installation_goes_on(control_plane: ControlPlane, tmp_path: Path) -> None:
    interrupt(control_plane, chart(tmp_path / "killed", STANDS, NEVER_READY), waiting_for="pending-install")
    run = deploy(control_plane, chart(tmp_path / "chart", STANDS), tmp_path / "run")
    assert run.status == 0, run.output
    assert statuses(control_plane) == ["deployed"]


def test_an_interrupted_upgrade_goes_on_from_the_revision_before(control_plane: ControlPlane, tmp_path: Path) -> None:
    before = chart(tmp_path / "before", STANDS)
    subprocess.run(helm(control_plane, "install", "cert-manager", before, "--create-namespace"), check=True)
    interrupt(control_plane, chart(tmp_path / "killed", STANDS, NEVER_READY), waiting_for="pending-upgrade")
    after = chart(tmp_path / "after", STANDS | {"data": {"new": "yes"}})
    (after / "Chart.yaml").write_text((after / "Chart.yaml").read_text().replace("1.0.0", "1.0.1"))
    run = deploy(control_plane, after, tmp_path / "run")
    assert run.status == 0, run.output
    assert statuses(control_plane) == ["superseded", "deployed"]
    assert control_plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/stands")["data"] == {"new": "yes"}


def test_a_failing_check_fails_the_run_with_its_cause(control_plane: ControlPlane, tmp_path: Path) -> None:
    run = deploy(control_plane, chart(tmp_path / "chart", STANDS, FAILING_CHECK), tmp_path / "run")
    assert run.status
    assert "cert-manager: Failure when executing Helm command" in run.output
    assert 'Job.batch "check" is invalid' in run.output
    assert "at the second try" not in run.output
    assert statuses(control_plane) == ["failed"]
