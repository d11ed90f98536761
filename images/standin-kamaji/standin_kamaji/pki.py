# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Certificates, kubeconfigs and keys of a tenant: what is there and good stays, the rest is made anew.

kubeadm makes them; only the two kinds that it does not know are made here: the client certificate for etcd
(internal/resources/datastore/datastore_certificate.go) and the keys of the tunnel.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .model import ControlPlane
from .programs import kubeadm_documents, kubeadm_phase, write_documents

Data = dict[str, bytes]

RENEW_BEFORE = datetime.timedelta(hours=24)
NOBODY_YET = "192.0.2.1"  # stands for the address until the Service has one (RFC 5737)

# Secret: its certificates and keys as kubeadm names the files.
FILES = {
    "ca": ("ca.crt", "ca.key"),
    "front-proxy-ca-certificate": ("front-proxy-ca.crt", "front-proxy-ca.key"),
    "sa-certificate": ("sa.pub", "sa.key"),
    "api-server-certificate": ("apiserver.crt", "apiserver.key"),
    "api-server-kubelet-client-certificate": ("apiserver-kubelet-client.crt", "apiserver-kubelet-client.key"),
    "front-proxy-client-certificate": ("front-proxy-client.crt", "front-proxy-client.key"),
}
SIGNED_BY = {
    "api-server-certificate": "ca",
    "api-server-kubelet-client-certificate": "ca",
    "front-proxy-client-certificate": "front-proxy-ca-certificate",
}
KUBECONFIGS = {
    "admin-kubeconfig": ("admin.conf", "super-admin.conf"),
    "controller-manager-kubeconfig": ("controller-manager.conf",),
    "scheduler-kubeconfig": ("scheduler.conf",),
}


def _good(certificate: bytes, authority: bytes | None, names: Iterable[str] = ()) -> bool:
    """True where the certificate is signed by the authority (None: any), lasts, and holds the names."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        if authority is not None:
            parsed.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    if parsed.not_valid_after_utc - RENEW_BEFORE < datetime.datetime.now(datetime.UTC):
        return False
    wanted = set(names)
    if not wanted:
        return True
    extension = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    held = set(extension.get_values_for_type(x509.DNSName))
    held |= {str(address) for address in extension.get_values_for_type(x509.IPAddress)}
    return wanted <= held


def _with_server(kubeconfig: bytes, server: str) -> bytes:
    config = yaml.safe_load(kubeconfig)
    for item in config["clusters"]:
        item["cluster"]["server"] = server
    return yaml.safe_dump(config, sort_keys=False).encode()


def _good_kubeconfig(text: bytes, authority: bytes, server: str) -> bool:
    try:
        config = yaml.safe_load(text)
        cluster = config["clusters"][0]["cluster"]
        user = config["users"][0]["user"]
        certificate = base64.b64decode(user["client-certificate-data"])
        held = base64.b64decode(cluster["certificate-authority-data"])
    except (yaml.YAMLError, KeyError, IndexError, TypeError, ValueError):
        return False
    return cluster["server"] == server and held == authority and _good(certificate, authority)


class Workshop:
    """A tenant's folder in which kubeadm works. `found` is what the tenant's Secrets hold."""

    def __init__(self, plane: ControlPlane, folder: Path, etcd_endpoints: Iterable[str]) -> None:
        self._plane = plane
        self._folder = folder
        self._pki = folder / "pki"
        self._pki.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._endpoints = tuple(etcd_endpoints)

    def _config(self, address: str) -> Path:
        documents = kubeadm_documents(self._plane, address, self._endpoints, str(self._pki))
        return write_documents(self._folder / f"certs-{address.replace(':', '-')}.yaml", documents)

    def _lay_out(self, found: Mapping[str, Data]) -> None:
        """Writes those certificates that are good; kubeadm keeps what it finds."""
        for file in self._pki.iterdir():
            file.unlink()
        for secret, files in FILES.items():
            data = found.get(secret, {})
            if not set(files) <= set(data) or secret == "api-server-certificate":
                continue
            authority = SIGNED_BY.get(secret)
            signer = found.get(authority, {}).get(FILES[authority][0], b"") if authority else None
            if secret == "sa-certificate" or _good(data[files[0]], signer):
                for file_name in files:
                    (self._pki / file_name).write_bytes(data[file_name])

    def _read(self, secret: str) -> Data:
        return {name: (self._pki / name).read_bytes() for name in FILES[secret]}

    async def authorities(self, found: Mapping[str, Data]) -> dict[str, Data]:
        """Returns everything that does not depend on the address: all of FILES but the API server's certificate."""
        self._lay_out(found)
        secrets = [secret for secret in FILES if secret != "api-server-certificate"]
        if not all((self._pki / name).exists() for secret in secrets for name in FILES[secret]):
            await kubeadm_phase("certs", "all", config=self._config(NOBODY_YET))
            for name in FILES["api-server-certificate"]:
                (self._pki / name).unlink()
        made = {secret: self._read(secret) for secret in secrets}
        ca = made["ca"]  # under both pairs of names, as Cluster API reads them
        ca |= {"tls.crt": ca["ca.crt"], "tls.key": ca["ca.key"]}
        return made

    async def api_server(self, found: Data, address: str) -> Data:
        """Returns the API server's certificate and key, for this address."""
        ca = (self._pki / "ca.crt").read_bytes()
        names = {address, "localhost", self._plane.service_name, *self._plane.network.get("certSANs", [])}
        names = {str(ipaddress.ip_address(name)) if ":" in name else name for name in names}
        if _good(found.get("apiserver.crt", b""), ca, names) and "apiserver.key" in found:
            return {name: found[name] for name in FILES["api-server-certificate"]}
        for name in FILES["api-server-certificate"]:
            with contextlib.suppress(FileNotFoundError):
                (self._pki / name).unlink()
        await kubeadm_phase("certs", "apiserver", config=self._config(address))
        return self._read("api-server-certificate")

    async def kubeconfigs(self, found: Mapping[str, Data], address: str) -> dict[str, Data]:
        """Returns KUBECONFIGS' Secrets: for the outside, for the management cluster (.svc), for the pod itself."""
        ca = (self._pki / "ca.crt").read_bytes()
        host = f"[{address}]" if ":" in address else address
        port = self._plane.port
        outside, inside = f"https://{host}:{port}", f"https://{self._plane.service_name}:{port}"
        local = f"https://127.0.0.1:{port}"
        kept: dict[str, Data] = {}
        for secret, files in KUBECONFIGS.items():
            server = outside if secret == "admin-kubeconfig" else local
            data = found.get(secret, {})
            if all(_good_kubeconfig(data.get(name, b""), ca, server) for name in files):
                kept[secret] = data
        if len(kept) == len(KUBECONFIGS):
            return kept
        await kubeadm_phase("kubeconfig", "all", config=self._config(address), kubeconfig_dir=self._folder)
        for secret, files in KUBECONFIGS.items():
            if secret in kept:
                continue
            texts = {name: (self._folder / name).read_bytes() for name in files}
            if secret == "admin-kubeconfig":
                kept[secret] = {name: _with_server(text, outside) for name, text in texts.items()}
                kept[secret] |= {
                    name.replace(".conf", ".svc"): _with_server(text, inside) for name, text in texts.items()
                }
            else:
                kept[secret] = {name: _with_server(text, local) for name, text in texts.items()}
        for file in self._folder.glob("*.conf"):
            file.unlink()
        return kept

    async def all(self, found: Mapping[str, Data], address: asyncio.Future[str]) -> dict[str, Data]:
        """Returns all of FILES and KUBECONFIGS; works on what it can until the address is known."""
        made = await self.authorities(found)
        known = await address
        server, kubeconfigs = await asyncio.gather(
            self.api_server(found.get("api-server-certificate", {}), known), self.kubeconfigs(found, known)
        )
        return {**made, "api-server-certificate": server, **kubeconfigs}


def etcd_client(user: str, ca: bytes, ca_key: bytes, found: Data) -> Data:
    """Returns ca.crt, server.crt and server.key with which the tenant's API server is `user` in etcd."""
    if found.get("ca.crt") == ca and "server.key" in found and _good(found.get("server.crt", b""), ca):
        return {name: found[name] for name in ("ca.crt", "server.crt", "server.key")}
    authority = x509.load_pem_x509_certificate(ca)
    signer = load_pem_private_key(ca_key, None)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, user)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(min(now + datetime.timedelta(days=3650), authority.not_valid_after_utc))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer, None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256())  # type: ignore[arg-type]
    )
    return {
        "ca.crt": ca,
        "server.crt": certificate.public_bytes(Encoding.PEM),
        "server.key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }


TUNNEL_KEYS = ("host-key", "host-key.pub", "agent-key", "agent-key.pub")


def tunnel_keys(found: Data) -> Data:
    """Returns the tunnel's two key pairs in OpenSSH's format: the server's, and the one of its agents."""
    if set(TUNNEL_KEYS) <= set(found):
        return {name: found[name] for name in TUNNEL_KEYS}
    made: Data = {}
    for name in ("host-key", "agent-key"):
        key = ed25519.Ed25519PrivateKey.generate()
        made[name] = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        made[f"{name}.pub"] = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return made
