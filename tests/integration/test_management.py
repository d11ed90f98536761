"""What stage 3 asks of a management cluster that is there already, and the DataStores that it declares."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import ROOT, ApiError, ControlPlane, program
from playbook import Run, run_play
from rendering import Role

# The original's chart, where it can be had: TENANTRY_KAMAJI_CHART=.../charts/kamaji; only its crds/ are read.
KAMAJI_CHART = Path(os.environ.get("TENANTRY_KAMAJI_CHART") or ROOT / "images" / "standin-kamaji" / "chart")
DATASTORES = "/apis/kamaji.clastix.io/v1alpha1/datastores"
VERSIONS: dict[str, Any] = yaml.safe_load((ROOT / "inventories/lab/group_vars/all/versions.yml").read_text())
EXISTING = {
    "tasks": [{"ansible.builtin.include_role": {"name": "tenantry.gpu.management_cluster", "tasks_from": "existing"}}]
}
SQL = {"datastore_ca_certificate": "authority", "datastore_username": "kamaji", "datastore_password": "hunter2secret"}
ETCD = {
    "datastore_ca_certificate": "authority",
    "datastore_ca_key": "hunter2secret",
    "datastore_client_certificate": "root",
    "datastore_client_key": "hunter2secret",
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def take_over(state: Path, kubeconfig: Path, *options: str, **variables: Any) -> Run:
    """Stage 3's look at a cluster that is there already."""
    values = {
        **VERSIONS,
        "tenantry_state_dir": str(state),
        "management_cluster_existing_kubeconfig": str(kubeconfig),
        "management_cluster_existing_storage": False,
        **variables,
    }
    return run_play(state.parent / "run", EXISTING, values, *options)


def said(run: Run) -> str:
    """What the run printed, on one line."""
    return " ".join(run.output.split())


def test_a_cluster_that_fits_is_taken(control_plane: ControlPlane, state: Path) -> None:
    run = take_over(state, control_plane.kubeconfig)
    assert run.status == 0, run.output
    kept = state / "kubeconfigs" / "management.conf"
    assert kept.read_text() == control_plane.kubeconfig.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
    run = take_over(state, control_plane.kubeconfig)
    assert "changed=0" in run.output


def test_a_look_changes_nothing(control_plane: ControlPlane, state: Path) -> None:
    run = take_over(state, control_plane.kubeconfig, "--check")
    assert run.status == 0, run.output
    assert not state.exists()


def test_what_does_not_fit_is_said_in_a_sentence(control_plane: ControlPlane, state: Path) -> None:
    missing = take_over(state, state / "none.conf")
    assert "none.conf (management_cluster_existing_kubeconfig) is no file on the controller; correct the path." in said(
        missing
    )
    away = control_plane.write_kubeconfig("away", {"token": "none"}, "https://127.0.0.1:1")
    assert "the cluster does not answer to these credentials" in said(take_over(state, away))
    old = said(take_over(state, control_plane.kubeconfig, management_cluster_existing_oldest="9.1"))
    assert "the cluster runs Kubernetes 1.36, and what goes here is 9.1 to 1.36; take another cluster" in old
    nobody = said(take_over(state, control_plane.new_kubeconfig("nobody")))
    assert "these credentials are no administrator of the cluster" in nobody
    storage = {"management_cluster_existing_storage": True}
    no_class = said(take_over(state, control_plane.kubeconfig, **storage))
    assert "the cluster has no default StorageClass for the datastore; name one in datastore_storage_class" in no_class
    wrong = take_over(state, control_plane.kubeconfig, **storage, management_cluster_existing_storage_class="fast")
    assert "the cluster has no StorageClass fast; create it, or correct datastore_storage_class." in said(wrong)
    assert not state.exists()


def kubeconfig(user: str) -> str:
    """Of a cluster whose API does not answer."""
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority-data": "b3Vycw=="}
    names = {"cluster": "ours", "user": user}
    return yaml.safe_dump(
        {
            "clusters": [{"name": "ours", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "ours", "context": names}],
            "current-context": "ours",
        }
    )


@pytest.mark.parametrize(
    ("kept", "asked"),
    [(kubeconfig("before its renewal"), []), ("", ["reset", "init"])],
    ids=["finished", "cut off"],
)
def test_only_an_init_that_was_cut_off_is_reset(
    kept: str, asked: list[str], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished cluster may not answer this controller, and have another admin.conf after kubeadm certs renew."""
    state.mkdir()
    kubeadm = state / "kubeadm"
    kubeadm.write_text(
        f'#!/bin/sh\necho "$1" >> {state}/asked\n[ "$1" = reset ] || {{ echo error: port taken >&2; exit 1; }}\n'
    )
    kubeadm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{state}:{os.environ['PATH']}")
    if kept:
        (state / "management.conf").write_text(kept)
    values = {
        **VERSIONS,
        "tenantry_state_dir": str(state),
        "management_cluster_kubeconfig": str(state / "management.conf"),
        "management_cluster_address": "192.0.2.10",
        "management_cluster_reset_incomplete": True,
    }
    # A fact and no extra variable: what a task registers must be able to take its place.
    read = {"__management_cluster_admin": {"rc": 0, "stdout": kubeconfig("administrator").strip()}}
    role = {"name": "tenantry.gpu.management_cluster", "tasks_from": "initialise"}
    run = run_play(
        state / "run", {"tasks": [{"ansible.builtin.set_fact": read}, {"ansible.builtin.include_role": role}]}, values
    )
    log = state / "asked"
    assert (log.read_text().split() if log.exists() else []) == asked, run.output
    if asked:
        assert "localhost was not initialised: error: port taken; the next run goes on from here" in said(run)
    else:
        assert run.status == 0, run.output
        assert (state / "management.conf").read_text() == kubeconfig("administrator")


@contextmanager
def ready_datastores(control_plane: ControlPlane) -> Iterator[None]:
    """Says what Kamaji would: that every DataStore is ready."""
    stopped = threading.Event()

    def say() -> None:
        while not stopped.wait(0.2):
            try:
                for each in control_plane.api.items(DATASTORES):
                    path = f"{DATASTORES}/{each['metadata']['name']}/status"
                    if not each.get("status", {}).get("ready"):
                        control_plane.api.patch(path, {"status": {"ready": True}})
            except ApiError:
                time.sleep(0.2)

    thread = threading.Thread(target=say)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@pytest.fixture
def kamaji_chart(tmp_path: Path) -> Path:
    """A chart with Kamaji's resources and no Kamaji."""
    chart = tmp_path / "chart"
    (chart / "crds").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": "kamaji", "version": "1.0.0"}))
    for source in (KAMAJI_CHART / "crds").glob("*.yaml"):
        text = source.read_text()
        (chart / "crds" / source.name).write_text(text)
    return chart


CLIENT = {"datastore_client_certificate": "client", "datastore_client_key": "hunter2secret"}


@pytest.mark.parametrize(
    ("driver", "variables"),
    [("etcd", ETCD), ("PostgreSQL", SQL), ("MySQL", SQL), ("NATS", {**SQL, **CLIENT})],
    ids=["etcd", "PostgreSQL", "MySQL", "NATS with a client certificate"],
)
def test_a_datastore_that_is_there_already(
    driver: str, variables: dict[str, Any], control_plane: ControlPlane, kamaji_chart: Path, tmp_path: Path
) -> None:
    values = {
        **VERSIONS,
        **variables,
        "tenantry_state_dir": str(tmp_path),
        "datastore_driver": driver,
        "datastore_endpoints": ["datastore.example.org:2379"],
        "datastore_kubeconfig": str(control_plane.kubeconfig),
        "kamaji_kubeconfig": str(control_plane.kubeconfig),
        "kamaji_chart_ref": str(kamaji_chart),
        "kamaji_helm_binary": str(program("helm", "helm")),
        "kamaji_datastore_name": f"of-{driver.lower()}",
        "kamaji_timeout_s": 20,
    }
    play = {"roles": ["tenantry.gpu.datastore", "tenantry.gpu.kamaji"]}
    with ready_datastores(control_plane):
        run = run_play(tmp_path / "first", play, values)
        assert run.status == 0, run.output
        again = run_play(tmp_path / "second", play, values)
    assert "changed=0" in again.output
    assert "hunter2secret" not in run.output + again.output
    spec = control_plane.api.get(f"{DATASTORES}/of-{driver.lower()}")["spec"]
    secrets = {
        each["metadata"]["name"]: each["data"]
        for each in control_plane.api.items("/api/v1/namespaces/kamaji-system/secrets")
    }
    for reference in references(spec):
        assert secrets[reference["name"]][reference["keyPath"]]


def test_another_version_of_kamaji_has_its_own_resource_definitions(
    control_plane: ControlPlane, kamaji_chart: Path, tmp_path: Path
) -> None:
    """Helm alone would leave the old ones, and the API drop what it does not know."""
    values = {
        **VERSIONS,
        "tenantry_state_dir": str(tmp_path),
        "kamaji_kubeconfig": str(control_plane.kubeconfig),
        "kamaji_chart_ref": str(kamaji_chart),
        "kamaji_helm_binary": str(program("helm", "helm")),
        "kamaji_datastore_name": "newer",
        "kamaji_timeout_s": 20,
        "datastore_driver": "etcd",
    }
    foreseen = run_play(tmp_path / "check", {"roles": ["tenantry.gpu.kamaji"]}, values, "--check")
    assert foreseen.status == 0, foreseen.output
    with ready_datastores(control_plane):
        run = run_play(tmp_path / "first", {"roles": ["tenantry.gpu.kamaji"]}, values)
        assert run.status == 0, run.output
        for source in (kamaji_chart / "crds").glob("*datastores*.yaml"):
            crd = yaml.safe_load(source.read_text())
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "of the newer version"
            source.write_text(yaml.safe_dump(crd))
        chart = {"apiVersion": "v2", "name": "kamaji", "version": "1.0.1"}
        (kamaji_chart / "Chart.yaml").write_text(yaml.safe_dump(chart))
        run = run_play(tmp_path / "second", {"roles": ["tenantry.gpu.kamaji"]}, values)
        assert run.status == 0, run.output
        again = run_play(tmp_path / "third", {"roles": ["tenantry.gpu.kamaji"]}, values)
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/datastores.kamaji.clastix.io"
    schema = control_plane.api.get(path)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert schema["description"] == "of the newer version"
    assert "changed=0 " in again.output


def test_members_are_not_taken_away(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Two of three members that stop would take the quorum with them."""
    where = {"datastore_namespace": "shrinking", "datastore_kubeconfig": str(control_plane.kubeconfig)}
    role = Role("datastore", datastore_members=3, **where)
    three = dict(role.one("etcd.yml.j2", "StatefulSet"))
    three["spec"] |= {"replicas": 3}
    control_plane.api.create("/api/v1/namespaces", {"metadata": {"name": "shrinking"}})
    control_plane.api.create("/apis/apps/v1/namespaces/shrinking/statefulsets", three)
    values = {**VERSIONS, **where, "tenantry_state_dir": str(tmp_path), "datastore_members": 1}
    run = run_play(tmp_path / "run", {"roles": ["tenantry.gpu.datastore"]}, values)
    assert (
        "The datastore has 3 members and datastore_members is 1; members are not taken away, because the others would"
        " lose their quorum: set it to 3." in said(run)
    )
    assert control_plane.api.get("/apis/apps/v1/namespaces/shrinking/statefulsets/datastore")["spec"]["replicas"] == 3
    control_plane.api.delete("/api/v1/namespaces/shrinking")


def test_several_api_servers_of_a_tenant(control_plane: ControlPlane, kamaji_chart: Path) -> None:
    """The API takes what is said of spreading as it is written, nothing is dropped as unknown."""
    for source in (kamaji_chart / "crds").glob("*.yaml"):
        control_plane.api.ensure(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(source.read_text())
        )
    role = Role(
        "tenant_control_plane",
        inventory_hostname="spread",
        tenant_control_plane_replicas=2,
        tenant_control_plane_pod_cidr="10.32.0.0/16",
        tenant_control_plane_service_cidr="10.112.0.0/16",
    )
    namespace, tenant, budget = role.objects("tenant-control-plane.yml.j2")
    control_plane.api.create("/api/v1/namespaces", namespace)
    made = control_plane.api.create("/apis/kamaji.clastix.io/v1alpha1/namespaces/spread/tenantcontrolplanes", tenant)
    deployment = made["spec"]["controlPlane"]["deployment"]
    for name, value in tenant["spec"]["controlPlane"]["deployment"].items():
        assert deployment[name] == value
    control_plane.api.create("/apis/policy/v1/namespaces/spread/poddisruptionbudgets", budget)
    control_plane.api.delete("/api/v1/namespaces/spread")


def references(part: Any) -> list[dict[str, str]]:
    """All secretReferences below a part of a spec."""
    if isinstance(part, list):
        return [found for each in part for found in references(each)]
    if not isinstance(part, dict):
        return []
    own = [part["secretReference"]] if "secretReference" in part else []
    return own + [found for each in part.values() for found in references(each)]
