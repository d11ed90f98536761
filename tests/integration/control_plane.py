"""A Kubernetes API without containers and nodes: etcd, kube-apiserver, and the controllers that tests need.

Real programs, from the cache in which the lab's components are built, on free ports of the loopback. Nodes and pods
are plain objects here: nothing schedules, nothing runs, and what a test writes into a status stays.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import select
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
import yaml
from _build.components import bin_folder, go_version
from _build.manifest import load_components, load_matrix
from _build.progress import BuildError
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from urllib3.exceptions import HTTPError

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
RIGHTS = ROOT / "docs" / "reference" / "rights"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tenantry-gpu"
LOOPBACK = "127.0.0.1"
ISSUER = "https://kubernetes.default.svc"
READY_S = 30.0
POLL_S = 0.05
STOP_S = 10.0
THREADS = 16
# Namespaces end, pods find their service account, quotas count. No other: they would judge nodes that nobody runs.
CONTROLLERS = ("namespace-controller", "serviceaccount-controller", "resourcequota-controller")


class HarnessError(Exception):
    """What keeps the control plane from running, and where its log is."""


def program(component: str, name: str) -> Path:
    """A program from the cache. Raises HarnessError where it was never built."""
    matrix = load_matrix(ROOT / "inventories/lab/group_vars/all/versions.yml", ROOT / "galaxy.yml")
    try:
        path = bin_folder(CACHE, load_components(ROOT / "images/components", matrix)[component], go_version()) / name
    except BuildError as error:
        raise HarnessError(str(error)) from error
    if not path.exists():
        raise HarnessError(f"{path} is not there; `make components` builds it.")
    return path


def free_ports(number: int) -> list[int]:
    """Ports of the loopback on which nobody listens now."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Authority:
    """A certificate authority, its files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "integration-ca")])
        builder = self._builder(self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, user: str, groups: Iterable[str] = (), hosts: Iterable[str] = ("localhost",)) -> Path:
        """A certificate for a client and for a server on the loopback; its key lies beside it as .key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        addresses = [*map(x509.DNSName, hosts), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            self._builder(subject, key)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self.folder / f"{file_name(user)}.crt"
        path.write_bytes(certificate.public_bytes(Encoding.PEM))
        write_key(path.with_suffix(".key"), key)
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
        )


def file_name(user: str) -> str:
    return user.replace(":", "-")


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


class ApiError(Exception):
    """An answer of 400 or above."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """An API by path, for what a test prepares and looks at. Raises ApiError."""

    def __init__(self, server: str, authority: Path, certificate: Path) -> None:
        self._pool = urllib3.HTTPSConnectionPool(
            *server.removeprefix("https://").split(":"),
            maxsize=THREADS,
            ca_certs=str(authority),
            cert_file=str(certificate),
            key_file=str(certificate.with_suffix(".key")),
            retries=False,
            timeout=30,
        )

    def text(self, path: str) -> str:
        return self._send("GET", path).decode()

    def get(self, path: str) -> Object:
        return self._ask("GET", path)

    def items(self, path: str) -> list[Object]:
        return list(self.get(path)["items"])

    def create(self, path: str, body: Object) -> Object:
        return self._ask("POST", path, body)

    def ensure(self, path: str, body: Object) -> None:
        """Create an object that may be there already."""
        try:
            self.create(path, body)
        except ApiError as error:
            if error.status != 409:
                raise

    def replace(self, path: str, body: Object) -> Object:
        return self._ask("PUT", path, body)

    def patch(self, path: str, body: Object) -> Object:
        """A merge patch; a path that ends in /status patches the status."""
        return self._ask("PATCH", path, body)

    def delete(self, path: str) -> Object:
        """Delete an object at once, without grace: nobody here ends a pod's containers."""
        return self._ask("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})

    def create_all(self, path: str, bodies: Iterable[Object]) -> list[Object]:
        """Create many objects, several at a time; a status in a body is written too."""
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(lambda body: self._create_with_status(path, body), bodies))

    def _create_with_status(self, path: str, body: Object) -> Object:
        made = self.create(path, body)
        if "status" not in body:
            return made
        return self.patch(f"{path}/{made['metadata']['name']}/status", {"status": body["status"]})

    def _ask(self, method: str, path: str, body: Object | None = None) -> Object:
        answer: Object = json.loads(self._send(method, path, body))
        return answer

    def _send(self, method: str, path: str, body: Object | None = None) -> bytes:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        response = self._pool.request(method, path, body=data, headers={"Content-Type": kind})
        if response.status >= 400:
            text = response.data.decode(errors="replace")
            raise ApiError(f"{method} {path}: {response.status} {text}", response.status)
        return response.data


class Network:
    """The cluster's network as the API server sees it: an HTTP CONNECT proxy that knows where addresses lead.

    Services, pods and kubelets have no containers here; a test routes their addresses to servers of its own.
    """

    def __init__(self, path: Path) -> None:
        self.routes: dict[str, int] = {}  # host:port in the cluster: port on the loopback
        self.dialled: list[str] = []
        self._open: dict[socket.socket, str] = {}
        network = self

        class Tunnel(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                target = self.rfile.readline().decode().split(" ")[1]
                while self.rfile.readline().strip():
                    pass
                network.dialled.append(target)
                if target not in network.routes:
                    self.wfile.write(b"HTTP/1.1 502 no route\r\n\r\n")
                    return
                with socket.create_connection((LOOPBACK, network.routes[target])) as there:
                    network._open[there] = target
                    self.wfile.write(b"HTTP/1.1 200 connected\r\n\r\n")
                    pipe(self.connection, there)
                    del network._open[there]

        self._server = socketserver.ThreadingUnixStreamServer(str(path), Tunnel)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def unroute(self, address: str) -> None:
        """Nobody answers at an address any more; connections that the API server kept end, too."""
        self.routes.pop(address, None)
        for there, target in list(self._open.items()):
            if target == address:
                there.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def pipe(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until either side ends."""
    while True:
        for ready in select.select([one, other], [], [])[0]:
            try:
                data = ready.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            (other if ready is one else one).sendall(data)


@dataclass(frozen=True)
class Process:
    name: str
    running: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        if self.running.poll() is not None:
            last = "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])
            raise HarnessError(f"{self.name} ended with {self.running.returncode}; {self.log} ends with:\n{last}")


def egress_configuration(path: Path) -> Object:
    """Sends what the API server dials in the cluster through Network."""
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(path)}}}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }


class ControlPlane:
    """One API. ``start()`` returns when it serves, ``stop()`` when every program has ended; the logs stay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "pki")
        etcd, etcd_peer, api, manager = free_ports(4)
        self.server = f"https://{LOOPBACK}:{api}"
        self._etcd, self._etcd_peer = f"http://{LOOPBACK}:{etcd}", f"http://{LOOPBACK}:{etcd_peer}"
        self._api_port, self._manager_port = api, manager
        self._processes: list[Process] = []
        self._egress = folder / "network.sock"
        self.network = Network(self._egress)
        self.kubeconfig = self.new_kubeconfig("integration-admin", ["system:masters"])
        self.api = self.api_for("integration-admin")

    def start(self) -> None:
        self._start_etcd()
        self._start_api_server()
        self._wait(lambda: self.api.text("/readyz") == "ok")
        self._start_controllers()
        self._wait(lambda: bool(self.api.get("/api/v1/namespaces/default/serviceaccounts/default")))

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.running.terminate()
            try:
                process.running.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.running.kill()
                process.running.wait()
        self._processes.clear()
        self.network.stop()

    def pid(self, name: str) -> int:
        """The process of a program, for tests that stop it for a while."""
        return next(process.running.pid for process in self._processes if process.name == name)

    def api_for(self, user: str) -> Api:
        """The API as a user who has a certificate (new_kubeconfig) sees it."""
        return Api(self.server, self.authority.certificate, self.authority.folder / f"{file_name(user)}.crt")

    def new_kubeconfig(self, user: str, groups: Iterable[str] = ()) -> Path:
        """A kubeconfig of a user who is known by a certificate and has no rights but what groups have."""
        certificate = self.authority.issue(user, groups)
        credentials = {"client-certificate": str(certificate), "client-key": str(certificate.with_suffix(".key"))}
        return self.write_kubeconfig(user, credentials)

    def write_kubeconfig(self, name: str, credentials: Mapping[str, str], server: str = "") -> Path:
        """A kubeconfig with credentials as a kubeconfig's user has them, for this API or what stands before it."""
        cluster = {"server": server or self.server, "certificate-authority": str(self.authority.certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "integration", "cluster": cluster}],
            "users": [{"name": name, "user": dict(credentials)}],
            "contexts": [{"name": "integration", "context": {"cluster": "integration", "user": name}}],
            "current-context": "integration",
        }
        path = self.folder / f"{file_name(name)}.conf"
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))
        return path

    def kubeconfig_of_module(self, module: str) -> Path:
        """A kubeconfig with exactly the rights that docs/reference/rights gives a module; without a file: none."""
        user, manifest = f"user-of-{module.replace('_', '-')}", RIGHTS / f"{module}.yml"
        path = self.new_kubeconfig(user)
        if manifest.exists():
            self.grant(user, manifest)
        return path

    def grant(self, user: str, manifest: Path) -> None:
        """Give a user exactly the roles of a manifest: ClusterRoles everywhere, Roles in their namespace."""
        for role in filter(None, yaml.safe_load_all(manifest.read_text())):
            self._bind(user, role)

    def _bind(self, user: str, role: Mapping[str, Any]) -> None:
        kind, name, namespace = role["kind"], role["metadata"]["name"], role["metadata"].get("namespace")
        base = "/apis/rbac.authorization.k8s.io/v1" + (f"/namespaces/{namespace}" if namespace else "")
        binding = {
            "metadata": {"name": f"{user}-{name}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        self.api.ensure(f"{base}/{kind.lower()}s", dict(role))
        self.api.ensure(f"{base}/{kind.lower()}bindings", binding)

    def _start_etcd(self) -> None:
        self._run(
            program("etcd", "etcd"),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={self._etcd_peer}",
            f"--initial-advertise-peer-urls={self._etcd_peer}",
            f"--initial-cluster=default={self._etcd_peer}",
            "--unsafe-no-fsync",
        )

    def _start_api_server(self) -> None:
        certificate = self.authority.issue("kube-apiserver")
        key = self.folder / "pki" / "service-accounts.key"
        signing_key = ec.generate_private_key(ec.SECP256R1())
        write_key(key, signing_key)
        public = key.with_suffix(".pub")
        public.write_bytes(signing_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        egress = self.folder / "egress.json"
        egress.write_text(json.dumps(egress_configuration(self._egress)))
        self._run(
            program("kubernetes", "kube-apiserver"),
            f"--etcd-servers={self._etcd}",
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            f"--secure-port={self._api_port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={certificate.with_suffix('.key')}",
            f"--client-ca-file={self.authority.certificate}",
            "--authorization-mode=Node,RBAC",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.112.0.0/16",
            "--enable-bootstrap-token-auth=true",
            "--endpoint-reconciler-type=none",
            f"--egress-selector-config-file={egress}",
        )

    def _start_controllers(self) -> None:
        kubeconfig = self.new_kubeconfig("system:kube-controller-manager")
        self._run(
            program("kubernetes", "kube-controller-manager"),
            f"--kubeconfig={kubeconfig}",
            f"--controllers={','.join(CONTROLLERS)}",
            "--use-service-account-credentials=false",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={self._manager_port}",
            f"--cert-dir={self.folder / 'pki'}",
            "--leader-elect=false",
        )

    def _run(self, path: Path, *arguments: str) -> None:
        log = self.folder / f"{path.name}.log"
        # A test run that is killed takes its programs along.
        command = ["setpriv", "--pdeathsig", "TERM", str(path), *arguments]
        with log.open("wb") as stream:
            running = subprocess.Popen(command, stdout=stream, stderr=stream, cwd=self.folder, start_new_session=True)
        self._processes.append(Process(path.name, running, log))

    def _wait(self, ready: Any) -> None:
        deadline = time.monotonic() + READY_S
        seen = ""
        while time.monotonic() < deadline:
            for process in self._processes:
                process.check()
            try:
                if ready():
                    return
            except (ApiError, HTTPError) as error:
                seen = str(error)
            time.sleep(POLL_S)
        raise HarnessError(f"{self.server} is not ready after {READY_S:.0f} s: {seen}; the logs are in {self.folder}.")
