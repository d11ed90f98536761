# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Role tenant_control_plane: when it is satisfied with what Kamaji says, and what keeps the API servers apart."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.template import trust_as_template
from rendering import ROLES, Role


def role(status: dict[str, Any], **variables: Any) -> Role:
    """The role for tenant-a, which is to have 1.36.3, and what Kamaji says of it."""
    seen = {"metadata": {"uid": "1"}, "status": status}
    return Role(
        "tenant_control_plane",
        inventory_hostname="tenant-a",
        tenant_control_plane_pod_cidr="10.32.0.0/16",
        tenant_control_plane_service_cidr="10.112.0.0/16",
        ansible_check_mode=False,
        __tenant_control_plane={"changed": False, "result": {"results": [{}, {"result": seen}]}},
        __tenant_control_plane_seen={"resources": [seen]},
        **variables,
    )


def task(file: str, name: str) -> dict[str, Any]:
    tasks = yaml.safe_load((ROLES / "tenant_control_plane" / "tasks" / file).read_text())
    (found,) = (each for each in tasks if each["name"] == name)
    return dict(found)


def status(state: str = "Ready", version: str = "v1.36.3") -> dict[str, Any]:
    return {
        "kubernetesResources": {"version": {"status": state, "version": version}},
        "controlPlaneEndpoint": "192.0.2.100:6443",
        "kubeconfig": {"admin": {"secretName": "tenant-a-admin-kubeconfig", "checksum": "c"}},
    }


SEEN = [
    pytest.param(status(), True, id="ready"),
    pytest.param(status(version="v1.35.6"), False, id="ready-as-it-was"),
    pytest.param(status("Upgrading", "v1.35.6"), False, id="upgrading"),
    pytest.param({}, False, id="new"),
]


@pytest.mark.parametrize(("said", "done"), SEEN)
def test_it_ends_well_with_the_version_that_is_wanted_only(said: dict[str, Any], done: bool) -> None:
    check = task("wait.yml", "The control plane has an address and a kubeconfig")
    there = role(said, __status=said)
    assert all(there.value(condition) for condition in check["ansible.builtin.assert"]["that"]) == done


def test_the_version_that_was_seen_is_said() -> None:
    check = task("wait.yml", "The control plane has an address and a kubeconfig")
    message = trust_as_template(check["ansible.builtin.assert"]["fail_msg"])
    there = role({}, __status=status(version="v1.35.6"), __tenant_control_plane_pods={}, message=message)
    said = there.value("message")
    assert said.startswith("tenant-a: the control plane is not ready with version v1.36.3 after 360 s. ")
    assert "status Ready, version v1.35.6," in said


@pytest.mark.parametrize(("said", "done"), SEEN)
def test_it_waits_again_for_a_version_that_never_came(said: dict[str, Any], done: bool, tmp_path: Any) -> None:
    kubeconfig = tmp_path / "tenant-a.conf"
    kubeconfig.write_text("# TenantControlPlane 1 c\n")
    there = role(said, tenant_control_plane_kubeconfig=str(kubeconfig))
    conditions = task("main.yml", "Workers can join and the kubeconfig is on the controller")["when"]
    assert all(there.value(condition) for condition in conditions) != done


def test_a_rollout_spreads_the_new_api_servers_alone() -> None:
    plane = role({}, tenant_control_plane_replicas=2).one("tenant-control-plane.yml.j2", "TenantControlPlane")
    (constraint,) = plane["spec"]["controlPlane"]["deployment"]["topologySpreadConstraints"]
    assert constraint == {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "matchLabelKeys": ["pod-template-hash"],
    }
