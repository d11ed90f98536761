# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Calico comes by two charts since 3.32: resource definitions, and an operator whose objects are of these kinds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from control_plane import ControlPlane, program
from playbook import Run, run_play

# The original's charts, where they can be had: TENANTRY_CALICO_CHARTS=.../calico/charts.
ORIGINALS = os.environ.get("TENANTRY_CALICO_CHARTS", "")
CRDS, OPERATOR = "crd.projectcalico.org.v1", "tigera-operator"
INSTALLATION = "/apis/operator.tigera.io/v1/installations/default"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "installations.operator.tigera.io"},
    "spec": {
        "group": "operator.tigera.io",
        "scope": "Cluster",
        "names": {"kind": "Installation", "plural": "installations"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}
TEMPLATE = """\
apiVersion: operator.tigera.io/v1
kind: Installation
metadata: {name: default}
spec: {{ omit .Values.installation "enabled" | toJson }}
"""


@pytest.fixture
def charts(tmp_path: Path) -> Path:
    """Charts of this shape, or the originals."""
    if ORIGINALS:
        return Path(ORIGINALS)
    for name, template in ((CRDS, yaml.safe_dump(CRD)), (OPERATOR, TEMPLATE)):
        folder = tmp_path / "charts" / name
        (folder / "templates").mkdir(parents=True)
        (folder / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": name, "version": "1.0.0"}))
        (folder / "templates" / "all.yaml").write_text(template)
    return tmp_path / "charts"


@pytest.fixture
def cleared(control_plane: ControlPlane) -> Iterator[None]:
    yield
    for each in control_plane.api.items("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"):
        if each["spec"]["group"].endswith(("operator.tigera.io", "projectcalico.org")):
            control_plane.api.delete(
                f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{each['metadata']['name']}"
            )
    control_plane.api.delete("/api/v1/namespaces/tigera-operator")


def deploy(control_plane: ControlPlane, charts: Path, folder: Path, *options: str) -> Run:
    variables = {
        "tenantry_state_dir": str(folder),
        "tenantry_versions": {"calico": "3.32.2", "kube_router": "2.10.0", "kubernetes": "1.36.3"},
        "cni_kubeconfig": str(control_plane.kubeconfig),
        "cni_helm_binary": str(program("helm", "helm")),
        "cni_provider": "calico",
        "cni_pod_cidr": "10.40.0.0/16",
        "cni_calico_chart_ref": str(charts / OPERATOR),
        "cni_calico_crds_chart_ref": str(charts / CRDS),
    }
    return run_play(folder, {"roles": ["tenantry.gpu.cni"]}, variables, *options)


@pytest.mark.usefixtures("cleared")
def test_the_operator_finds_its_kinds(control_plane: ControlPlane, charts: Path, tmp_path: Path) -> None:
    first = deploy(control_plane, charts, tmp_path / "first")
    assert first.status == 0, first.output
    network = control_plane.api.get(INSTALLATION)["spec"]["calicoNetwork"]
    assert network["bgp"] == "Disabled"
    assert (network["ipPools"][0]["cidr"], network["ipPools"][0]["encapsulation"]) == ("10.40.0.0/16", "VXLAN")
    second = deploy(control_plane, charts, tmp_path / "second")
    assert second.status == 0, second.output
    assert "changed=0 " in second.output, second.output
