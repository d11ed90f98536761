# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a host and the controller are asked to reach follows from what the inventory chose."""

from __future__ import annotations

from typing import Any

import pytest
from rendering import Role

REGISTRIES = ["https://registry.k8s.io/v2/", "https://registry-1.docker.io/v2/", "https://quay.io/v2/"]
MIRROR = {"tenantry_registry_mirror": "https://mirror.example", "node_source": "folder"}


def role(kind: str = "workers", localhost: dict[str, Any] | None = None, **variables: Any) -> Role:
    facts = {"inventory_hostname": "host-0", "groups": {kind: ["host-0"]}, "hostvars": {"localhost": localhost or {}}}
    return Role("preflight", **facts, **variables)


@pytest.mark.parametrize(
    ("kind", "variables", "urls"),
    [
        pytest.param(
            "workers",
            {},
            [
                *REGISTRIES,
                "https://pkgs.k8s.io/core:/stable:/v1.36/deb/Release.key",
                "https://download.docker.com/linux/debian/gpg",
            ],
            id="public",
        ),
        pytest.param(
            "management",
            {"management_cluster_virtual_address_provider": "kube_vip", "node_source": "folder"},
            [*REGISTRIES, "https://ghcr.io/v2/"],
            id="kube-vip",
        ),
        pytest.param("workers", MIRROR, ["https://mirror.example/v2/"], id="mirror"),
        pytest.param(
            "workers",
            {
                **MIRROR,
                "node_source": "repositories",
                "node_kubernetes_repository": "https://mirror.example/k8s",
                "node_containerd_repository": "",
            },
            ["https://mirror.example/v2/", "https://mirror.example/k8s/v1.36/deb/Release.key"],
            id="mirror of packages, the distribution's containerd",
        ),
        pytest.param(
            "workers",
            {**MIRROR, "gpu_backend": "nvidia", "nvidia_driver_source": "repository"},
            [
                "https://mirror.example/v2/",
                "https://developer.download.nvidia.com/compute/cuda/repos/",
                "https://nvidia.github.io/libnvidia-container/gpgkey",
            ],
            id="cards",
        ),
    ],
)
def test_what_a_host_must_reach(kind: str, variables: dict[str, Any], urls: list[str]) -> None:
    assert role(kind, preflight_kubernetes_version="1.36.3", **variables).value("preflight_urls") == urls


@pytest.mark.parametrize(
    ("localhost", "urls"),
    [
        ({}, ["clastix.github.io/charts", "metallb.github.io/metallb", "project-hami.github.io/HAMi"]),
        (
            {"cni_provider": "calico", "kamaji_chart_ref": "/srv/charts/kamaji"},
            ["docs.tigera.io/calico/charts", "metallb.github.io/metallb", "project-hami.github.io/HAMi"],
        ),
    ],
)
def test_what_the_controller_must_reach(localhost: dict[str, Any], urls: list[str]) -> None:
    charts = [f"https://{url}/index.yaml" for url in urls]
    assert role(localhost=localhost).value("preflight_controller_urls") == [*charts, "https://quay.io/v2/"]
    own = {**localhost, "cert_manager_enabled": False}
    assert role(localhost=own).value("preflight_controller_urls") == charts
    assert role(localhost=localhost, tenantry_artifacts_dir="/srv/tenantry").value("preflight_controller_urls") == []
