# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The stand-in for Kamaji, part by part; kubeadm, etcd and the clusters are the contract tests' and the lab's."""

from __future__ import annotations

import asyncio
import base64
import copy
import datetime
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from standin_kamaji import datastores, manifests, model, pki, programs, reconcile, tenant
from standin_kamaji.api import Api, path_of, path_of_manifest

CHART = Path(__file__).parents[3] / "images" / "standin-kamaji" / "chart"

RESOURCE: dict[str, Any] = {
    "apiVersion": model.API_VERSION,
    "kind": "TenantControlPlane",
    "metadata": {"name": "tenant-a", "namespace": "teams", "uid": "7d1c", "generation": 3, "resourceVersion": "1"},
    "spec": {
        "controlPlane": {
            "deployment": {
                "replicas": 1,
                "extraArgs": {"apiServer": ["--profiling=false", "--secure-port=1", "--allow-privileged=false"]},
                "probes": {"startup": {"failureThreshold": 9}, "apiServer": {"startup": {"periodSeconds": 7}}},
            },
            "service": {"serviceType": "LoadBalancer"},
        },
        "kubernetes": {"version": "v1.36.3", "kubelet": {}, "admissionControllers": ["NodeRestriction"]},
        "networkProfile": {"serviceCidr": "10.112.0.0/16", "podCidr": "10.32.0.0/16"},
        "addons": {"coreDNS": {}, "konnectivity": {"agent": {"hostNetwork": True}}},
    },
}
ENDPOINTS = ("etcd-0:2379", "etcd-1:2379")


def resource(**spec: Any) -> dict[str, Any]:
    """The resource with parts of its spec, named by dotted paths, replaced."""
    made = copy.deepcopy(RESOURCE)
    for path, value in spec.items():
        *folders, last = path.split("__")
        part = made["spec"]
        for folder in folders:
            part = part.setdefault(folder, {})
        part[last] = value
    return made


def plane(**spec: Any) -> model.ControlPlane:
    return model.control_plane(resource(**spec), "default")


def deployment(of: model.ControlPlane) -> dict[str, Any]:
    names = [*manifests.HASHED, "datastore-config", "datastore-certificate", "konnectivity-certificate"]
    return manifests.deployment(of, "172.28.0.128", ENDPOINTS, {name: {"key": name.encode()} for name in names})


def containers(of: model.ControlPlane) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in deployment(of)["spec"]["template"]["spec"]["containers"]}


class TestModel:
    def test_defaults(self) -> None:
        made = plane()
        assert (made.datastore, made.schema, made.user, made.port) == ("default", "7d1c", "7d1c", 6443)
        assert made.dns_ips == ("10.112.0.10",)
        assert made.domain == "cluster.local"

    def test_schema_of_the_status_stays(self) -> None:
        made = resource(dataStoreSchema="later")
        made["status"] = {"storage": {"setup": {"schema": "first", "user": "one"}}}
        read = model.control_plane(made, "default")
        assert (read.schema, read.user) == ("first", "one")

    def test_no_datastore(self) -> None:
        with pytest.raises(model.SpecError, match="name a DataStore"):
            model.control_plane(RESOURCE, "")

    def test_bad_network(self) -> None:
        with pytest.raises(model.SpecError, match=r"networkProfile.podCidr: .*10.32.0.1/16"):
            plane(networkProfile__podCidr="10.32.0.1/16")

    @pytest.mark.parametrize(
        ("wanted", "installed", "sentence"),
        [
            ("v1.36.3", None, None),
            ("v1.36.0", "v1.36.3", None),
            ("v1.36.0", "v1.35.4", None),
            ("v1.37.0", None, "newer than the newest supported minor, v1.36"),
            ("v1.35.9", "v1.36.0", "unable to downgrade from v1.36.0 to v1.35.9"),
            ("v1.36.0", "v1.34.1", "go to v1.35 first"),
        ],
    )
    def test_versions(self, wanted: str, installed: str | None, sentence: str | None) -> None:
        before = model.Version.parse(installed) if installed else None
        if sentence is None:
            model.check_version(model.Version.parse(wanted), before)
            return
        with pytest.raises(model.SpecError, match=sentence):
            model.check_version(model.Version.parse(wanted), before)

    @given(st.tuples(*[st.integers(0, 99)] * 3))
    def test_version_is_read_as_it_is_written(self, parts: tuple[int, int, int]) -> None:
        assert model.Version.parse(str(model.Version(*parts))) == model.Version(*parts)

    def test_no_version(self) -> None:
        with pytest.raises(model.SpecError, match=r"'latest' is no version"):
            model.Version.parse("latest")

    def test_ignored_fields_are_named(self) -> None:
        made = resource(
            writePermissions={"blockCreation": True},
            controlPlane__ingress={"hostname": "x"},
            controlPlane__deployment__resources={"kine": {}, "apiServer": {}},
            addons__konnectivity__server={"extraArgs": ["-v=9"], "port": 8132},
            unheard_of=1,
        )
        assert sorted(model.ignored(made["spec"])) == [
            "addons.konnectivity.server.extraArgs",
            "controlPlane.ingress",
            "unheard_of",
            "writePermissions",
        ]

    def test_everything_that_the_lab_sets_is_honoured(self) -> None:
        assert list(model.ignored(RESOURCE["spec"])) == []


class TestDataStore:
    def store(self, **tls: Any) -> dict[str, Any]:
        content = {"content": base64.b64encode(b"pem").decode()}
        both = {"certificate": content, "privateKey": content}
        tls_config = {"certificateAuthority": both, "clientCertificate": both, **tls}
        spec = {"driver": "etcd", "endpoints": list(ENDPOINTS), "tlsConfig": tls_config}
        return {"metadata": {"name": "default"}, "spec": spec}

    def test_content_and_reference(self) -> None:
        reference = {"secretReference": {"name": "certs", "namespace": "kamaji-system", "keyPath": "ca.crt"}}
        made = model.data_store(self.store(certificateAuthority={"certificate": reference, "privateKey": reference}))
        assert made.certificate.content == b"pem"
        assert (made.ca.secret, made.ca.key) == (("kamaji-system", "certs"), "ca.crt")

    def test_nothing_where_a_key_should_be(self) -> None:
        bad = self.store(clientCertificate={"certificate": {"content": "cGVt"}})
        with pytest.raises(model.SpecError, match=r"tlsConfig.clientCertificate.privateKey has neither"):
            model.data_store(bad)

    def test_no_base64(self) -> None:
        with pytest.raises(model.SpecError, match=r"certificate.content is no base64"):
            model.data_store(self.store(certificateAuthority={"certificate": {"content": "%%"}}))

    def test_another_driver(self) -> None:
        made = self.store()
        made["spec"]["driver"] = "MySQL"
        with pytest.raises(model.SpecError, match="driver MySQL is not served here"):
            model.data_store(made)

    def test_users(self) -> None:
        moved = resource(dataStore="new")
        moved["status"] = {"storage": {"dataStoreName": "old"}}
        assert datastores.users_of("old", [moved], "default") == ["teams/tenant-a"]
        assert datastores.users_of("default", [RESOURCE], "default") == ["teams/tenant-a"]
        assert datastores.users_of("default", [moved], "default") == []


class TestManifests:
    def test_service(self) -> None:
        made = manifests.service(plane())
        assert made["spec"]["type"] == "LoadBalancer"
        assert [(port["name"], port["port"]) for port in made["spec"]["ports"]] == [
            ("kube-apiserver", 6443),
            ("konnectivity-server", 8132),
        ]
        assert made["metadata"]["ownerReferences"][0]["uid"] == "7d1c"

    def test_node_port_is_the_port(self) -> None:
        made = manifests.service(plane(controlPlane__service={"serviceType": "NodePort"}, networkProfile__port=31000))
        assert made["spec"]["ports"][0]["nodePort"] == 31000

    def test_arguments_of_the_user(self) -> None:
        arguments = manifests.api_server_arguments(plane(), "172.28.0.128", ENDPOINTS)
        assert "--profiling=false" in arguments
        assert "--allow-privileged=false" in arguments
        assert "--allow-privileged=true" not in arguments
        assert "--secure-port=6443" in arguments
        assert "--secure-port=1" not in arguments
        assert "--etcd-prefix=/7d1c" in arguments
        assert "--etcd-servers=https://etcd-0:2379,https://etcd-1:2379" in arguments
        assert "--enable-admission-plugins=NodeRestriction" in arguments

    def test_containers(self) -> None:
        made = containers(plane())
        assert list(made) == ["kube-apiserver", "kube-scheduler", "kube-controller-manager", "konnectivity-server"]
        assert made["kube-apiserver"]["image"] == "registry.k8s.io/kube-apiserver:v1.36.3"
        assert made["konnectivity-server"]["image"] == "registry.k8s.io/kas-network-proxy/proxy-server:v0.36.0"

    def test_without_konnectivity(self) -> None:
        bare = plane(addons={"coreDNS": {}})
        assert "konnectivity-server" not in containers(bare)
        assert not [word for word in containers(bare)["kube-apiserver"]["args"] if "egress" in word]
        assert len(manifests.service(bare)["spec"]["ports"]) == 1

    def test_agents_key_is_not_in_the_pod(self) -> None:
        volumes = deployment(plane())["spec"]["template"]["spec"]["volumes"]
        keys = next(volume for volume in volumes if volume["name"] == "konnectivity-keys")
        assert [item["key"] for item in keys["secret"]["items"]] == ["host-key", "agent-key.pub"]

    def test_probes_of_the_user(self) -> None:
        made = containers(plane())
        assert made["kube-apiserver"]["startupProbe"]["periodSeconds"] == 7
        assert made["kube-apiserver"]["startupProbe"]["failureThreshold"] == 9
        assert made["kube-scheduler"]["startupProbe"]["periodSeconds"] == 1

    def test_every_mount_has_its_volume(self) -> None:
        pod = deployment(plane())["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for item in pod["containers"] for mount in item["volumeMounts"]} == volumes

    def test_a_new_certificate_rolls_the_deployment_out(self) -> None:
        names = [*manifests.HASHED, "datastore-config", "datastore-certificate", "konnectivity-certificate"]
        secrets = {name: {"key": b"1"} for name in names}
        one = manifests.deployment(plane(), "a", ENDPOINTS, secrets)
        other = manifests.deployment(plane(), "a", ENDPOINTS, {**secrets, "api-server-certificate": {"key": b"2"}})
        assert one["spec"]["template"]["metadata"] != other["spec"]["template"]["metadata"]

    def test_secret(self) -> None:
        made = manifests.secret(plane(), "admin-kubeconfig", {"admin.conf": b"text"})
        assert made["metadata"]["name"] == "tenant-a-admin-kubeconfig"
        assert made["metadata"]["labels"]["kamaji.clastix.io/name"] == "tenant-a"
        assert made["metadata"]["annotations"] == {"kamaji.clastix.io/checksum": "1cb251ec0d568de6a929b520c4aed8d1"}
        assert base64.b64decode(made["data"]["admin.conf"]) == b"text"


class TestTenant:
    def test_kubelet_configuration(self) -> None:
        patches = [
            {"op": "add", "path": "/cgroupDriver", "value": "systemd"},
            {"op": "replace", "path": "/failSwapOn", "value": False},
            {"op": "remove", "path": "/crashLoopBackOff/maxContainerRestartPeriod"},
        ]
        made = yaml.safe_load(
            tenant.kubelet_configuration(plane(kubernetes__kubelet={"configurationJSONPatches": patches}))
        )
        assert (made["cgroupDriver"], made["failSwapOn"], made["crashLoopBackOff"]) == ("systemd", False, {})
        assert (made["clusterDNS"], made["clusterDomain"]) == (["10.112.0.10"], "cluster.local")
        assert made["authentication"]["x509"]["clientCAFile"] == "/etc/kubernetes/pki/ca.crt"

    def test_cgroup_driver_is_left_to_the_patches(self) -> None:
        assert "cgroupDriver" not in yaml.safe_load(tenant.kubelet_configuration(plane()))
        made = yaml.safe_load(tenant.kubelet_configuration(plane(kubernetes__kubelet={"cgroupfs": "systemd"})))
        assert made["cgroupDriver"] == "systemd"

    def test_patch_that_does_not_fit(self) -> None:
        bad = plane(
            kubernetes__kubelet={"configurationJSONPatches": [{"op": "replace", "path": "/nowhere/x", "value": 1}]}
        )
        with pytest.raises(model.SpecError, match="configurationJSONPatches cannot be applied"):
            tenant.kubelet_configuration(bad)

    @pytest.mark.parametrize("mode", ["DaemonSet", "Deployment"])
    def test_agent(self, mode: str) -> None:
        of = plane(addons__konnectivity={"agent": {"mode": mode, "hostNetwork": True, "replicas": 2, "version": "v1"}})
        assert of.konnectivity
        keys = {"agent-key": b"private", "host-key.pub": b"ssh-ed25519 AAAA"}
        _, secret, workload = tenant.agent_objects(of, of.konnectivity, "172.28.0.128", keys)
        assert workload["kind"] == mode
        assert workload["spec"].get("replicas") == (2 if mode == "Deployment" else None)
        pod = workload["spec"]["template"]["spec"]
        assert pod["hostNetwork"]
        assert pod["tolerations"] == [{"key": "CriticalAddonsOnly", "operator": "Exists"}]
        assert pod["containers"][0]["image"].endswith("/proxy-agent:v1")
        assert "--networks=10.112.0.0/16,10.32.0.0/16" in pod["containers"][0]["args"]
        assert base64.b64decode(secret["data"]["known-hosts"]) == b"[172.28.0.128]:8132 ssh-ed25519 AAAA\n"

    def test_cluster_info_has_no_user(self) -> None:
        cluster = {"server": "https://a:6443", "certificate-authority-data": "Y2E="}
        text = yaml.safe_dump({"clusters": [{"name": "x", "cluster": cluster}], "users": [{"name": "secret"}]})
        made = yaml.safe_load(tenant.cluster_info(text.encode()))
        assert made["clusters"] == [{"name": "", "cluster": cluster}]
        assert made["users"] is None


def authority(days: int = 30, name: str = "ca") -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), text


class TestPki:
    def test_client_certificate_names_the_user(self) -> None:
        ca, key = authority()
        made = pki.etcd_client("7d1c", ca, key, {})
        certificate = x509.load_pem_x509_certificate(made["server.crt"])
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
        assert certificate.subject.rfc4514_string() == "CN=7d1c"
        assert certificate.not_valid_after_utc <= x509.load_pem_x509_certificate(ca).not_valid_after_utc

    def test_good_one_stays(self) -> None:
        ca, key = authority()
        made = pki.etcd_client("7d1c", ca, key, {})
        assert pki.etcd_client("7d1c", ca, key, made) == made

    def test_new_authority_makes_a_new_one(self) -> None:
        made = pki.etcd_client("7d1c", *authority(), {})
        ca, key = authority()
        assert pki.etcd_client("7d1c", ca, key, made)["server.crt"] != made["server.crt"]

    def test_one_about_to_end_is_renewed(self) -> None:
        ca, key = authority(days=0)
        made = pki.etcd_client("7d1c", ca, key, {})
        assert pki.etcd_client("7d1c", ca, key, made) != made

    def test_tunnel_keys(self) -> None:
        made = pki.tunnel_keys({})
        assert made["host-key.pub"].startswith(b"ssh-ed25519 ")
        assert made["agent-key"].startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
        assert pki.tunnel_keys(made) == made


class TestReconcile:
    @pytest.mark.parametrize(
        ("replicas", "status", "furnished", "installed", "state"),
        [
            (0, {}, False, None, "Sleeping"),
            (1, {}, False, None, "Provisioning"),
            (1, {"readyReplicas": 1, "updatedReplicas": 1, "replicas": 1}, False, None, "Provisioning"),
            (1, {"readyReplicas": 1, "updatedReplicas": 1, "replicas": 1}, True, None, "Ready"),
            (1, {"updatedReplicas": 1, "replicas": 1, "unavailableReplicas": 1}, True, "v1.36.3", "NotReady"),
            (1, {"readyReplicas": 1, "updatedReplicas": 1, "replicas": 2}, True, "v1.36.2", "Upgrading"),
            (1, {"readyReplicas": 1, "updatedReplicas": 1, "replicas": 1}, False, "v1.36.3", "Ready"),
        ],
    )
    def test_state(
        self, replicas: int, status: dict[str, int], furnished: bool, installed: str | None, state: str
    ) -> None:
        made = resource(controlPlane__deployment={"replicas": replicas})
        made["status"] = {"kubernetesResources": {"version": {"version": installed}}} if installed else {}
        of = model.control_plane(made, "default")
        seen = {"metadata": {"generation": 2}, "status": {"observedGeneration": 2, **status}}
        assert reconcile._running(of, {}, seen, furnished)["kubernetesResources"]["version"]["status"] == state

    def test_times_alone_are_no_difference(self) -> None:
        old = {"ca": {"checksum": "1", "lastUpdate": "then"}}
        assert reconcile._difference(old, {"ca": {"checksum": "1", "lastUpdate": "now"}}) == {}
        assert reconcile._difference(old, {"ca": {"checksum": "2", "lastUpdate": "now"}}) == {
            "ca": {"checksum": "2", "lastUpdate": "now"}
        }

    def test_pod_that_does_not_start(self) -> None:
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        pod = {"status": {"containerStatuses": [{"name": "kube-apiserver", "state": waiting}]}}
        assert reconcile._what_holds_up(pod) == "kube-apiserver ImagePullBackOff no such image"


class TestPrograms:
    def test_documents(self) -> None:
        init, cluster = programs.kubeadm_documents(plane(), "172.28.0.128", ENDPOINTS)
        assert init["localAPIEndpoint"] == {"advertiseAddress": "172.28.0.128", "bindPort": 6443}
        assert cluster["controlPlaneEndpoint"] == "172.28.0.128:6443"
        assert cluster["networking"]["serviceSubnet"] == "10.112.0.0/16"
        assert {"172.28.0.128", "localhost", "tenant-a.teams.svc"} <= set(cluster["apiServer"]["certSANs"])

    def test_tag_without_repository_is_not_read(self) -> None:
        _, cluster = programs.kubeadm_documents(plane(addons={"coreDNS": {"imageTag": "v9"}}), "a", ENDPOINTS)
        assert "dns" not in cluster

    def test_failure_says_what_the_program_said(self) -> None:
        code = "import sys; sys.exit('no such phase')"
        with pytest.raises(programs.ProgramError, match="no such phase"):
            asyncio.run(programs.run(sys.executable, "-c", code))

    def test_program_that_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(programs, "TIMEOUT_S", 0.1)
        with pytest.raises(programs.ProgramError, match=r"no end after 0.1 s"):
            asyncio.run(programs.run(sys.executable, "-c", "import time; time.sleep(30)"))


class TestApi:
    @pytest.mark.parametrize(
        ("arguments", "path"),
        [
            (("v1", "Pod", "a", "b"), "/api/v1/namespaces/a/pods/b"),
            (("apps/v1", "Deployment", "a"), "/apis/apps/v1/namespaces/a/deployments"),
            ((model.API_VERSION, "DataStore", None, "x"), "/apis/kamaji.clastix.io/v1alpha1/datastores/x"),
        ],
    )
    def test_path(self, arguments: tuple[str, ...], path: str) -> None:
        assert path_of(*arguments) == path

    def test_every_manifest_has_a_path(self) -> None:
        assert path_of_manifest(deployment(plane())) == "/apis/apps/v1/namespaces/teams/deployments/tenant-a"

    def test_rotation_is_taken_once(self, tmp_path: Path) -> None:
        labels = {model.NAME_LABEL: "tenant-a", model.COMPONENT_LABEL: "ca"}
        metadata = {"name": "tenant-a-ca", "labels": labels, "annotations": {model.ROTATE: ""}}

        class Fake(Api):
            def __init__(self) -> None:
                self.patched: list[str] = []

            async def list(self, path: str, label_selector: str = "") -> list[dict[str, Any]]:
                return [{"metadata": metadata, "data": {"ca.crt": "Y2E="}}]

            async def patch(self, path: str, body: Any) -> dict[str, Any]:
                self.patched.append(body["metadata"]["annotations"][model.ROTATE])
                return {}

        api = Fake()
        found = asyncio.run(reconcile.Reconciler(api, "default", tmp_path)._secrets(plane()))
        assert found == {}
        assert api.patched[0]


class TestChart:
    """What the operator takes for granted stands in the chart."""

    def crd(self) -> dict[str, Any]:
        text = (CHART / "crds" / "kamaji.clastix.io_tenantcontrolplanes.yaml").read_text(encoding="utf-8")
        version: dict[str, Any] = yaml.safe_load(text)["spec"]["versions"][0]
        return version

    def test_columns(self) -> None:
        names = [column["name"] for column in self.crd()["additionalPrinterColumns"]]
        assert names[:4] == ["Version", "Installed Version", "Status", "Control-Plane endpoint"]

    def test_defaults_are_the_operators(self) -> None:
        spec = self.crd()["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        kubernetes = spec["kubernetes"]["properties"]
        assert tuple(kubernetes["admissionControllers"]["default"]) == model.ADMISSION_CONTROLLERS
        rules = [rule["rule"] for rule in kubernetes["version"]["x-kubernetes-validations"]]
        assert any(f"<= {model.NEWEST_MINOR}" in rule for rule in rules)

    @pytest.mark.parametrize(
        "key", ["image", "resources", "telemetry", "defaultDatastoreName", "extraArgs", "kamaji-etcd"]
    )
    def test_value_keys(self, key: str) -> None:
        assert key in yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
