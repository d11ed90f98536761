# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Roles datastore, kamaji and tenant_control_plane: what they refuse, and how several copies are spread."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from rendering import Role

HOSTS = ["m-0", "m-1", "m-2"]
SQL = {
    "datastore_driver": "PostgreSQL",
    "datastore_endpoints": ["db.example.org:5432"],
    "datastore_ca_certificate": "authority",
    "datastore_username": "kamaji",
    "datastore_password": "secret",
}
ETCD = {
    "datastore_endpoints": ["a.example.org:2379", "b.example.org:2379"],
    "datastore_ca_certificate": "authority",
    "datastore_ca_key": "key of the authority",
    "datastore_client_certificate": "root",
    "datastore_client_key": "key of root",
}


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({}, ""),
        (SQL, ""),
        ({**SQL, "datastore_driver": "NATS"}, ""),
        (ETCD, ""),
        ({"datastore_members": 3, "datastore_storage": "host_path", "datastore_hosts": HOSTS}, ""),
        (
            {"datastore_driver": "MySQL"},
            "datastore_driver is MySQL and datastore_endpoints is empty; only etcd is run by this role, so give the"
            " host and port of your MySQL.",
        ),
        (
            {**SQL, "datastore_endpoints": ["https://db.example.org:5432"]},
            "datastore_endpoints has https://db.example.org:5432; give host and port without a protocol.",
        ),
        (
            {**SQL, "datastore_ca_certificate": ""},
            "PostgreSQL at db.example.org:5432 would be spoken to without TLS, which is refused: give the authority of"
            " its server's certificate in datastore_ca_certificate.",
        ),
        (
            {**ETCD, "datastore_ca_key": ""},
            "etcd at a.example.org:2379, b.example.org:2379 needs datastore_ca_key, datastore_client_certificate and"
            " datastore_client_key too, because Kamaji signs a client certificate for each tenant; keep the keys in a"
            " vault.",
        ),
        (
            {**SQL, "datastore_client_certificate": "x"},
            "datastore_client_certificate and datastore_client_key belong together, and only one of them is set.",
        ),
        (
            {**SQL, "datastore_password": ""},
            "PostgreSQL at db.example.org:5432 needs datastore_username and datastore_password of an account that may"
            " create databases and users (NATS: buckets); keep the password in a vault.",
        ),
        (
            {"datastore_members": 3, "datastore_storage": "host_path", "datastore_hosts": HOSTS[:1]},
            "datastore_hosts has 1 Nodes for 3 members of etcd with the storage host_path; name one for each, or take"
            " the storage claim.",
        ),
    ],
)
def test_what_is_refused(variables: dict[str, Any], sentence: str) -> None:
    assert Role("datastore", **variables).value("__datastore_finding") == sentence


def test_three_members_have_a_host_and_a_folder_each() -> None:
    role = Role("datastore", datastore_members=3, datastore_storage="host_path", datastore_hosts=HOSTS)
    objects = role.objects("etcd.yml.j2")
    volumes = [each for each in objects if each["kind"] == "PersistentVolume"]
    assert [
        (each["spec"]["claimRef"]["name"],
         each["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"])
        for each in volumes
    ] == [(f"data-datastore-{number}", [host]) for number, host in enumerate(HOSTS)]  # fmt: skip
    members = role.one("etcd.yml.j2", "StatefulSet")["spec"]
    rules = members["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rules[0]["topologyKey"] == "kubernetes.io/hostname"
    assert {each["spec"]["storageClassName"] for each in volumes} == {
        members["volumeClaimTemplates"][0]["spec"]["storageClassName"]
    }
    assert role.one("etcd.yml.j2", "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_one_member_can_become_three() -> None:
    one, three = (
        Role("datastore", datastore_members=count, datastore_storage="host_path", datastore_hosts=HOSTS)
        for count in (1, 3)
    )
    specs = [role.one("etcd.yml.j2", "StatefulSet")["spec"] for role in (one, three)]
    assert specs[0] == specs[1], "neither is there anything that Kubernetes refuses, nor is a member restarted"
    assert "replicas" not in specs[1], "further members come in by members.yml"


LAST_WORDS = "couldn't find local name 'datastore-1' in the initial cluster configuration"
FOUNDER = {"ID": 15985099378392235387, "name": "datastore-0",
           "peerURLs": ["https://datastore-0.datastore.kamaji-system.svc.cluster.local:2380"]}  # fmt: skip
OTHER_PEER = "https://datastore-1.datastore.kamaji-system.svc.cluster.local:2380"


def pod(name: str, *, ready: bool, words: str = "") -> dict[str, Any]:
    container = {"lastState": {"terminated": {"message": words}}} if words else {}
    status = {"conditions": [{"type": "Ready", "status": str(ready)}], "containerStatuses": [container]}
    return {"metadata": {"name": name}, "status": status}


def members(*pods: dict[str, Any], known: list[dict[str, Any]] | None = None, **variables: Any) -> Role:
    applied = {"result": {"results": [{"result": {"kind": "StatefulSet", "spec": {"replicas": len(pods)}}}]}}
    listed = {"stdout": json.dumps({"members": known or [FOUNDER]})}
    seen = {"__datastore_applied": applied, "__datastore_pods": {"resources": list(pods)}, "__datastore_list": listed}
    return Role("datastore", datastore_members=3, __datastore_number=1, **(seen | variables))


@pytest.mark.parametrize(
    ("words", "confirmed", "lost", "sentence"),
    [
        ("", False, [], ""),  # its host is away, which is nobody's error
        (
            "", True, [],
            "datastore-1: datastore_replace_confirm is set, and this member is neither ready nor without data; see its"
            " pod in kamaji-system, or unset it while the host is away.",
        ),
        (
            LAST_WORDS, False, ["datastore-1"],
            "datastore-1: the datastore knows this member, and it has no data; set datastore_replace_confirm to remove"
            " it from etcd and to let it in again with the data of the others.",
        ),
        (LAST_WORDS, True, ["datastore-1"], ""),
    ],
)  # fmt: skip
def test_a_member_that_is_not_ready(words: str, confirmed: bool, lost: list[str], sentence: str) -> None:
    role = members(
        pod("datastore-0", ready=True),
        pod("datastore-1", ready=False, words=words),
        pod("datastore-2", ready=True, words=LAST_WORDS),  # came back in the meantime
        datastore_replace_confirm=confirmed,
    )
    assert role.value("__datastore_lost") == lost
    assert role.value("__datastore_members_finding") == sentence


@pytest.mark.parametrize(
    ("known", "listed"),
    [
        ([FOUNDER], {}),
        ([FOUNDER, {"ID": 7, "peerURLs": [OTHER_PEER], "isLearner": True}], 7),  # let in, not started yet
        ([FOUNDER, {"ID": 7, "name": "datastore-1", "peerURLs": [OTHER_PEER], "isLearner": True}], 7),
    ],
)
def test_with_whom_a_member_joins(known: list[dict[str, Any]], listed: object) -> None:
    role = members(pod("datastore-0", ready=True), known=known)
    found = role.value("__datastore_listed")
    assert (found["ID"] if found else found) == listed
    joins = [*role.value("__datastore_others"), f"datastore-1={OTHER_PEER}"]
    assert joins == [f"datastore-0={FOUNDER['peerURLs'][0]}", f"datastore-1={OTHER_PEER}"]
    bootstrap = role.objects("bootstrap.yml.j2", __datastore_join=joins)
    assert bootstrap[0]["data"] == {"initial-cluster": ",".join(joins), "initial-cluster-state": "existing"}
    assert bootstrap[1]["spec"] == {"replicas": 2}


@pytest.mark.parametrize(
    ("added", "known"),
    [
        (
            {"stdout": "Member 578c2e9cb07cedfc added as learner to cluster a7ef944b95711739\n\nETCD_NAME=..."},
            [FOUNDER],
        ),
        (  # by a run that was cut off
            {"skipped": True},
            [FOUNDER, {"ID": 0x578C2E9CB07CEDFC, "name": "datastore-1", "peerURLs": [OTHER_PEER], "isLearner": True}],
        ),
    ],
)
def test_who_gets_its_vote(added: dict[str, Any], known: list[dict[str, Any]]) -> None:
    role = members(pod("datastore-0", ready=True), known=known, __datastore_added=added)
    assert role.value("__datastore_id") == "578c2e9cb07cedfc"


def test_outside_of_a_join_nobody_comes_in() -> None:
    (closed,) = members(pod("datastore-0", ready=True)).objects("bootstrap.yml.j2")
    assert closed["data"]["initial-cluster"] == "nobody=https://nobody.invalid:2380"


def test_secrets_of_a_datastore_that_is_there() -> None:
    secrets = {each["metadata"]["name"]: each for each in Role("datastore", **SQL).objects("external.yml.j2")[1:]}
    assert set(secrets) == {"datastore-ca", "datastore-auth"}
    assert set(secrets["datastore-ca"]["data"]) == {"ca.crt"}
    assert base64.b64decode(secrets["datastore-auth"]["data"]["password"]) == b"secret"
    assert [each["metadata"]["name"] for each in Role("datastore", **ETCD).objects("external.yml.j2")[1:]] == [
        "datastore-ca", "datastore-root",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "driver", "endpoints", "parts"),
    [
        ({}, "etcd", 1, {"certificateAuthority", "clientCertificate"}),
        ({"datastore_members": 3}, "etcd", 3, {"certificateAuthority", "clientCertificate"}),
        (ETCD, "etcd", 2, {"certificateAuthority", "clientCertificate"}),
        (SQL, "PostgreSQL", 1, {"certificateAuthority"}),
        ({**SQL, "datastore_driver": "MySQL"}, "MySQL", 1, {"certificateAuthority"}),
        (
            {**SQL, "datastore_driver": "NATS", "datastore_client_certificate": "x", "datastore_client_key": "y"},
            "NATS", 1, {"certificateAuthority", "clientCertificate"},
        ),
    ],
)  # fmt: skip
def test_kamajis_data_store(variables: dict[str, Any], driver: str, endpoints: int, parts: set[str]) -> None:
    spec = Role("kamaji", **variables).one("datastore.yml.j2", "DataStore")["spec"]
    assert (spec["driver"], len(spec["endpoints"])) == (driver, endpoints)
    assert set(spec["tlsConfig"]) == parts
    assert ("privateKey" in spec["tlsConfig"]["certificateAuthority"]) is (driver == "etcd")
    assert ("basicAuth" in spec) is (driver != "etcd")


def test_the_members_addresses() -> None:
    assert Role("kamaji", datastore_members=3).value("kamaji_datastore_endpoints") == [
        f"datastore-{number}.datastore.kamaji-system.svc.cluster.local:2379" for number in range(3)
    ]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_tenants_api_servers_are_spread(replicas: int) -> None:
    role = Role(
        "tenant_control_plane",
        inventory_hostname="tenant-a",
        tenant_control_plane_replicas=replicas,
        tenant_control_plane_pod_cidr="10.32.0.0/16",
        tenant_control_plane_service_cidr="10.112.0.0/16",
    )
    objects = role.objects("tenant-control-plane.yml.j2")
    deployment = objects[1]["spec"]["controlPlane"]["deployment"]
    assert objects[1]["kind"] == "TenantControlPlane"
    if replicas == 1:
        assert deployment == {"replicas": 1}
        assert len(objects) == 2
        return
    (constraint,) = deployment["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["nodeTaintsPolicy"]) == ("kubernetes.io/hostname", "Honor")
    assert {each["tolerationSeconds"] for each in deployment["tolerations"]} == {30}
    assert objects[2]["spec"]["selector"]["matchLabels"] == {"kamaji.clastix.io/name": "tenant-a"}
