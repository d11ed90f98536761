# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host is, read from its /proc, /sys, /etc, /run and /var: nothing is written, no program is run.

Runs on the hosts (Python 3.9, standard library only). Every function takes the root folder, so that a test can give it
a made-up one. What cannot be read is empty, and the judgement (``_host_preflight``) says what that means.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import hashlib
import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1024**2
NVIDIA = "0x10de"
PCI_IDS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", "var/lib/pciutils/pci.ids")
EFIVARS = "sys/firmware/efi/efivars"
# UEFI 2.10, section 3.3 (global variables), and shim's MokVars.txt.
SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
MOK_LIST = "MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"
# Where DKMS (Debian, RHEL family) and Ubuntu's shim-signed keep the certificate with which they sign modules.
SIGNING_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")
# A clock that nobody disciplines says so: systemd's ntp_synced() (src/basic/time-util.c) takes the same limit.
CLOCK_ERROR_LIMIT_US = 16_000_000
DISTRIBUTIONS = {
    "k3s": "var/lib/rancher/k3s",
    "RKE2": "var/lib/rancher/rke2",
    "k0s": "var/lib/k0s",
    "MicroK8s": "var/snap/microk8s",
}
RUNTIMES = {"docker": "usr/bin/dockerd", "CRI-O": "usr/bin/crio"}
# HAMi runs its own plugin of that name from /k8s-vgpu/bin (docker/Dockerfile), which is ours to have.
DEVICE_PLUGINS = {
    "/usr/bin/nvidia-device-plugin": "NVIDIA's device plugin",
    "/usr/bin/gpu-operator": "NVIDIA's GPU operator",
    "/usr/bin/volcano-vgpu-device-plugin": "Volcano's vGPU device plugin",
}
# The first line of the configuration that role node writes.
CONTAINERD_OURS = "tenantry.gpu"
DIALS_AT_ONCE = 32
LISTENING = {"tcp": "0A", "udp": "07"}


@dataclass(frozen=True)
class System:
    """Distribution by its ID and VERSION_ID (os-release(5)), kernel release, architecture."""

    id: str = ""
    version: str = ""
    name: str = ""
    kernel: str = ""
    architecture: str = ""
    container: bool = False
    kernel_modules: bool = True
    cgroup: int = 2
    cores: int = 0
    memory_mib: int = 0
    swap: Sequence[str] = ()


@dataclass(frozen=True)
class Identity:
    """What has to differ from host to host."""

    hostname: str = ""
    machine_id: str = ""
    product_uuid: str = ""
    mac: str = ""
    addresses: Sequence[str] = ()


@dataclass(frozen=True)
class Clock:
    """Seconds that the host is ahead of the controller (its own delay included), and whether something keeps it."""

    ahead_s: float = 0.0
    synchronised: bool = True


@dataclass(frozen=True)
class Route:
    """A route of the main tables; the default route is none."""

    range: str
    device: str


@dataclass(frozen=True)
class Listener:
    """A port that a program listens on; the program is empty where it is the kernel."""

    protocol: str
    port: int
    program: str


@dataclass(frozen=True)
class Filesystem:
    """A file system, and those of the asked folders that are or will be on it."""

    mount: str
    paths: Sequence[str]
    size_mib: int
    free_mib: int


@dataclass(frozen=True)
class Card:
    """A PCI device of NVIDIA's; the name is that of pci.ids, empty where the file or the entry is missing."""

    address: str
    device: str
    name: str
    driver: str


@dataclass(frozen=True)
class Gpu:
    """Cards, and what drives them. ``models`` are the loaded driver's own names of them."""

    cards: Sequence[Card] = ()
    models: Sequence[str] = ()
    driver: str = ""
    open_modules: bool = False
    nouveau: bool = False
    runfile: bool = False
    device_plugins: Sequence[str] = ()


@dataclass(frozen=True)
class Boot:
    """Secure Boot (on, off, or unknown where the firmware's variables cannot be read) and a signing key of the host."""

    secure_boot: str = "off"
    key_enrolled: bool = False


@dataclass(frozen=True)
class Membership:
    """The cluster of kubelet.conf: server, the SHA-256 of its certificate authority, and the server's version.

    The version is empty where the server did not answer.
    """

    server: str
    authority: str = ""
    control_plane: bool = False
    version: str = ""


@dataclass(frozen=True)
class Runtime:
    """Container runtimes besides ours. The containerd configuration is ``ours``, ``other`` or empty."""

    others: Sequence[str] = ()
    containerd_configuration: str = ""


@dataclass(frozen=True)
class Target:
    """Something to dial: a host by its name, where, and for what."""

    name: str
    address: str
    port: int
    protocol: str = "tcp"
    purpose: str = ""


@dataclass(frozen=True)
class Dial:
    """What came back: open, refused (so the way is open), silent, or the reason."""

    name: str
    address: str
    port: int
    protocol: str
    purpose: str
    answer: str


@dataclass(frozen=True)
class UrlAnswer:
    """The HTTP status of a URL, or 0 and the reason."""

    url: str
    status: int
    reason: str = ""


@dataclass(frozen=True)
class Facts:
    """All of it."""

    root: bool = True
    system: System = field(default_factory=System)
    identity: Identity = field(default_factory=Identity)
    clock: Clock = field(default_factory=Clock)
    routes: Sequence[Route] = ()
    listeners: Sequence[Listener] = ()
    dynamic_ports: Sequence[int] = (32768, 60999)
    filesystems: Sequence[Filesystem] = ()
    boot: Boot = field(default_factory=Boot)
    gpu: Gpu = field(default_factory=Gpu)
    runtime: Runtime = field(default_factory=Runtime)
    membership: Membership | None = None
    distributions: Sequence[str] = ()
    dials: Sequence[Dial] = ()
    urls: Sequence[UrlAnswer] = ()


def facts_of(answer: Mapping[str, Any]) -> Facts:
    """Facts again from what a host's module returned; raises TypeError or KeyError where it returned something else."""
    one = {
        "system": System,
        "identity": Identity,
        "clock": Clock,
        "boot": Boot,
        "runtime": Runtime,
    }
    many = {
        "routes": Route,
        "listeners": Listener,
        "filesystems": Filesystem,
        "dials": Dial,
        "urls": UrlAnswer,
    }
    gpu = {**answer["gpu"], "cards": [Card(**card) for card in answer["gpu"]["cards"]]}
    return Facts(
        **{
            **answer,
            **{key: kind(**answer[key]) for key, kind in one.items()},
            **{key: [kind(**each) for each in answer[key]] for key, kind in many.items()},
            "gpu": Gpu(**gpu),
            "membership": Membership(**answer["membership"]) if answer["membership"] else None,
        }
    )


@dataclass(frozen=True)
class Asked:
    """What the controller wants to know besides the host itself. Ports are pairs, first and last."""

    controller_time_s: float = 0.0
    paths: Sequence[str] = ()
    ports: Sequence[tuple[int, int]] = ()
    targets: Sequence[Target] = ()
    urls: Sequence[str] = ()
    timeout_s: float = 3.0


def collect(asked: Asked, root: Path = Path("/")) -> Facts:
    """Everything about the host below ``root``; dials and URLs are asked at the same time."""
    ahead_s = time.time() - asked.controller_time_s if asked.controller_time_s else 0.0
    with ThreadPoolExecutor(max_workers=DIALS_AT_ONCE) as pool:
        dials = [pool.submit(dial, target, asked.timeout_s) for target in asked.targets]
        urls = [pool.submit(ask_url, url, asked.timeout_s) for url in asked.urls]
        member = pool.submit(membership, root, asked.timeout_s)
        facts = Facts(
            root=os.geteuid() == 0,
            system=system(root),
            identity=identity(root),
            clock=Clock(round(ahead_s, 1), clock_synchronised()),
            routes=routes(root),
            listeners=listeners(root, asked.ports),
            dynamic_ports=dynamic_ports(root),
            filesystems=filesystems(root, asked.paths),
            boot=boot(root),
            gpu=gpu(root),
            runtime=runtime(root),
            distributions=[name for name, path in DISTRIBUTIONS.items() if (root / path).exists()],
        )
        answers = {"dials": [each.result() for each in dials], "urls": [each.result() for each in urls]}
    return Facts(**{**facts.__dict__, **answers, "membership": member.result()})


def text(path: Path) -> str:
    """A file's text without the blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def entries(path: Path) -> list[Path]:
    """What is in a folder, sorted; nothing where there is no such folder."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def system(root: Path) -> System:
    """Distribution, kernel, control groups, size, swap."""
    release = dict(re.findall(r"^([A-Z_]+)=[\"']?(.*?)[\"']?$", text(root / "etc/os-release"), re.MULTILINE))
    memory = re.search(r"^MemTotal:\s+(\d+) kB", text(root / "proc/meminfo"), re.MULTILINE)
    kernel = text(root / "proc/sys/kernel/osrelease")
    marks = ("run/systemd/container", "run/.containerenv", ".dockerenv")
    modules = (root / "lib/modules" / kernel, root / "usr/lib/modules" / kernel)
    return System(
        id=release.get("ID", ""),
        version=release.get("VERSION_ID", ""),
        name=release.get("PRETTY_NAME", ""),
        kernel=kernel,
        architecture=os.uname().machine,
        container=any((root / mark).exists() for mark in marks),
        kernel_modules=any((folder / "modules.dep").exists() for folder in modules),
        cgroup=2 if (root / "sys/fs/cgroup/cgroup.controllers").exists() else 1,
        cores=len(re.findall(r"^processor\s*:", text(root / "proc/cpuinfo"), re.MULTILINE)),
        memory_mib=int(memory.group(1)) // 1024 if memory else 0,
        swap=[line.split()[0] for line in text(root / "proc/swaps").splitlines()[1:]],
    )


def identity(root: Path) -> Identity:
    """Names, addresses, and the MAC address of the card that holds the default route.

    Of that card alone: servers' management controllers bring USB network cards with the same address in every server.
    """
    devices = [line.split()[0] for line in _route_lines(root) if line.split()[1:3:2] == ["00000000"]]
    device = devices[0] if devices else ""
    physical = bool(device) and (root / "sys/class/net" / device / "device").exists()
    return Identity(
        hostname=text(root / "proc/sys/kernel/hostname"),
        machine_id=text(root / "etc/machine-id"),
        product_uuid=text(root / "sys/class/dmi/id/product_uuid").lower(),
        mac=text(root / "sys/class/net" / device / "address") if physical else "",
        addresses=sorted(set(re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", text(root / "proc/net/fib_trie")))),
    )


def clock_synchronised() -> bool:
    """Whether something keeps the kernel's clock: adjtimex(2), asked without a change."""
    timex = ctypes.create_string_buffer(512)
    try:
        ctypes.CDLL(None).adjtimex(timex)
    except (OSError, AttributeError):
        return True  # another C library: nothing is known, and nothing is said
    # struct timex: modes, then (aligned) offset, freq and maxerror, each a long.
    maxerror = struct.unpack_from("@illl", timex)[3]
    return bool(maxerror < CLOCK_ERROR_LIMIT_US)


def _route_lines(root: Path) -> list[str]:
    return text(root / "proc/net/route").splitlines()[1:]


def routes(root: Path) -> list[Route]:
    """IPv4 routes except the default one."""
    found = []
    for line in _route_lines(root):
        fields = line.split()
        length = bin(int(fields[7], 16)).count("1")
        if length:
            address = socket.inet_ntoa(struct.pack("<L", int(fields[1], 16)))
            found.append(Route(f"{address}/{length}", fields[0]))
    return found


def listeners(root: Path, ports: Iterable[tuple[int, int]]) -> list[Listener]:
    """Who listens on the asked ports, on any address but the loopback's."""
    wanted = {port for first, last in ports for port in range(first, last + 1)}
    found: dict[tuple[str, int], str] = {}
    for protocol, state in LISTENING.items():
        for suffix in ("", "6"):
            for line in text(root / f"proc/net/{protocol}{suffix}").splitlines()[1:]:
                fields = line.split()
                address, port = fields[1].split(":")
                loopback = re.fullmatch("0{24}01000000|.{6}7F", address)
                if fields[3] == state and int(port, 16) in wanted and not loopback:
                    found[protocol, int(port, 16)] = fields[9]
    programs = programs_of(root, set(found.values())) if found else {}
    return [Listener(*key, programs.get(inode, "")) for key, inode in sorted(found.items())]


def programs_of(root: Path, inodes: set[str]) -> dict[str, str]:
    """The names of the programs that hold sockets, by inode."""
    links = {f"socket:[{inode}]": inode for inode in inodes}
    names = {}
    for process in processes(root):
        for descriptor in entries(process / "fd"):
            inode = links.get(_link(descriptor))
            if inode:
                names[inode] = text(process / "comm")
    return names


def processes(root: Path) -> Iterator[Path]:
    """Folders of the running processes."""
    return (path for path in entries(root / "proc") if path.name.isdigit())


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def dynamic_ports(root: Path) -> list[int]:
    """First and last port that the kernel gives to outgoing connections."""
    numbers = text(root / "proc/sys/net/ipv4/ip_local_port_range").split()
    return [int(number) for number in numbers] or [32768, 60999]


def filesystems(root: Path, paths: Iterable[str]) -> list[Filesystem]:
    """The file systems under folders, or under what will hold them."""
    found: dict[int, list[str]] = {}
    places: dict[int, Path] = {}
    for path in paths:
        place = root / path.lstrip("/")
        while not place.exists():
            place = place.parent
        device = place.stat().st_dev
        found.setdefault(device, []).append(path)
        places[device] = place
    answer = []
    for device, place in places.items():
        mount = place
        while mount != root and mount.parent.stat().st_dev == device:
            mount = mount.parent
        size = os.statvfs(place)
        answer.append(
            Filesystem(
                mount="/" if mount == root else f"/{mount.relative_to(root)}",
                paths=found[device],
                size_mib=size.f_blocks * size.f_frsize // MIB,
                free_mib=size.f_bavail * size.f_frsize // MIB,
            )
        )
    return answer


def boot(root: Path) -> Boot:
    """Secure Boot's state, and whether a key with which this host signs modules is enrolled."""
    if not (root / "sys/firmware/efi").exists():
        return Boot("off")
    try:
        variable = (root / EFIVARS / SECURE_BOOT).read_bytes()
    except OSError:
        return Boot("unknown")
    # The first four bytes are the variable's attributes.
    state = "on" if variable[4:5] == b"\x01" else "off"
    return Boot(state, _key_enrolled(root))


def _key_enrolled(root: Path) -> bool:
    try:
        enrolled = (root / EFIVARS / MOK_LIST).read_bytes()
    except OSError:
        return False
    for name in SIGNING_KEYS:
        try:
            key = (root / name).read_bytes()
        except OSError:
            continue
        if key and key in enrolled:
            return True
    return False


def gpu(root: Path) -> Gpu:
    """NVIDIA's cards (PCI class 0x03, display controllers) and what drives them."""
    found = []
    for path in entries(root / "sys/bus/pci/devices"):
        if text(path / "vendor") == NVIDIA and text(path / "class").startswith("0x03"):
            found.append((path.name, text(path / "device"), os.path.basename(_link(path / "driver"))))
    names = pci_names(root, {device for _address, device, _driver in found})
    information = [text(path / "information") for path in entries(root / "proc/driver/nvidia/gpus")]
    models = [re.search(r"^Model:\s+(.+?)\s*$", each, re.MULTILINE) for each in information]
    programs = {_link(process / "exe") for process in processes(root)} if found else set()
    return Gpu(
        cards=[Card(address, device, names.get(device, ""), driver) for address, device, driver in found],
        models=[model.group(1) for model in models if model],
        driver=text(root / "sys/module/nvidia/version"),
        open_modules="Open Kernel Module" in text(root / "proc/driver/nvidia/version"),
        nouveau=(root / "sys/module/nouveau").exists(),
        runfile=(root / "usr/bin/nvidia-uninstall").exists(),
        device_plugins=sorted(name for program, name in DEVICE_PLUGINS.items() if program in programs),
    )


def pci_names(root: Path, devices: set[str]) -> dict[str, str]:
    """NVIDIA's names of devices from pci.ids, the file that lspci reads."""
    if not devices:
        return {}
    database = next(filter(None, (text(root / name) for name in PCI_IDS)), "")
    section = re.search(r"^10de .*\n((?:[\t#].*\n?)*)", database, re.MULTILINE)
    known = re.findall(r"^\t([0-9a-f]{4})  (.+)$", section.group(1), re.MULTILINE) if section else ()
    return {f"0x{number}": name for number, name in known if f"0x{number}" in devices}


def runtime(root: Path) -> Runtime:
    """Container runtimes that are not ours."""
    configuration = text(root / "etc/containerd/config.toml")
    kind = "" if not configuration else "ours" if CONTAINERD_OURS in configuration.splitlines()[0] else "other"
    return Runtime([name for name, path in RUNTIMES.items() if (root / path).exists()], kind)


def membership(root: Path, timeout_s: float = 0.0) -> Membership | None:
    """The cluster that the kubelet belongs to; the server is empty where its kubeconfig names none."""
    kubeconfig = text(root / "etc/kubernetes/kubelet.conf")
    control_plane = (root / "etc/kubernetes/manifests/kube-apiserver.yaml").exists()
    if not kubeconfig and not control_plane:
        return None
    server = re.search(r"^\s*server:\s*[\"']?([^\s\"']+)", kubeconfig, re.MULTILINE)
    url = server.group(1) if server else ""
    version = server_version(url, kubeconfig, timeout_s) if url and timeout_s else ""
    return Membership(url, authority_of(kubeconfig), control_plane, version)


def authority_of(kubeconfig: str) -> str:
    """The SHA-256 of a kubeconfig's certificate authority; empty where it has none inside."""
    certificate = _authority(kubeconfig)
    return hashlib.sha256(certificate).hexdigest() if certificate else ""


def _authority(kubeconfig: str) -> bytes:
    data = re.search(r"^\s*certificate-authority-data:\s*[\"']?([A-Za-z0-9+/=]+)", kubeconfig, re.MULTILINE)
    try:
        return base64.b64decode(data.group(1), validate=True).strip() if data else b""
    except binascii.Error:
        return b""


def server_version(server: str, kubeconfig: str, timeout_s: float) -> str:
    """The version that an API server tells everybody; empty where the kubeconfig's own one does not answer so."""
    # Costs as much as the rest of this file, and a host that has not joined asks nobody.
    import ssl  # noqa: PLC0415
    from http.client import HTTPException  # noqa: PLC0415
    from urllib.request import HTTPSHandler, ProxyHandler, build_opener  # noqa: PLC0415

    try:
        context = ssl.create_default_context(cadata=_authority(kubeconfig).decode())
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
        with opener.open(f"{server}/version", timeout=timeout_s) as answer:
            return str(json.load(answer)["gitVersion"])
    except (OSError, HTTPException, ValueError, LookupError, TypeError):
        return ""


def dial(target: Target, timeout_s: float) -> Dial:
    """Dial a port. Nothing is sent over TCP; over UDP an empty datagram, which every receiver drops."""
    try:
        answer = (_dial_tcp if target.protocol == "tcp" else _dial_udp)(target.address, target.port, timeout_s)
    except ConnectionRefusedError:
        answer = "refused"
    except socket.timeout:
        answer = "silent"
    except OSError as error:
        answer = error.strerror or str(error)
    return Dial(target.name, target.address, target.port, target.protocol, target.purpose, answer)


def _dial_tcp(address: str, port: int, timeout_s: float) -> str:
    with socket.create_connection((address, port), timeout_s):
        return "open"


def _dial_udp(address: str, port: int, timeout_s: float) -> str:
    family, kind, _protocol, _name, place = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as connection:
        connection.settimeout(timeout_s / 2)
        connection.connect(place)
        # Twice: a host answers only so many of them in a second.
        for _attempt in (1, 2):
            connection.send(b"")
            try:
                connection.recv(1)
            except socket.timeout:
                continue
            return "open"
    return "silent"


def ask_url(url: str, timeout_s: float) -> UrlAnswer:
    """The status of a URL, through the host's proxy where its environment names one."""
    # Costs as much as the rest of this file, and many hosts are asked for none.
    from urllib.error import HTTPError, URLError  # noqa: PLC0415
    from urllib.request import build_opener  # noqa: PLC0415

    try:
        with build_opener().open(url, timeout=timeout_s) as response:
            return UrlAnswer(url, response.status)
    except HTTPError as error:
        return UrlAnswer(url, error.code, error.reason)
    except URLError as error:
        return UrlAnswer(url, 0, str(getattr(error.reason, "strerror", None) or error.reason))
    except (OSError, ValueError) as error:
        return UrlAnswer(url, 0, str(error))
