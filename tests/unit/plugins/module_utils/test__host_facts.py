# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is read of a host, from a made-up root folder."""

from __future__ import annotations

import base64
import hashlib
import http.server
import socket
import threading
from dataclasses import replace

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._host_facts import (
    Asked,
    Boot,
    Card,
    Facts,
    Gpu,
    Listener,
    Membership,
    Route,
    Runtime,
    Target,
    UrlAnswer,
    ask_url,
    boot,
    collect,
    dial,
    dynamic_ports,
    filesystems,
    gpu,
    identity,
    listeners,
    membership,
    pci_names,
    routes,
    runtime,
    system,
)

EFIVARS = "sys/firmware/efi/efivars"
SECURE_BOOT = f"{EFIVARS}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
MOK_LIST = f"{EFIVARS}/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"
ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    "*\t0000600A\t00000000\t0201\t0\t0\t0\t0000F0FF\t0\t0\t0\n"
)
SOCKETS = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
PCI_IDS = (
    "# a list\n10dd  Another\n\t2330  Not this one\n10de  NVIDIA Corporation\n\t2330  GH100 [H100 SXM5 80GB]\n"
    "\t\t10de 16c1  A board\n# between\n\t26b9  AD102GL [L40S]\n10df  Emulex\n\t2330  Nor this\n"
)
FIB_TRIE = (
    "Local:\n  |-- 127.0.0.1\n     /32 host LOCAL\n  |-- 192.0.2.0\n     /24 link UNICAST\n"
    "  |-- 192.0.2.21\n     /32 host LOCAL\n"
)
KUBECONFIG = "clusters:\n- cluster:\n    certificate-authority-data: {data}\n    server: https://192.0.2.100:6443\n"


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def link(root, name, target):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def socket_line(address, port, state, inode):
    return f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"


def test_an_empty_root_has_no_facts_and_no_error(tmp_path):
    found = collect(Asked(paths=["/var/lib/kubelet"], ports=[(1, 65535)]), tmp_path)
    assert found.membership is None
    assert (found.gpu, found.boot, found.runtime) == (
        Gpu([], [], device_plugins=[]),
        Boot(),
        Runtime([]),
    )
    assert [list(each.paths) for each in found.filesystems] == [["/var/lib/kubelet"]]


def test_system(tmp_path):
    write(
        tmp_path,
        {
            "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n',
            "proc/meminfo": "MemTotal:       16384000 kB\n",
            "proc/cpuinfo": "processor\t: 0\nmodel\t: x\nprocessor\t: 1\n",
            "proc/swaps": "Filename\tType\tSize\n/dev/sda3\tpartition\t100\n",
            "proc/sys/kernel/osrelease": "6.8.0-87-generic\n",
            "usr/lib/modules/6.8.0-87-generic/modules.dep": "",
            "sys/fs/cgroup/cgroup.controllers": "cpu",
        },
    )
    found = system(tmp_path)
    assert (found.id, found.version, found.name) == ("ubuntu", "24.04", "Ubuntu 24.04.3 LTS")
    assert (found.cores, found.memory_mib, found.swap) == (2, 16000, ["/dev/sda3"])
    assert (found.kernel, found.kernel_modules, found.cgroup, found.container) == ("6.8.0-87-generic", True, 2, False)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").unlink()
    write(tmp_path, {"run/systemd/container": "podman", "proc/sys/kernel/osrelease": "6.8.0-88-generic"})
    found = system(tmp_path)
    assert (found.kernel_modules, found.cgroup, found.container) == (False, 1, True)


def test_identity_takes_the_card_with_the_default_route(tmp_path):
    write(
        tmp_path,
        {
            "proc/net/route": ROUTES,
            "proc/net/fib_trie": FIB_TRIE,
            "proc/sys/kernel/hostname": "worker-0\n",
            "etc/machine-id": "abc\n",
            "sys/class/dmi/id/product_uuid": "4C4C4544-0042\n",
            "sys/class/net/eth0/address": "02:00:00:00:00:07\n",
            "sys/class/net/usb0/address": "02:00:00:00:00:99\n",
        },
    )
    assert identity(tmp_path).mac == "", "a device without hardware of its own has no address of its own"
    write(tmp_path, {"sys/class/net/eth0/device/vendor": "0x15b3"})
    found = identity(tmp_path)
    assert (found.mac, found.hostname, found.machine_id) == ("02:00:00:00:00:07", "worker-0", "abc")
    assert (found.product_uuid, found.addresses) == ("4c4c4544-0042", ["127.0.0.1", "192.0.2.21"])


def test_routes_without_the_default_one(tmp_path):
    write(tmp_path, {"proc/net/route": ROUTES})
    assert routes(tmp_path) == [Route("192.0.2.0/24", "eth0"), Route("10.96.0.0/12", "*")]


def test_listeners_and_their_programs(tmp_path):
    write(
        tmp_path,
        {
            "proc/net/tcp": SOCKETS
            + socket_line("00000000", 6443, "0A", 11)
            + socket_line("0100007F", 10250, "0A", 12)
            + socket_line("00000000", 10256, "01", 13)
            + socket_line("00000000", 22, "0A", 14),
            "proc/net/tcp6": SOCKETS
            + socket_line("0" * 32, 31000, "0A", 15)
            + socket_line("0" * 24 + "01000000", 2379, "0A", 16),
            "proc/net/udp": SOCKETS + socket_line("00000000", 4789, "07", 0),
            "proc/77/comm": "haproxy\n",
            "proc/self/comm": "not a process of its own",
        },
    )
    link(tmp_path, "proc/77/fd/3", "socket:[11]")
    link(tmp_path, "proc/77/fd/4", "socket:[99]")
    assert listeners(tmp_path, [(2379, 2380), (4789, 4789), (6443, 6443), (10250, 10256), (30000, 32767)]) == [
        Listener("tcp", 6443, "haproxy"),
        Listener("tcp", 31000, ""),
        Listener("udp", 4789, ""),
    ]


def test_dynamic_ports(tmp_path):
    assert list(dynamic_ports(tmp_path)) == [32768, 60999]
    write(tmp_path, {"proc/sys/net/ipv4/ip_local_port_range": "1024\t65000\n"})
    assert dynamic_ports(tmp_path) == [1024, 65000]


def test_folders_of_one_file_system_come_together(tmp_path):
    (tmp_path / "var/lib").mkdir(parents=True)
    (found,) = filesystems(tmp_path, ["/var/lib/containerd", "/var/lib/kubelet", "/var/log"])
    assert list(found.paths) == ["/var/lib/containerd", "/var/lib/kubelet", "/var/log"]
    assert found.mount == "/"
    assert 0 < found.free_mib <= found.size_mib


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param({}, Boot("off"), id="bios"),
        pytest.param({"sys/firmware/efi/runtime": ""}, Boot("unknown"), id="no-efivars"),
        pytest.param({SECURE_BOOT: b"\x06\0\0\0\x00"}, Boot("off"), id="off"),
        pytest.param({SECURE_BOOT: b"\x06\0\0\0\x01"}, Boot("on"), id="on"),
        pytest.param(
            {SECURE_BOOT: b"\x06\0\0\0\x01", MOK_LIST: b"..another..", "var/lib/dkms/mok.pub": b"DER"},
            Boot("on"),
            id="key-not-enrolled",
        ),
        pytest.param(
            {SECURE_BOOT: b"\x06\0\0\0\x01", MOK_LIST: b"..DER..", "var/lib/dkms/mok.pub": b"DER"},
            Boot("on", True),
            id="key-enrolled",
        ),
        pytest.param(
            {SECURE_BOOT: b"\x06\0\0\0\x01", MOK_LIST: b"..DER..", "var/lib/shim-signed/mok/MOK.der": b"DER"},
            Boot("on", True),
            id="ubuntu-s-key",
        ),
    ],
)
def test_secure_boot(tmp_path, files, found):
    write(tmp_path, files)
    assert boot(tmp_path) == found


def card(root, address, device="0x2330", vendor="0x10de", kind="0x030200"):
    folder = f"sys/bus/pci/devices/{address}"
    write(root, {f"{folder}/vendor": vendor, f"{folder}/device": device, f"{folder}/class": kind})


def test_cards_and_their_driver(tmp_path):
    card(tmp_path, "0000:17:00.0")
    card(tmp_path, "0000:2a:00.0", device="0x26b9")
    card(tmp_path, "0000:07:00.0", device="0x22a3", kind="0x068000")
    card(tmp_path, "0000:03:00.0", vendor="0x1a03", kind="0x030000")
    link(tmp_path, "sys/bus/pci/devices/0000:17:00.0/driver", "../../../bus/pci/drivers/nvidia")
    link(tmp_path, "proc/88/exe", "/usr/bin/nvidia-device-plugin")
    link(tmp_path, "proc/89/exe", "/k8s-vgpu/bin/nvidia-device-plugin")
    write(
        tmp_path,
        {
            "usr/share/misc/pci.ids": PCI_IDS,
            "sys/module/nvidia/version": "580.95.05\n",
            "sys/module/nouveau/refcnt": "0",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n",
            "proc/driver/nvidia/gpus/0000:17:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n",
            "usr/bin/nvidia-uninstall": "",
        },
    )
    assert gpu(tmp_path) == Gpu(
        cards=[
            Card("0000:17:00.0", "0x2330", "GH100 [H100 SXM5 80GB]", "nvidia"),
            Card("0000:2a:00.0", "0x26b9", "AD102GL [L40S]", ""),
        ],
        models=["NVIDIA H100 80GB HBM3"],
        driver="580.95.05",
        open_modules=True,
        nouveau=True,
        runfile=True,
        device_plugins=["NVIDIA's device plugin"],
    )


def test_cards_without_a_list_of_names(tmp_path):
    assert pci_names(tmp_path, {"0x2330"}) == {}
    write(tmp_path, {"usr/share/hwdata/pci.ids": PCI_IDS})
    assert pci_names(tmp_path, {"0x2330", "0x9999"}) == {"0x2330": "GH100 [H100 SXM5 80GB]"}


@pytest.mark.parametrize(
    ("configuration", "kind"),
    [("", ""), ("# Written by tenantry.gpu\nversion = 3\n", "ours"), ("version = 2\n", "other")],
)
def test_runtimes(tmp_path, configuration, kind):
    write(tmp_path, {"etc/containerd/config.toml": configuration, "usr/bin/dockerd": ""})
    assert runtime(tmp_path) == Runtime(["docker"], kind)


def test_membership(tmp_path):
    assert membership(tmp_path) is None
    data = base64.b64encode(b"PEM\n").decode()
    write(tmp_path, {"etc/kubernetes/kubelet.conf": KUBECONFIG.format(data=data)})
    joined = Membership("https://192.0.2.100:6443", hashlib.sha256(b"PEM").hexdigest())
    assert membership(tmp_path) == joined
    write(tmp_path, {"etc/kubernetes/manifests/kube-apiserver.yaml": "kind: Pod"})
    assert membership(tmp_path) == replace(joined, control_plane=True)
    write(tmp_path, {"etc/kubernetes/kubelet.conf": KUBECONFIG.format(data="no certificate!")})
    assert membership(tmp_path) == Membership("https://192.0.2.100:6443", "", True)


def test_other_distributions(tmp_path):
    (tmp_path / "var/lib/rancher/k3s").mkdir(parents=True)
    assert collect(Asked(), tmp_path).distributions == ["k3s"]


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_dials_tell_open_from_refused_from_silent(free_port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert dial(Target("a", "127.0.0.1", server.getsockname()[1]), 1).answer == "open"
    assert dial(Target("a", "127.0.0.1", free_port), 1).answer == "refused"
    assert dial(Target("a", "127.0.0.1", free_port, "udp"), 1).answer == "refused"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        assert dial(Target("a", "127.0.0.1", deaf.getsockname()[1], "udp"), 0.1).answer == "silent"
    with socket.create_server(("127.0.0.1", 0), backlog=1) as full:
        # A full queue drops the next request, as a packet filter would.
        address = full.getsockname()
        waiting = [socket.create_connection(address, 1) for _each in (1, 2)]
        assert dial(Target("a", *address), 0.2).answer == "silent"
        for connection in waiting:
            connection.close()


def test_a_name_that_nobody_knows():
    assert dial(Target("a", "no-such-host.invalid", 1), 1).answer not in ("open", "refused", "silent")


class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({"/v2/": 401, "/fine": 200}.get(self.path, 404))
        self.end_headers()

    def log_message(self, *_arguments):
        pass


def test_urls(free_port):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    try:
        assert ask_url(f"{base}/fine", 2) == UrlAnswer(f"{base}/fine", 200)
        assert ask_url(f"{base}/v2/", 2) == UrlAnswer(f"{base}/v2/", 401, "Unauthorized")
        assert ask_url(f"{base}/gone", 2).status == 404
    finally:
        server.shutdown()
        server.server_close()
    silent = f"http://127.0.0.1:{free_port}/"
    assert ask_url(silent, 1) == UrlAnswer(silent, 0, "Connection refused")
    assert ask_url("no address", 1).status == 0


def test_all_of_it_is_asked_at_once(tmp_path, free_port):
    targets = [Target(f"host-{number}", "127.0.0.1", free_port) for number in range(3)]
    found = collect(Asked(controller_time_s=1.0, targets=targets), tmp_path)
    assert isinstance(found, Facts)
    assert [(each.name, each.answer) for each in found.dials] == [(f"host-{n}", "refused") for n in range(3)]
    assert found.clock.ahead_s > 1_000_000
