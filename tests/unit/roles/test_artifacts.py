# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The list of artifacts names every image that a role deploys."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from _build.manifest import load_images, load_matrix

from ansible_collections.tenantry.gpu.plugins.module_utils._mirror import parse_reference

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
VERSIONS = ROOT / "inventories/production/group_vars/all/versions.yml"
# What the lab's hosts are made of is no artifact of an installation.
OF_THE_LAB = {"lab_hosts", "lab_images"}
SHAPE = re.compile(r"^\s*(?:- )?image: (.+)$", re.MULTILINE)

List = dict[str, Any]


def texts(role: str, *folders: str) -> str:
    """What stands in some folders of a role."""
    paths = [path for folder in folders for path in sorted((ROOT / "roles" / role / folder).glob("*"))]
    return "\n".join(path.read_text() for path in paths if path.name != "artifacts.yml")


@pytest.mark.parametrize("role", [role for role in ROLES if role not in OF_THE_LAB])
def test_a_role_says_which_images_its_templates_name(role: str) -> None:
    said = ROOT / "roles" / role / "tasks" / "artifacts.yml"
    for image in SHAPE.findall(texts(role, "templates")):
        variable = re.fullmatch(r'"?\{\{ (\w+) \}\}"?', image.strip())
        assert variable, f"{role}: {image} is written into a template; make it a variable of the role."
        assert said.is_file() and variable[1] in said.read_text(), (
            f"{role}: {variable[1]} is deployed and not on the list; name it in {said.relative_to(ROOT)}."
        )


@pytest.mark.parametrize("role", [role for role in ROLES if role not in OF_THE_LAB])
def test_a_role_says_which_images_its_variables_name(role: str) -> None:
    images = re.findall(r"^(\w+_image): (?!\"\"$)", texts(role, "defaults"), re.MULTILINE)
    said = ROOT / "roles" / role / "tasks" / "artifacts.yml"
    missing = [image for image in images if not said.is_file() or image not in said.read_text()]
    assert not missing, f"{role}: not on the list of artifacts: {', '.join(missing)}."


@pytest.mark.parametrize("role", [role for role in ROLES if role not in OF_THE_LAB])
def test_a_role_that_installs_a_chart_says_so(role: str) -> None:
    said = ROOT / "roles" / role / "tasks" / "artifacts.yml"
    if "kubernetes.core.helm:" in texts(role, "tasks"):
        assert said.is_file() and "charts:" in said.read_text()


def test_every_role_that_says_something_is_asked() -> None:
    saying = {role for role in ROLES if (ROOT / "roles" / role / "tasks" / "artifacts.yml").is_file()}
    playbook = (ROOT / "playbooks" / "artifacts.yml").read_text()
    asked = set(re.findall(r"tenantry\.gpu\.(\w+)\n\s+tasks_from: artifacts", playbook)) | {"cni", "cert_manager"}
    known = yaml.safe_load((ROOT / "roles" / "artifacts" / "vars" / "main.yml").read_text())["__artifacts_roles"]
    assert saying == asked
    assert sorted(known) == known
    assert saying <= set(known)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., List]:
    """Runs the playbook's listing with some variables; gives the list."""

    def run(**variables: str) -> List:
        state = tmp_path_factory.mktemp("state")
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/artifacts.yml"]
        values = {"tenantry_state_dir": str(state), "components_source": "upstream", **variables}
        command += [word for name, value in values.items() for word in ("-e", f"{name}={value}")]
        command += ["-i", "inventories/lab"]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "HTTPS_PROXY": "http://127.0.0.1:9"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found: List = yaml.safe_load((state / "artifacts.yml").read_text())
        return found

    return run


def references(found: List) -> set[str]:
    return {image["reference"] for image in found["images"]}


def test_everything_that_a_lab_deploys_is_on_its_list(listed: Callable[..., List]) -> None:
    found = {parse_reference(image).at_mirror for image in references(listed(cert_manager_enabled="false"))}
    images = load_images(ROOT / "images", load_matrix(VERSIONS, ROOT / "galaxy.yml"))
    built = {image.reference for image in images if not image.engine}
    # Only the originals' chart has a job that makes a certificate.
    assert found - built == {"liangjw/kube-webhook-certgen:v1.1.1"}
    assert built <= found


def test_a_choice_changes_the_list(listed: Callable[..., List]) -> None:
    found = listed(
        cni_provider="calico",
        tenant_control_plane_cni_provider="calico",
        tenant_control_plane_kubernetes_version="1.35.6",
        node_source="folder",
        hami_cert_manager="true",
        gpu_backend="nvidia",
        artifacts_architecture="arm64",
    )
    images = references(found)
    assert not [each for each in images if "kube-router" in each]
    assert {image for image in images if "calico/node" in image}
    assert {
        "registry.k8s.io/kube-apiserver:v1.35.6",
        "registry.k8s.io/kube-apiserver:v1.36.3",
        "registry.k8s.io/kube-scheduler:v1.35.6",
    } <= images
    assert "docker.io/liangjw/kube-webhook-certgen:v1.1.1" not in images
    assert [chart["name"] for chart in found["charts"]] == [
        "cert-manager",
        "crd.projectcalico.org.v1",
        "hami",
        "kamaji",
        "metallb",
        "tigera-operator",
    ]
    assert {file["path"].rpartition("/")[2] for file in found["files"]} >= {"kubeadm", "kubelet", "runc.arm64"}
    assert set(found["packages"]["Debian"]) >= {"ca-certificates", "iptables", "kmod", "mount"}
