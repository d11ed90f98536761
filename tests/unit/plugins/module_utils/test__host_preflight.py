# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each finding of the hosts' preflight, provoked, and told in its words."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._host_facts import (
    Boot,
    Card,
    Clock,
    Dial,
    Facts,
    Filesystem,
    Gpu,
    Identity,
    Listener,
    Membership,
    Route,
    Runtime,
    System,
    UrlAnswer,
    facts_of,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._host_preflight import (
    ERROR,
    WARNING,
    heading,
    judge,
    same_model,
    table_of,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._site import Cluster, Driver, Host, Site

GOOD_SYSTEM = System("debian", "12", "Debian 12", "6.1.0-30-amd64", "x86_64", cores=8, memory_mib=16000)
H100 = Card("0000:17:00.0", "0x2330", "GH100 [H100 SXM5 80GB]", "nvidia")
MANAGEMENT = Cluster("management", "1.36.3", "10.244.0.0/16", "10.96.0.0/16", ("https://192.0.2.10:6443",))
TENANT = Cluster("tenant-a", "1.36.3", "10.32.0.0/16", "10.112.0.0/16", ("https://192.0.2.100:6443",))
DISK = {
    "management": {"/var/lib/etcd": 8, "/var/lib/containerd": 15},
    "worker": {"/var/lib/containerd": 30, "/var/lib/kubelet": 10},
}
OURS = Membership("https://192.0.2.100:6443")


def facts(name="worker-0", **changes):
    identity = Identity(name, f"{name}-id", f"{name}-uuid", f"{name}-mac", ("127.0.0.1", "192.0.2.21"))
    return Facts(**{"system": GOOD_SYSTEM, "identity": identity, **changes})


def worker(name="worker-0", host=None, **changes):
    return Host(name, "worker", "tenant-a", "192.0.2.21", facts(name, **changes), **(host or {}))


def twins(**changes):
    """Two workers that share part of their identity."""
    names = ("worker-0", "worker-1")
    return [replace(worker(name), facts=replace(facts(name), **_same(name, changes))) for name in names]


def _same(name, changes):
    return {"identity": replace(facts(name).identity, **changes)}


def management(name="management-0", host=None, **changes):
    found = facts(name, **changes)
    return Host(name, "management", "management", "192.0.2.11", found, **(host or {}))


def system(**changes):
    return {"system": replace(GOOD_SYSTEM, **changes)}


def gpu_worker(host=None, driver=None, **changes):
    """A worker of two H100; ``driver`` is how it gets its driver, ``changes`` are those of its facts about cards."""
    described = {
        "gpu_backend": "nvidia",
        "cards": [{"model": "NVIDIA H100 80GB HBM3", "count": 2}],
        "driver": driver or Driver("ubuntu", "auto", branch="580"),
        **(host or {}),
    }
    boot = changes.pop("boot", Boot())
    second = replace(H100, address="0000:2a:00.0")
    loaded = changes.pop("loaded", "580.95.05")
    return worker(host=described, gpu=Gpu(**{"cards": (H100, second), "driver": loaded, **changes}), boot=boot)


def dial(answer, protocol="tcp", port=10250, name="worker-1"):
    return {"dials": (Dial(name, "192.0.2.22", port, protocol, "the kubelet's API", answer),)}


def judged(*hosts, clusters=(MANAGEMENT, TENANT), **changes):
    return judge(Site(hosts, {cluster.name: cluster for cluster in clusters}, DISK, **changes))


def listens(port, program="nginx", protocol="tcp"):
    return {"listeners": (Listener(protocol, port, program),)}


def room(free_gib, size_gib=100):
    paths = ("/var/lib/containerd", "/var/lib/kubelet")
    return {"filesystems": (Filesystem("/var", paths, size_gib * 1024, free_gib * 1024),)}


CASES = [
    pytest.param(
        Host("worker-0", "worker", "tenant-a", "192.0.2.21", None, "ssh: connect to host:\n timed out", True),
        "warning unreachable: cannot be reached: ssh: connect to host: timed out",
        id="worker-unreachable",
    ),
    pytest.param(
        Host("management-0", "management", "management", "192.0.2.11", None, "timed out", True),
        "error unreachable: cannot be reached: timed out",
        id="management-unreachable",
    ),
    pytest.param(
        Host("worker-0", "worker", "tenant-a", "192.0.2.21", None, "python3: not found"),
        "error facts: could not be looked at: python3: not found",
        id="module-failed",
    ),
    pytest.param(worker(root=False), "error root: was looked at by a user who is not root", id="not-root"),
    pytest.param(
        worker(**system(version="11", name="Debian GNU/Linux 11 (bullseye)")),
        "error system: Debian GNU/Linux 11 (bullseye) is not in the matrix",
        id="old-version",
    ),
    pytest.param(
        worker(**system(id="ubuntu", version="22.10", name="Ubuntu 22.10")),
        "error system: Ubuntu 22.10 is not in the matrix",
        id="ubuntu-between-two",
    ),
    pytest.param(
        worker(**system(id="arch", version="", name="")), "error system: arch is not in the matrix", id="other-system"
    ),
    pytest.param(
        worker(**system(architecture="riscv64")), "error architecture: its architecture is riscv64", id="architecture"
    ),
    pytest.param(
        worker(**system(kernel="5.10.0-8")),
        "error kernel: kernel 5.10.0-8 is older than 5.13, which kube-proxy's nftables mode needs",
        id="kernel",
    ),
    pytest.param(
        worker(**system(kernel_modules=False)),
        "error kernel-modules: the modules of its running kernel 6.1.0-30-amd64 are gone, as after an update of the "
        "kernel",
        id="kernel-modules",
    ),
    pytest.param(
        worker(**system(cgroup=1)),
        "error cgroup: it has cgroup v1, and kubelet 1.36.3 refuses that",
        id="cgroup-v1",
    ),
    pytest.param(
        worker(**system(swap=("/dev/sda3",))),
        "error swap: it swaps to /dev/sda3, and its kubelet does not start with that",
        id="swap",
    ),
    pytest.param(
        worker(clock=Clock(ahead_s=-412)), "error clock: its clock is 412 s behind the controller's", id="behind"
    ),
    pytest.param(
        worker(clock=Clock(ahead_s=3600)), "error clock: its clock is 3600 s ahead of the controller's", id="ahead"
    ),
    pytest.param(
        worker(clock=Clock(synchronised=False)), "warning time-sync: nothing keeps its clock", id="not-synchronised"
    ),
    pytest.param(
        management(**system(cores=1)), "error cores: it has 1 core, and a control plane needs 2", id="one-core"
    ),
    pytest.param(
        management(**system(memory_mib=1024)),
        "error memory: it has 1024 MiB of memory, and a control plane needs 1700 MiB",
        id="memory",
    ),
    pytest.param(
        management(host={"own_address": "192.0.2.99"}),
        "error address: management_cluster_address 192.0.2.99 is none of its addresses",
        id="address-of-nobody",
    ),
    pytest.param(
        management(**listens(6443, "haproxy")), "error port: port 6443 is taken by haproxy", id="api-port-taken"
    ),
    pytest.param(worker(**listens(10250, "")), "error port: port 10250 is taken by a program", id="kubelet-port-taken"),
    pytest.param(
        worker(**listens(4789, "", "udp")),
        "warning vxlan-port: UDP port 4789 is taken by another VXLAN device",
        id="vxlan-port-taken",
    ),
    pytest.param(
        worker(**listens(31080)),
        "warning node-port: nginx listens on 31080, among the node ports 30000-32767",
        id="node-port-taken",
    ),
    pytest.param(
        worker(dynamic_ports=(1024, 60999)),
        "warning dynamic-ports: outgoing connections take ports 1024-60999, and node ports are 30000-32767",
        id="dynamic-ports",
    ),
    pytest.param(
        worker(**room(12)),
        "error disk: /var has 12 GiB free, and /var/lib/containerd, /var/lib/kubelet need 40 GiB",
        id="disk",
    ),
    pytest.param(
        worker(**room(12), membership=OURS),
        "warning disk-eviction: /var has 12 % free, and below 15 % the kubelet removes images",
        id="disk-of-a-member",
    ),
    pytest.param(
        worker(routes=(Route("10.32.4.0/24", "eth1"),)),
        "error routes: tenant-a's pod CIDR 10.32.0.0/16 overlaps its route 10.32.4.0/24 (eth1)",
        id="route-in-the-pods",
    ),
    pytest.param(
        worker(routes=(Route("10.0.0.0/9", "eth1"),), membership=OURS),
        "warning wide-route: tenant-a's pod CIDR 10.32.0.0/16 overlaps its route 10.0.0.0/9 (eth1)",
        id="wide-route-of-a-member",
    ),
    pytest.param(
        management(routes=(Route("10.96.0.0/16", "bond0"),)),
        "error routes: management's service CIDR 10.96.0.0/16 overlaps its route 10.96.0.0/16 (bond0)",
        id="route-over-the-services",
    ),
    pytest.param(
        gpu_worker(driver=Driver("repository", "auto", branch="580"), boot=Boot("on")),
        "error secure-boot: Secure Boot is on, and the driver's modules would be built on the host and signed by no "
        "enrolled key",
        id="secure-boot",
    ),
    pytest.param(
        gpu_worker(driver=Driver("ubuntu", "dkms", branch="580"), boot=Boot("unknown")),
        "warning secure-boot-unknown: the state of Secure Boot cannot be read",
        id="secure-boot-unknown",
    ),
    pytest.param(
        gpu_worker(nouveau=True),
        "error nouveau: nouveau drives its cards, and only a reboot ends that",
        id="nouveau",
    ),
    pytest.param(
        gpu_worker(driver=Driver("ubuntu", "auto", branch="580", reboot_allowed=True), nouveau=True),
        "warning nouveau: nouveau drives its cards",
        id="nouveau-and-a-reboot-allowed",
    ),
    pytest.param(
        worker(gpu=Gpu(cards=(H100,))),
        "warning cards-undeclared: it has 1 NVIDIA cards, and gpu_backend is none",
        id="cards-nobody-wants",
    ),
    pytest.param(gpu_worker(host={"cards": ()}), "error cards-not-declared: nvidia_cards is not set", id="no-cards"),
    pytest.param(
        gpu_worker(cards=(H100,)),
        "error cards-count: it has 1 NVIDIA cards, and nvidia_cards says 2 (found 1 x GH100 [H100 SXM5 80GB])",
        id="a-card-is-missing",
    ),
    pytest.param(
        gpu_worker(cards=(H100, replace(H100, name="AD102GL [L40S]"))),
        "warning cards-model: nvidia_cards says 2 of NVIDIA H100 80GB HBM3, and 1 of that were found among "
        "1 x GH100 [H100 SXM5 80GB], 1 x AD102GL [L40S]",
        id="another-model-by-pci-ids",
    ),
    pytest.param(
        gpu_worker(
            host={"cards": [{"model": "NVIDIA H100 NVL", "count": 2}]},
            cards=(replace(H100, device="0x2321", name="GH100 [H100L 94GB]"),) * 2,
        ),
        "warning cards-model: nvidia_cards says 2 of NVIDIA H100 NVL, and 0 of that were found among "
        "2 x GH100 [H100L 94GB]",
        id="the-same-model-by-another-name",
    ),
    pytest.param(
        gpu_worker(models=("NVIDIA H100 80GB HBM3", "NVIDIA L40S")),
        "error cards-model: nvidia_cards says 2 of NVIDIA H100 80GB HBM3, and 1 of that were found among "
        "1 x NVIDIA H100 80GB HBM3, 1 x NVIDIA L40S",
        id="another-model-by-the-driver",
    ),
    pytest.param(
        gpu_worker(cards=(H100, replace(H100, driver="vfio-pci"))),
        "error cards-passed-on: card 0000:17:00.0 is held by vfio-pci, for virtual machines",
        id="passed-on",
    ),
    pytest.param(
        gpu_worker(driver=Driver("preinstalled"), loaded=""),
        "error driver-missing: no NVIDIA driver is loaded, and nvidia_driver_source is preinstalled",
        id="driver-missing",
    ),
    pytest.param(
        gpu_worker(cards=(replace(H100, device="0x1db6"),) * 2, driver=Driver("repository", branch="590")),
        "error driver-cards: driver branch 590 has no support for its Volta cards",
        id="driver-for-old-cards",
    ),
    pytest.param(
        gpu_worker(
            cards=(replace(H100, device="0x2901"),) * 2,
            driver=Driver("repository", kernel_modules="closed", branch="580"),
        ),
        "error driver-cards: closed kernel modules do not drive its Blackwell cards",
        id="closed-modules-for-new-cards",
    ),
    pytest.param(
        gpu_worker(runfile=True),
        "error driver-runfile: its driver was installed by NVIDIA's .run file, which packages cannot replace",
        id="runfile",
    ),
    pytest.param(
        gpu_worker(driver=Driver("ubuntu", "auto", branch="590")),
        "warning driver-branch: driver 580.95.05 is loaded, and the matrix has branch 590",
        id="another-branch",
    ),
    pytest.param(
        gpu_worker(device_plugins=("NVIDIA's device plugin",)),
        "error device-plugin: NVIDIA's device plugin runs on it, and HAMi's would serve the same cards",
        id="device-plugin",
    ),
    pytest.param(
        worker(runtime=Runtime(("docker",))),
        "warning runtime: docker is installed, which brings a containerd or a network of its own",
        id="docker",
    ),
    pytest.param(
        worker(runtime=Runtime((), "other")),
        "warning containerd: /etc/containerd/config.toml is not ours, and role node replaces it and keeps it beside as "
        ".orig",
        id="containerd-configuration",
    ),
    pytest.param(worker(distributions=("k3s",)), "error distribution: k3s is installed on it", id="other-distribution"),
    pytest.param(
        worker(membership=Membership("https://198.51.100.7:6443")),
        "error membership: it belongs to the cluster at https://198.51.100.7:6443, and tenant-a's is "
        "https://192.0.2.100:6443",
        id="another-cluster",
    ),
    pytest.param(
        worker(host={"reset_confirmed": True}, membership=Membership("https://198.51.100.7:6443")),
        "warning membership: it belongs to the cluster at https://198.51.100.7:6443, and tenant-a's is "
        "https://192.0.2.100:6443",
        id="another-cluster-and-reset-confirmed",
    ),
    pytest.param(
        worker(membership=Membership("https://198.51.100.7:6443", control_plane=True)),
        "error membership: it runs a control plane, of the cluster at https://198.51.100.7:6443",
        id="a-control-plane",
    ),
    pytest.param(
        worker(host={"kubernetes_version": "1.37.0"}, membership=replace(OURS, version="v1.36.5")),
        "error kubelet-version: its kubelet would become 1.37.0, and the API server of tenant-a has v1.36.5",
        id="a-kubelet-newer-than-its-tenant",
    ),
    pytest.param(
        management(membership=Membership("https://192.0.2.10:6443")),
        "error membership: it belongs to the cluster at https://192.0.2.10:6443, as a worker",
        id="a-worker-for-management",
    ),
    pytest.param(
        worker(urls=(UrlAnswer("https://mirror.example/v2/", 0, "Connection refused"),)),
        "error url: https://mirror.example/v2/ gives it Connection refused",
        id="registry-silent",
    ),
    pytest.param(
        worker(urls=(UrlAnswer("https://pkgs.example/v2/", 404, "Not Found"),)),
        "error url: https://pkgs.example/v2/ gives it 404 Not Found",
        id="no-registry",
    ),
]


@pytest.mark.parametrize(("host", "told"), CASES)
def test_each_finding_has_its_words(host, told):
    found = judged(host)
    texts = [f"{finding.severity} {finding.check}: {finding.finding}" for finding in found]
    assert told in texts
    assert all(finding.host == host.name and finding.remedy for finding in found)


WAYS = [
    pytest.param(
        worker(**dial("silent")),
        "error way: does not reach worker-1 (192.0.2.22) on TCP port 10250 (the kubelet's API): no answer, as when a "
        "packet filter drops it",
        id="dropped",
    ),
    pytest.param(
        worker(**dial("No route to host")),
        "error way: does not reach worker-1 (192.0.2.22) on TCP port 10250 (the kubelet's API): No route to host",
        id="rejected",
    ),
    pytest.param(
        worker(**dial("silent", "udp", 4789)),
        "warning way-udp: cannot tell whether it reaches worker-1 (192.0.2.22) on UDP port 4789 (the kubelet's API), "
        "nothing came back",
        id="datagram-without-answer",
    ),
]


@pytest.mark.parametrize(("host", "told"), WAYS)
def test_a_way_that_is_shut(host, told):
    found = judged(host, worker("worker-1"))
    assert [f"{finding.severity} {finding.check}: {finding.finding}" for finding in found] == [told]


@pytest.mark.parametrize(
    "host",
    [
        pytest.param(worker(), id="bare"),
        pytest.param(management(), id="bare-management"),
        pytest.param(worker(**system(id="rocky", version="9.6")), id="rocky"),
        pytest.param(worker(**system(id="ubuntu", version="24.04")), id="ubuntu"),
        pytest.param(worker(**system(kernel_modules=False, container=True)), id="container-has-no-modules"),
        pytest.param(worker(host={"swap": "disable"}, **system(swap=("/dev/sda3",))), id="swap-will-be-ended"),
        pytest.param(worker(clock=Clock(ahead_s=20)), id="slow-start-is-no-clock-error"),
        pytest.param(worker(**dial("open")), id="open"),
        pytest.param(worker(**dial("refused")), id="refused-shows-the-way"),
        pytest.param(worker(**room(50)), id="enough-disk"),
        pytest.param(worker(membership=OURS, **room(20)), id="member-with-little-left"),
        pytest.param(
            worker(host={"kubernetes_version": "1.36.9"}, membership=replace(OURS, version="v1.36.5")),
            id="kubelet-of-the-same-minor",
        ),
        pytest.param(worker(host={"kubernetes_version": "1.36.9"}, membership=OURS), id="api-server-that-says-nothing"),
        pytest.param(worker(membership=OURS, **listens(10250, "kubelet")), id="our-kubelet"),
        pytest.param(worker(membership=OURS, **listens(4789, "", "udp")), id="our-vxlan"),
        pytest.param(worker(membership=OURS, routes=(Route("10.32.1.0/24", "cni0"),)), id="our-route"),
        pytest.param(worker(membership=OURS, runtime=Runtime((), "other")), id="member-with-other-containerd"),
        pytest.param(
            worker(routes=(Route("10.244.0.0/16", "eth1"), Route("192.0.2.0/24", "eth0"))), id="others-ranges"
        ),
        pytest.param(worker(routes=(Route("10.32.0.0/12", "*"),)), id="route-to-nowhere"),
        pytest.param(gpu_worker(), id="gpu"),
        pytest.param(gpu_worker(boot=Boot("on")), id="signed-modules"),
        pytest.param(
            gpu_worker(driver=Driver("repository", "auto", branch="580"), boot=Boot("on", True)), id="own-key-enrolled"
        ),
        pytest.param(gpu_worker(models=("NVIDIA H100 80GB HBM3",) * 2), id="driver-names-the-cards"),
        pytest.param(gpu_worker(cards=(replace(H100, name=""),) * 2), id="cards-without-names"),
        pytest.param(
            worker(urls=(UrlAnswer("https://registry.example/v2/", 401, "Unauthorized"),)), id="registry-wants-a-token"
        ),
    ],
)
def test_no_finding(host):
    assert judged(host, worker("worker-1")) == []


def test_a_member_of_an_unknown_tenant_is_told_and_left_alone():
    host = worker(membership=Membership("https://192.0.2.100:6443"), **listens(10250, "kubelet"))
    (found,) = judged(host, clusters=[replace(TENANT, servers=())])
    assert (found.severity, found.check) == (WARNING, "membership-unknown")


def test_the_same_server_with_another_authority_is_another_cluster():
    host = worker(membership=replace(OURS, authority="old"))
    (found,) = judged(host, clusters=[replace(TENANT, authority="new")])
    assert found.finding == (
        "it belongs to the cluster at https://192.0.2.100:6443, and its certificate authority is another"
    )


def test_cgroup_v1_may_be_allowed():
    assert judged(worker(**system(cgroup=1)), clusters=[replace(TENANT, cgroup_v1_allowed=True)]) == []
    assert judged(worker(**system(cgroup=1)), clusters=[replace(TENANT, kubernetes_version="1.34.2")]) == []


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("hostname", "its host name same is also that of worker-0"),
        ("machine_id", "its machine ID same is also that of worker-0"),
        ("product_uuid", "its product UUID same is also that of worker-0"),
        ("mac", "its MAC address same is also that of worker-0"),
    ],
)
def test_clones_are_found(field, words):
    (found,) = judged(*twins(**{field: "same"}))
    assert (found.severity, found.host, found.check, found.finding) == (
        ERROR,
        "worker-1",
        field.replace("_", "-"),
        words,
    )


def test_a_virtual_address_that_a_stranger_has():
    dials = (Dial("the virtual address", "192.0.2.10", 6443, "tcp", "whether somebody has it", "refused"),)
    (found,) = judged(management(dials=dials))
    assert (found.severity, found.check) == (ERROR, "virtual-address")
    assert judged(management(dials=dials), clusters=[replace(MANAGEMENT, virtual_address_ours=False)]) == []
    free = (replace(dials[0], answer="No route to host"),)
    assert judged(management(dials=free)) == []
    unknown = Host("management-1", "management", "management", "192.0.2.12", asked=False)
    assert judged(management(dials=dials), unknown) == []
    holder = facts("management-1", identity=replace(facts("management-1").identity, addresses=("192.0.2.10",)))
    assert judged(management(dials=dials), replace(management("management-1"), facts=holder)) == []


def test_the_port_of_haproxy_belongs_to_it():
    balanced = [replace(MANAGEMENT, api_port=8443)]
    assert judged(management(**listens(8443, "haproxy")), clusters=balanced) == []
    (found,) = judged(management(**listens(8443, "nginx")), clusters=balanced)
    assert (found.severity, found.finding) == (ERROR, "port 8443 is taken by nginx")


def test_containers_show_their_machine_s_product_uuid():
    hosts = [replace(host, facts=replace(host.facts, **system(container=True))) for host in twins(product_uuid="same")]
    assert judged(*hosts) == []


def test_ways_to_a_host_that_is_down_are_not_told_again():
    down = Host("worker-1", "worker", "tenant-a", "192.0.2.22", None, "timed out", True)
    assert [finding.check for finding in judged(worker(**dial("silent")), down)] == ["unreachable"]


def test_ports_of_one_host_are_told_together():
    ways = [
        Dial("worker-1", "192.0.2.22", port, "tcp", purpose, "silent")
        for port, purpose in ((6443, "the API"), (8443, "the API"), (2379, "etcd"))
    ]
    (found,) = judged(worker(dials=ways), worker("worker-1"))
    assert found.finding == (
        "does not reach worker-1 (192.0.2.22) on TCP port 6443 and 8443 (the API), 2379 (etcd): no answer, as when a "
        "packet filter drops it"
    )


def test_hosts_outside_of_a_limit_are_dialled_and_not_judged():
    other = Host("worker-1", "worker", "tenant-a", "192.0.2.22", asked=False)
    assert judged(worker(**dial("refused")), other) == []
    assert [finding.check for finding in judged(worker(**dial("silent")), other)] == ["way"]


def test_a_silent_vxlan_port_that_the_other_host_holds_is_open():
    other = worker("worker-1", membership=OURS, **listens(4789, "", "udp"))
    assert judged(worker(**dial("silent", "udp", 4789)), other) == []


def test_a_worker_s_way_to_the_management_hosts_is_a_warning():
    host = worker(**dial("silent", port=8132, name="management-0"))
    assert [(finding.severity, finding.check) for finding in judged(host, management())] == [(WARNING, "way")]


def test_the_controller_s_own_ways_are_told():
    shut = Dial("management-0", "192.0.2.11", 6443, "tcp", "the Kubernetes API", "silent")
    charts = UrlAnswer("https://charts.example/index.yaml", 502, "Bad Gateway")
    found = judged(management(), controller_dials=[shut], controller_urls=[charts])
    assert [(each.severity, each.host, each.check) for each in found] == [
        (ERROR, "controller", "way"),
        (ERROR, "controller", "url"),
    ]


def test_errors_come_first_and_hosts_in_their_order():
    found = judged(worker("b", clock=Clock(synchronised=False), root=False), worker("a", root=False))
    assert [(finding.severity, finding.host) for finding in found] == [(ERROR, "b"), (ERROR, "a"), (WARNING, "b")]


@pytest.mark.parametrize(
    ("declared", "found", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "GH100 [H100 SXM5 80GB]", True),
        ("NVIDIA A100-SXM4-80GB", "GA100 [A100 SXM4 80GB]", True),
        ("NVIDIA L40S", "AD102GL [L40S]", True),
        ("Tesla T4", "TU104GL [Tesla T4]", True),
        ("NVIDIA GeForce RTX 4090", "AD102 [GeForce RTX 4090]", True),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA L40", "AD102GL [L40S]", False),
        ("NVIDIA H100 PCIe", "GH100 [H200 SXM 141GB]", False),
        ("NVIDIA", "AD102GL [L40S]", False),
    ],
)
def test_two_names_of_a_model(declared, found, same):
    assert same_model(declared, found) is same


def test_the_table_has_all_words_and_one_row_for_the_same_finding():
    found = judged(worker("worker-0", root=False), worker("worker-1", root=False))
    assert heading(found) == "2 errors"
    assert table_of(found, width=30).splitlines() == [
        "severity  host                finding                         remedy",
        "--------  ------------------  ------------------------------  -------------------------",
        "error     worker-0, worker-1  was looked at by a user who is  give ansible_become: true",
        "                              not root",
    ]


def test_facts_survive_the_way_to_the_controller():
    sent = facts(
        membership=OURS,
        gpu=Gpu(cards=(H100,)),
        dials=(Dial("a", "192.0.2.1", 1, "tcp", "", "open"),),
        routes=(Route("192.0.2.0/24", "eth0"),),
    )
    assert asdict(facts_of(asdict(sent))).keys() == asdict(sent).keys()
    assert facts_of(asdict(sent)).membership == OURS
    assert facts_of(asdict(sent)).gpu.cards == [H100]


def test_the_reference_has_every_finding_that_is_provoked_here():
    page = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "preflight.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([a-z-]+)`", page, re.MULTILINE))
    provoked = {case.values[1].split(":")[0].split()[1] for case in (*CASES, *WAYS)}
    assert listed == provoked | {
        "hostname",
        "machine-id",
        "product-uuid",
        "mac",
        "membership-unknown",
        "virtual-address",
    }
