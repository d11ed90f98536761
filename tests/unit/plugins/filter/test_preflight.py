# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.tenantry.gpu.plugins.filter.preflight import FilterModule
from ansible_collections.tenantry.gpu.plugins.modules import host_preflight

site_of = FilterModule().filters()["preflight_site"]

DEFAULTS = {
    "state_dir": "/state",
    "host": {"driver_branch": "580"},
    "cluster": {"kubernetes_version": "1.36.3"},
    "management": {"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16"},
}
GROUPS = {
    "management": ["management-0", "management-1"],
    "tenants": ["tenant-a"],
    "workers": ["worker-0", "worker-1", "worker-2"],
}
HOSTVARS = {
    "management-0": {"management_cluster_address": "192.0.2.11", "management_cluster_virtual_address": "192.0.2.10"},
    "management-1": {"management_cluster_address": "192.0.2.12"},
    "tenant-a": {
        "tenant_control_plane_address": "192.0.2.100",
        "tenant_control_plane_pod_cidr": "10.32.0.0/16",
        "tenant_control_plane_service_cidr": "10.112.0.0/16",
        "tenant_control_plane_kubernetes_version": "1.35.1",
        "tenant_control_plane_kubelet_patches": [{"op": "add", "path": "/failCgroupV1", "value": False}],
    },
    "worker-0": {"tenant_worker_tenant": "tenant-a", "ansible_host": "192.0.2.21", "gpu_backend": "nvidia"},
    "worker-1": {"tenant_worker_tenant": "tenant-a", "ansible_host": "10.0.0.1", "preflight_address": "192.0.2.22"},
    "worker-2": {"tenant_worker_tenant": "tenant-a"},
}


def site(**changes):
    return site_of(GROUPS, {**HOSTVARS, **changes}, DEFAULTS)


def test_hosts_and_clusters():
    found = site()
    assert [(host["name"], host["kind"], host["cluster"], host["address"]) for host in found["hosts"]] == [
        ("management-0", "management", "management", "192.0.2.11"),
        ("management-1", "management", "management", "192.0.2.12"),
        ("worker-0", "worker", "tenant-a", "192.0.2.21"),
        ("worker-1", "worker", "tenant-a", "192.0.2.22"),
        ("worker-2", "worker", "tenant-a", "worker-2"),
    ]
    assert (found["hosts"][2]["gpu_backend"], found["hosts"][2]["driver_branch"]) == ("nvidia", "580")
    management, tenant = found["clusters"]
    assert management == {
        "name": "management",
        "kubeconfig": "/state/kubeconfigs/management.conf",
        "kubernetes_version": "1.36.3",
        "pod_cidr": "10.244.0.0/16",
        "service_cidr": "10.96.0.0/16",
        "virtual_address": "192.0.2.10",
        "api_port": 8443,
        "servers": ["https://192.0.2.11:6443", "https://192.0.2.12:6443", "https://192.0.2.10:8443"],
    }
    assert (tenant["name"], tenant["servers"], tenant["kubernetes_version"]) == (
        "tenant-a",
        ["https://192.0.2.100:6443"],
        "1.35.1",
    )


def test_the_module_takes_what_the_filter_gives():
    found = site()
    documented = host_preflight.DOCUMENTATION
    for description in (*found["hosts"], *found["clusters"]):
        assert all(f"      {key}:\n" in documented for key in description)


def dialled(name, **options):
    found = site_of(GROUPS, HOSTVARS, DEFAULTS, **options)
    return {(each["name"], each["port"], each["protocol"]) for each in found["targets"][name]}


def test_management_hosts_dial_each_other_and_the_virtual_address():
    assert dialled("management-0") == {
        *(("management-1", port, "tcp") for port in (6443, 8443, 2379, 2380, 10250, 7946, 179)),
        ("management-1", 7946, "udp"),
        ("the virtual address", 6443, "tcp"),
    }


def test_workers_dial_what_stands_for_their_tenant_and_each_other():
    assert dialled("worker-0") == {
        *((f"management-{number}", port, "tcp") for number in (0, 1) for port in (6443, 8132)),
        *((f"worker-{number}", port, "tcp") for number in (1, 2) for port in (10250, 179)),
    }


def test_a_host_dials_the_next_few_of_a_ring():
    assert {name for name, port, _protocol in dialled("worker-2", peers=1) if port == 10250} == {"worker-0"}


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"tenant_control_plane_cni_provider": "calico"}, ("worker-1", 4789, "udp")),
        ({"tenant_control_plane_service_type": "NodePort"}, ("management-0", 30000, "tcp")),
    ],
)
def test_ports_follow_from_the_tenant(variables, wanted):
    changed = site(**{"tenant-a": {**HOSTVARS["tenant-a"], **variables}})
    found = {(each["name"], each["port"], each["protocol"]) for each in changed["targets"]["worker-0"]}
    assert wanted in found


def test_a_site_without_management_hosts_of_its_own():
    found = site_of({**GROUPS, "management": []}, HOSTVARS, DEFAULTS)
    assert [cluster["name"] for cluster in found["clusters"]] == ["tenant-a"]
    assert {each["port"] for each in found["targets"]["worker-0"]} == {10250, 179}
