"""Role datastore: the certificates of another controller, and input that is refused before hosts are changed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from control_plane import ROOT, ControlPlane
from playbook import PLAYBOOK, Run, run_play, run_playbook

EXAMPLE = ROOT / "inventories" / "production"
VERSIONS: dict[str, Any] = yaml.safe_load((EXAMPLE / "group_vars/all/versions.yml").read_text())
FILES = {"ca.crt", "ca.key", "server.crt", "server.key", "root.crt", "root.key"}


@pytest.fixture
def first(control_plane: ControlPlane, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The role's variables after a run on one controller. Its etcd is said to be ready, so nobody is waited for."""
    values = {
        **VERSIONS,
        "tenantry_state_dir": str(tmp_path / "first"),
        "datastore_kubeconfig": str(control_plane.kubeconfig),
        "datastore_namespace": f"datastore-{uuid4().hex[:8]}",
        "datastore_timeout_s": 1,
    }
    deploy(tmp_path, values)
    namespace = values["datastore_namespace"]
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/datastore/status"
    control_plane.api.patch(path, {"status": {"replicas": 1, "readyReplicas": 1}})
    yield values
    control_plane.api.delete(f"/api/v1/namespaces/{namespace}")


def deploy(folder: Path, values: dict[str, Any], *options: str) -> Run:
    role = {"ansible.builtin.import_role": {"name": "tenantry.gpu.datastore"}}
    after = {"ansible.builtin.debug": {"msg": "after the datastore"}}
    return run_play(folder / "run", {"tasks": [role, after]}, values, *options)


def said(run: Run) -> str:
    """What the run printed, on one line."""
    return " ".join(run.output.split())


def secrets_of(values: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{values['datastore_namespace']}/secrets"


def test_another_controller_takes_the_certificates_of_the_first(
    control_plane: ControlPlane, first: dict[str, Any], tmp_path: Path
) -> None:
    """Another authority would lock out etcd, Kamaji and every tenant."""
    before = control_plane.api.items(secrets_of(first))
    second = {**first, "tenantry_state_dir": str(tmp_path / "second")}
    look = deploy(tmp_path, second, "--check")
    assert look.status == 0, look.output
    assert "after the datastore" in look.output
    assert not (tmp_path / "second").exists()
    taken = deploy(tmp_path, second, "--diff", "-vvv")
    assert taken.status == 0, taken.output
    assert "PRIVATE KEY" not in taken.output
    assert not any(value in taken.output for each in before for value in each["data"].values())
    assert control_plane.api.items(secrets_of(first)) == before
    folder = tmp_path / "second" / "pki" / "datastore"
    assert {each.name: each.stat().st_mode & 0o777 for each in folder.iterdir()} == dict.fromkeys(FILES, 0o600)
    for file in FILES:
        assert (folder / file).read_bytes() == (tmp_path / "first" / "pki" / "datastore" / file).read_bytes()
    again = deploy(tmp_path, second)
    assert "changed=0" in again.output
    assert "Secrets are read" not in again.output, "files that are there need no question"


def test_what_the_cluster_has_not_is_not_made_up(
    control_plane: ControlPlane, first: dict[str, Any], tmp_path: Path
) -> None:
    control_plane.api.delete(f"{secrets_of(first)}/datastore-etcd")
    second, namespace = tmp_path / "second", first["datastore_namespace"]
    run = deploy(tmp_path, {**first, "tenantry_state_dir": str(second)})
    assert (
        f"{second}/pki/datastore lacks certificates, and the Secrets datastore-ca and datastore-etcd in {namespace}"
        " have no server.crt, server.key, root.crt, root.key; bring the folder from the controller that has it, or"
        " remove these Secrets if no etcd runs with them."
    ) in said(run)
    away = control_plane.write_kubeconfig("away", {"token": "none"}, "https://127.0.0.1:1")
    run = deploy(tmp_path, {**first, "tenantry_state_dir": str(second), "datastore_kubeconfig": str(away)})
    assert f"Whether the cluster has the certificates that {second}/pki/datastore lacks could not be read:" in said(run)
    assert not second.exists()


SQL = {"datastore_driver": "PostgreSQL", "datastore_endpoints": ["db.example.org:5432"]}
WITHOUT_TLS = (
    "PostgreSQL at db.example.org:5432 would be spoken to without TLS, which is refused: give the authority of its"
    " server's certificate in datastore_ca_certificate."
)


@pytest.mark.parametrize(
    ("playbook", "variables", "sentence"),
    [
        ("site.yml", SQL, WITHOUT_TLS),
        ("check_inventory.yml", SQL, WITHOUT_TLS),
        (
            "site.yml",
            {"management_cluster_existing_kubeconfig": "/none.conf"},
            "management_cluster_existing_kubeconfig is set and the group management has hosts; empty the one or the"
            " other.",
        ),
        (
            "site.yml",
            {"management_cluster_existing_kubeconfig": "/none.conf", "management_cluster_hosts": []},
            "/none.conf (management_cluster_existing_kubeconfig) is no file on the controller; correct the path.",
        ),
    ],
)
def test_what_cannot_be_is_said_before_hosts_are_changed(
    playbook: str, variables: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    run = run_playbook(tmp_path, EXAMPLE, playbook, **variables)
    assert run.status
    assert sentence in said(run)
    assert len(re.findall(r"^PLAY \[", run.output, re.MULTILINE)) == 1, "a play ran after stage 1's first"
    recap = run.output.partition("PLAY RECAP")[2]
    assert re.findall(r"^(\S+) +: .*\bchanged=(\d+)", recap, re.MULTILINE) == [("localhost", "0")]
    assert not (tmp_path / ".state").exists()


def test_secrets_that_are_encrypted_count_as_given(tmp_path: Path) -> None:
    example = Path(shutil.copytree(EXAMPLE, tmp_path / "production"))
    (tmp_path / "password").write_text("only a test")
    line = subprocess.run(
        [
            PLAYBOOK.with_name("ansible-vault"),
            *("encrypt_string", "--vault-id", f"production@{tmp_path}/password", "--name", "vault_datastore", "hidden"),
        ],
        check=True,
        text=True,
        capture_output=True,
    ).stdout
    (example / "group_vars/all/secrets.yml").write_text(line)
    given = {**SQL, "datastore_username": "kamaji", "datastore_ca_certificate": "authority"}
    (example / "group_vars/all/datastore.yml").write_text(
        yaml.safe_dump({**given, "datastore_password": "{{ vault_datastore }}"})
    )
    run = run_playbook(tmp_path, example, "check_inventory.yml")
    assert run.status == 0, run.output
    run = run_playbook(tmp_path, example, "check_inventory.yml", datastore_password="")
    assert "PostgreSQL at db.example.org:5432 needs datastore_username and datastore_password" in said(run)
