# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._inventory import (
    GIB,
    TENANT_ADDRESS,
    Address,
    Cluster,
    Range,
    Worker,
    check_addresses,
    check_control_planes,
    check_declared_cards,
    check_engine,
    check_host_routes,
    check_lab_versions,
    check_matrix,
    check_memory,
    check_names,
    check_ranges,
    check_room,
    check_versions,
    check_workers,
)

GOOD = {"management": ["management-0"], "tenants": ["tenant-a"], "workers": ["a-worker-0"]}
LABEL = "give it at most 63 of a-z, 0-9 and -, a letter or digit first and last."


def pods(owner, cidr):
    return Range(owner, "pod CIDR", cidr, "tenant_control_plane_pod_cidr")


def services(owner, cidr):
    return Range(owner, "service CIDR", cidr, "tenant_control_plane_service_cidr")


@pytest.mark.parametrize(
    ("lab_name", "groups", "findings"),
    [
        pytest.param("lab", GOOD, [], id="good"),
        pytest.param("", GOOD, [], id="no-lab"),
        pytest.param("My_Lab", GOOD, [f"My_Lab: the name (lab_name) is no DNS label; {LABEL}"], id="lab-name"),
        pytest.param(
            "lab",
            {**GOOD, "tenants": ["a" * 64]},
            [f"{'a' * 64}: the name (group tenants) is no DNS label; {LABEL}"],
            id="long-tenant",
        ),
        pytest.param(
            "lab",
            {**GOOD, "workers": ["-w"]},
            [f"-w: the name (group workers) is no DNS label; {LABEL}"],
            id="worker",
        ),
        pytest.param(
            "lab",
            {**GOOD, "workers": ["tenant-a"]},
            ["tenant-a: the name stands twice, in tenants and workers; give every host a name of its own."],
            id="twice",
        ),
        pytest.param(
            "lab",
            {**GOOD, "workers": ["registry"]},
            ["registry: the lab's own container has this name; rename the host."],
            id="reserved",
        ),
        pytest.param("", {**GOOD, "workers": ["registry"]}, [], id="reserved-in-a-lab-only"),
        pytest.param(
            "lab",
            {**GOOD, "management": []},
            ["inventory: the group management has no host; add one."],
            id="no-management",
        ),
    ],
)
def test_names(lab_name, groups, findings):
    assert check_names(lab_name, groups) == findings


@pytest.mark.parametrize(
    ("ranges", "findings"),
    [
        pytest.param([pods("a", "10.32.0.0/16"), pods("b", "10.33.0.0/16")], [], id="apart"),
        pytest.param(
            [pods("tenant-a", "10.32.0.0/16"), pods("tenant-b", "10.32.0.0/16")],
            ["tenant-b: pod CIDR 10.32.0.0/16 overlaps tenant-a's; give tenant_control_plane_pod_cidr another range."],
            id="same",
        ),
        pytest.param(
            [pods("a", "10.32.0.0/12"), pods("b", "10.33.0.0/16")],
            ["b: pod CIDR 10.33.0.0/16 overlaps a's 10.32.0.0/12; give tenant_control_plane_pod_cidr another range."],
            id="inside",
        ),
        pytest.param(
            [pods("a", "10.32.0.0/16"), services("a", "10.32.4.0/24")],
            [
                "a: service CIDR 10.32.4.0/24 overlaps a's pod CIDR 10.32.0.0/16; "
                "give tenant_control_plane_service_cidr another range."
            ],
            id="pods-and-services",
        ),
        pytest.param(
            [Range("lab", "network", "172.30.211.0/24", "lab_subnet"), pods("a", "172.30.0.0/16")],
            [
                "a: pod CIDR 172.30.0.0/16 overlaps lab's network 172.30.211.0/24; "
                "give tenant_control_plane_pod_cidr another range."
            ],
            id="bridge",
        ),
        pytest.param(
            [pods("a", "10.32.0.1/16")],
            [
                "a: pod CIDR 10.32.0.1/16 is no IPv4 range (10.32.0.1/16 has host bits set); "
                "give tenant_control_plane_pod_cidr one like 10.32.0.0/16."
            ],
            id="host-bits",
        ),
    ],
)
def test_ranges(ranges, findings):
    assert check_ranges(ranges) == findings


def test_host_routes():
    routes = [("10.0.0.0/11", "tun0"), ("192.0.2.0/24", "eth0")]
    assert check_host_routes([pods("a", "10.32.0.0/16"), pods("b", "nonsense")], routes) == []
    assert check_host_routes([pods("a", "10.16.0.0/16")], routes) == [
        "a: pod CIDR 10.16.0.0/16 overlaps this machine's route 10.0.0.0/11 (tun0); "
        "give tenant_control_plane_pod_cidr another range."
    ]


@pytest.mark.parametrize(
    ("version", "kubelet", "findings"),
    [
        pytest.param("1.36.3", "", [], id="newest"),
        pytest.param("v1.33.0", "1.33.9", [], id="oldest"),
        pytest.param("1.36.3", "1.33.0", [], id="oldest-kubelet"),
        pytest.param(
            "1.37.0",
            "",
            [
                "tenant-a: Kubernetes 1.37.0 is outside the range that Kamaji runs, 1.33 to 1.36; "
                "give it a version of that range."
            ],
            id="too-new",
        ),
        pytest.param(
            "1.32.9",
            "1.30.0",
            [
                "tenant-a: Kubernetes 1.32.9 is outside the range that Kamaji runs, 1.33 to 1.36; "
                "give it a version of that range."
            ],
            id="too-old",
        ),
        pytest.param(
            "latest", "", ["tenant-a: 'latest' is no Kubernetes version; give one like 1.36.3."], id="no-version"
        ),
        pytest.param(
            "1.35.1",
            "1.36.3",
            ["w: kubelet 1.36.3 does not go with tenant-a's Kubernetes 1.35; give it 1.32 to 1.35."],
            id="kubelet-newer",
        ),
        pytest.param(
            "1.36.3",
            "1.32.0",
            ["w: kubelet 1.32.0 does not go with tenant-a's Kubernetes 1.36; give it 1.33 to 1.36."],
            id="kubelet-too-old",
        ),
        pytest.param("1.36.3", "x", ["w: 'x' is no Kubernetes version; give one like 1.36.3."], id="no-kubelet"),
    ],
)
def test_versions(version, kubelet, findings):
    assert check_versions([Cluster("tenant-a", version)], [Worker("w", "tenant-a", kubelet)]) == findings


@pytest.mark.parametrize(
    ("worker", "findings"),
    [
        pytest.param(Worker("w", "tenant-a", cards=[{"profile": "l4", "count": 2}]), [], id="good"),
        pytest.param(
            Worker("w", "tenant-c"),
            ["w: tenant_worker_tenant names tenant-c, and there is no such tenant; give one of tenant-a, tenant-b."],
            id="no-such-tenant",
        ),
        pytest.param(
            Worker("w", ""), ["w: tenant_worker_tenant is not set; give one of tenant-a, tenant-b."], id="no-tenant"
        ),
    ],
)
def test_workers(worker, findings):
    assert check_workers(["tenant-a", "tenant-b"], [worker]) == findings


def test_an_unknown_card_profile_is_named_with_those_that_exist():
    (finding,) = check_workers(["tenant-a"], [Worker("w", "tenant-a", cards=[{"profile": "a100"}])])
    assert finding.startswith("w: card profile 'a100' is unknown; use one of a100-40g, a100-80g,")


@pytest.mark.parametrize(
    ("engine", "usable", "installable", "root", "begins"),
    [
        pytest.param("podman", True, False, True, None, id="podman"),
        pytest.param("podman", False, True, True, None, id="podman-will-be-installed"),
        pytest.param("docker", True, False, False, None, id="docker-for-a-user"),
        pytest.param("podman", False, False, True, "lab_engine: podman cannot be used on this machine", id="none"),
        pytest.param("docker", False, True, True, "lab_engine: docker cannot be used on this machine", id="dead"),
        pytest.param("podman", True, True, False, "lab_engine: podman run by this user cannot", id="rootless"),
    ],
)
def test_engine(engine, usable, installable, root, begins):
    findings = check_engine(engine, usable, installable, root)
    assert len(findings) == (begins is not None)
    assert all(finding.startswith(begins) for finding in findings)


def test_room():
    assert check_room("/cache", 25 * GIB, 25, "building the components") == []
    assert check_room("/cache", 24 * GIB, 25, "building the components") == [
        "/cache: 24.0 GiB of disk are free, and building the components needs 25 GiB; "
        "free some, or give XDG_CACHE_HOME a folder on a larger disk."
    ]


def test_memory():
    assert check_memory(int(3.8 * GIB), 4) == []
    assert check_memory(2 * GIB, 4) == [
        "memory: this machine has 2.0 GiB, and the lab needs 4 GiB; give it more, or take another machine."
    ]


@pytest.mark.parametrize(
    ("built_only", "version", "finding"),
    [
        pytest.param(True, "1.36.3", None, id="the-one-that-is-built"),
        pytest.param(True, "v1.36.3", None, id="with-v"),
        pytest.param(
            True,
            "1.35.1",
            "tenant-a: Kubernetes 1.35.1 is not built here, only 1.36.3 is; give "
            "tenant_control_plane_kubernetes_version 1.36.3, or components_source upstream.",
            id="another",
        ),
        pytest.param(True, "1.40.0", None, id="outside-kamajis-range-is-another-finding"),
        pytest.param(True, "new", None, id="no-version-is-another-finding"),
        pytest.param(False, "1.35.1", None, id="registries-have-others"),
    ],
)
def test_a_lab_of_stand_ins_has_one_kubernetes(built_only, version, finding):
    findings = check_lab_versions("1.36.3", built_only, [Cluster("tenant-a", version)], [])
    assert findings == ([finding] if finding else [])


def test_a_labs_hosts_have_one_kubelet():
    workers = [Worker("a-worker-0", "tenant-a", "1.36.3"), Worker("a-worker-1", "tenant-a", "1.35.1")]
    assert check_lab_versions("1.36.3", False, [], workers) == [
        "a-worker-1: node_kubernetes_version is 1.35.1, and the lab's hosts have 1.36.3; take it out."
    ]


MATRIX = {"containerd": "2.3.7", "hami": "2.10.0", "nvidia_driver_branch": "580", "nvidia_container_toolkit": "1.20.2"}


@pytest.mark.parametrize(
    ("versions", "kubernetes", "findings"),
    [
        pytest.param({}, ["1.36.3"], [], id="good"),
        pytest.param({"containerd": "2.2.0"}, ["1.36.3", "1.35.1", "1.33.0"], [], id="a-newer-line"),
        pytest.param({"containerd": "1.7.28"}, ["1.35.1"], [], id="old-line-new-enough"),
        pytest.param(
            {"containerd": "2.1.5"},
            ["1.36.3", "1.35.1"],
            [
                "tenantry_versions: containerd 2.1.5 does not go with Kubernetes 1.36; give 2.2.0, or a newer one of "
                "that line or after it."
            ],
            id="containerd",
        ),
        pytest.param(
            {"containerd": "2.1.4"},
            ["1.35.1"],
            [
                "tenantry_versions: containerd 2.1.4 does not go with Kubernetes 1.35; give 1.7.28 or 2.1.5, or a "
                "newer one of that line or after it."
            ],
            id="containerd-patch",
        ),
        pytest.param(
            {"containerd": "2.0.9"},
            ["1.35.1"],
            [
                "tenantry_versions: containerd 2.0.9 does not go with Kubernetes 1.35; give 1.7.28 or 2.1.5, or a "
                "newer one of that line or after it."
            ],
            id="containerd-line",
        ),
        pytest.param(
            {"nvidia_driver_branch": "418"},
            ["1.36.3"],
            [
                "tenantry_versions: nvidia_driver_branch 418 does not go with HAMi 2.10.0; give a branch from 440 on, "
                "such as 580."
            ],
            id="driver",
        ),
        pytest.param(
            {"nvidia_container_toolkit": "1.17.8"},
            ["1.36.3"],
            [
                "tenantry_versions: nvidia_container_toolkit 1.17.8 does not keep the list of cards up to date; "
                "give 1.18.0 or newer."
            ],
            id="toolkit",
        ),
    ],
)
def test_the_matrix_s_own_contradictions(versions, kubernetes, findings):
    assert check_matrix({**MATRIX, **versions}, kubernetes) == findings


HOSTS = ["m-0", "m-1", "m-2"]
ADDRESSES = {"m-0": "192.0.2.11", "m-1": "192.0.2.12", "m-2": "192.0.2.13"}


@pytest.mark.parametrize(
    ("hosts", "addresses", "virtual_address", "findings"),
    [
        pytest.param(HOSTS, ADDRESSES, "192.0.2.10", [], id="three"),
        pytest.param(HOSTS[:1], ADDRESSES, "", [], id="one"),
        pytest.param([], {}, "", [], id="none"),
        pytest.param(
            HOSTS[:2],
            ADDRESSES,
            "192.0.2.10",
            [
                "inventory: the group management has 2 hosts; give it one or three, because etcd with two members "
                "stops when either is lost."
            ],
            id="two",
        ),
        pytest.param(
            HOSTS,
            {**ADDRESSES, "m-1": ""},
            "192.0.2.10",
            ["m-1: management_cluster_address is not set; give the address under which its API server is reached."],
            id="no-address",
        ),
        pytest.param(
            HOSTS,
            ADDRESSES,
            "",
            [
                "inventory: management_cluster_virtual_address is not set, and several control planes need an address "
                "that survives each of them; give a free address of their network."
            ],
            id="no-virtual-address",
        ),
    ],
)
def test_control_planes(hosts, addresses, virtual_address, findings):
    assert check_control_planes(hosts, addresses, virtual_address) == findings


POOL = ["192.0.2.100-192.0.2.120"]


@pytest.mark.parametrize(
    ("addresses", "pool", "findings"),
    [
        pytest.param([("w", "ansible_host", "192.0.2.21"), ("t", TENANT_ADDRESS, "192.0.2.100")], POOL, [], id="good"),
        pytest.param(
            [("w", "ansible_host", "192.0.2.21"), ("v", "ansible_host", "192.0.2.21")],
            POOL,
            ["v: ansible_host 192.0.2.21 is also w's; give each its own address."],
            id="twice",
        ),
        pytest.param(
            [("w", "ansible_host", "192.0.2.256")],
            POOL,
            ["w: ansible_host 192.0.2.256 is no IPv4 address; give one like 192.0.2.11."],
            id="no-address",
        ),
        pytest.param(
            [("w", "ansible_host", "10.32.0.9")],
            POOL,
            [
                "w: ansible_host 10.32.0.9 lies in tenant-a's pod CIDR 10.32.0.0/16; "
                "give tenant_control_plane_pod_cidr another range."
            ],
            id="among-pods",
        ),
        pytest.param(
            [("m", "management_cluster_address", "192.0.2.101")],
            POOL,
            [
                "m: management_cluster_address 192.0.2.101 lies in load_balancer_addresses, which tenants get; "
                "give the pool a range without it."
            ],
            id="host-in-the-pool",
        ),
        pytest.param(
            [("t", TENANT_ADDRESS, "192.0.2.99")],
            POOL,
            ["t: tenant_control_plane_address 192.0.2.99 is not in load_balancer_addresses; give one of those."],
            id="tenant-outside-the-pool",
        ),
        pytest.param(
            [],
            ["192.0.2.120-192.0.2.100"],
            [
                "load_balancer_addresses: 192.0.2.120-192.0.2.100 is no range; give a CIDR, or two addresses with a "
                "dash between."
            ],
            id="backwards",
        ),
        pytest.param(
            [],
            ["10.32.8.0/24"],
            ["load_balancer_addresses: 10.32.8.0/24 overlaps tenant-a's pod CIDR 10.32.0.0/16; give another range."],
            id="pool-among-pods",
        ),
    ],
)
def test_addresses(addresses, pool, findings):
    assert check_addresses([Address(*each) for each in addresses], pool, [pods("tenant-a", "10.32.0.0/16")]) == findings


CARDS = 'give a list like [{model: "NVIDIA H100 80GB HBM3", count: 8}]'


@pytest.mark.parametrize(
    ("gpu_backend", "cards", "findings"),
    [
        pytest.param("nvidia", [{"model": "NVIDIA L4", "count": 4}], [], id="good"),
        pytest.param("simulator", [], [], id="simulated"),
        pytest.param(
            "nvidia",
            [],
            [f"w: gpu_backend is nvidia and nvidia_cards is not set; {CARDS}, or set gpu_backend: none."],
            id="not-declared",
        ),
        pytest.param(
            "nvidia",
            [{"model": "NVIDIA L4", "count": "four"}],
            [f"w: nvidia_cards has {{'model': 'NVIDIA L4', 'count': 'four'}}, which is no model and count; {CARDS}."],
            id="no-count",
        ),
    ],
)
def test_declared_cards(gpu_backend, cards, findings):
    assert check_declared_cards("w", gpu_backend, cards) == findings


def test_an_existing_management_cluster_needs_no_hosts():
    assert check_names("", {**GOOD, "management": []}, existing=True) == []
