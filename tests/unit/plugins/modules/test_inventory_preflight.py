# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest

from ansible_collections.tenantry.gpu.plugins.modules.inventory_preflight import (
    check_inventory,
    components_missing,
    parse_routes,
)

SUBNET = "172.30.211.0/24"


def parameters(**changes):
    management = {
        "hosts": ["management-0"],
        "kubernetes_version": "1.36.3",
        "pod_cidr": "10.244.0.0/16",
        "service_cidr": "10.96.0.0/16",
        "addresses": {"management-0": "192.0.2.11"},
        "node_versions": {},
        "virtual_address": "",
        "existing": False,
    }
    tenant = {
        "name": "tenant-a",
        "kubernetes_version": None,
        "pod_cidr": "10.32.0.0/16",
        "service_cidr": "10.112.0.0/16",
        "address": "",
    }
    worker = {
        "name": "a-worker-0",
        "tenant": "tenant-a",
        "kubernetes_version": "",
        "address": "192.0.2.21",
        "cards": [],
        "gpu_backend": "nvidia",
        "nvidia_cards": [{"model": "NVIDIA L4", "count": 1}],
    }
    return {
        "management": management,
        "tenants": [tenant],
        "workers": [worker],
        "load_balancer_addresses": ["192.0.2.100-192.0.2.120"],
        "versions": {"containerd": "2.3.7"},
        "lab": None,
        **changes,
    }


def test_a_good_inventory_has_no_finding():
    lab = {"name": "lab", "subnet": SUBNET, "kubernetes_version": "1.36.3", "built_only": True}
    assert check_inventory(parameters(lab=lab)) == []


def test_every_finding_comes_at_once():
    tenant = {
        "name": "Tenant_b",
        "kubernetes_version": "1.40.0",
        "pod_cidr": "10.96.0.0/16",
        "service_cidr": None,
        "address": "192.0.2.21",
    }
    findings = check_inventory(parameters(tenants=[tenant]))
    assert [finding.split(":")[0] for finding in findings] == [
        "Tenant_b",
        "management",
        "Tenant_b",
        "Tenant_b",
        "Tenant_b",
        "a-worker-0",
    ]


def test_a_worker_whose_version_is_not_said_gets_the_matrix_s():
    (tenant,) = parameters()["tenants"]
    changes = {"tenants": [{**tenant, "kubernetes_version": "1.35.1"}], "versions": {"kubernetes": "1.36.3"}}
    assert check_inventory(parameters(**changes)) == [
        "a-worker-0: kubelet 1.36.3 does not go with tenant-a's Kubernetes 1.35; give it 1.32 to 1.35."
    ]
    management = {**parameters()["management"], "kubernetes_version": "1.35.1"}
    assert check_inventory(parameters(management=management, versions={"kubernetes": "1.36.3"})) == [
        "management-0: kubelet 1.36.3 does not go with management's Kubernetes 1.35; give it 1.32 to 1.35."
    ]


def test_a_management_host_s_kubelet_is_not_newer_than_its_api_server():
    given = parameters()
    given["management"] |= {"kubernetes_version": "1.35.1", "node_versions": {"management-0": "1.36.3"}}
    assert check_inventory(given) == [
        "management-0: kubelet 1.36.3 does not go with management's Kubernetes 1.35; give it 1.32 to 1.35."
    ]


@pytest.mark.parametrize(
    ("route", "routes"),
    [
        pytest.param({"dst": "default", "dev": "eth0"}, [], id="default"),
        pytest.param({"dst": SUBNET, "dev": "cni-podman1"}, [], id="own-bridge"),
        pytest.param({"dst": SUBNET, "dev": "eth1"}, [(SUBNET, "eth1")], id="same-range-elsewhere"),
        pytest.param({"dst": "192.0.2.7", "dev": "eth0"}, [("192.0.2.7/32", "eth0")], id="one-address"),
        pytest.param({"type": "blackhole", "dst": "10.0.0.0/8"}, [("10.0.0.0/8", "blackhole")], id="no-device"),
    ],
)
def test_routes(route, routes):
    assert parse_routes(json.dumps([route]), SUBNET) == routes


def test_components_that_have_to_be_built(tmp_path):
    source, cache = tmp_path / "source", tmp_path / "cache"
    assert not components_missing("", str(cache))
    assert not components_missing(str(source), str(cache))
    (source / "etcd").mkdir(parents=True)
    assert components_missing(str(source), str(cache))
    (cache / "components" / "etcd-1a2b").mkdir(parents=True)
    assert not components_missing(str(source), str(cache))
