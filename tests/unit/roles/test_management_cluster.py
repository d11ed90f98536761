# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Role management_cluster with one and three hosts: what it refuses, whom it joins, and what it writes."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml
from rendering import Role

HOSTS = ("m-0", "m-1", "m-2")
VIRTUAL = "192.0.2.100"


def kubeconfig(server: str = f"https://{VIRTUAL}:8443", authority: str = "ours") -> str:
    """What a host's admin.conf says."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority.encode()).decode()}
    return yaml.safe_dump({"clusters": [{"name": "kubernetes", "cluster": cluster}]})


def role(known: dict[str, str] | None = None, silent: tuple[str, ...] = (), **variables: Any) -> Role:
    """The role on m-0. Takes the admin.conf of the hosts that know a cluster, and the hosts that do not answer."""
    hostvars: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(HOSTS):
        hostvars[name] = {"inventory_hostname": name, "management_cluster_address": f"192.0.2.{10 + number}"}
        if name in silent:
            continue
        text = (known or {}).get(name, "")
        hostvars[name]["__management_cluster_admin"] = {"rc": 0 if text else 1, "stdout": text}
    here: dict[str, Any] = {
        "inventory_hostname": "m-0",
        "groups": {"management": list(HOSTS)},
        "hostvars": hostvars,
        "management_cluster_virtual_address": VIRTUAL,
        "ansible_managed": "Ansible",
    }
    return Role("management_cluster", **(here | hostvars["m-0"] | variables))


def finding(*arguments: Any, **variables: Any) -> str:
    return str(role(*arguments, **variables).value("__management_cluster_finding"))


@pytest.mark.parametrize(
    ("variables", "endpoint"),
    [
        ({"management_cluster_virtual_address": ""}, "192.0.2.10:6443"),
        ({}, f"{VIRTUAL}:8443"),
        ({"management_cluster_haproxy_port": 9443}, f"{VIRTUAL}:9443"),
        ({"management_cluster_virtual_address_provider": "kube_vip"}, f"{VIRTUAL}:6443"),
        ({"management_cluster_virtual_address_provider": "given"}, f"{VIRTUAL}:6443"),
    ],
)
def test_endpoint(variables: dict[str, Any], endpoint: str) -> None:
    assert role(**variables).value("management_cluster_endpoint") == endpoint


def test_what_fits_together_is_not_refused() -> None:
    three = {name: kubeconfig() for name in HOSTS}
    alone = {"management_cluster_hosts": ["m-0"], "management_cluster_virtual_address": ""}
    assert finding() == ""
    assert finding(three) == ""
    assert finding({"m-0": kubeconfig()}) == "", "one host that grows to three"
    assert finding(**alone) == ""
    assert finding({"m-0": kubeconfig("https://192.0.2.10:6443")}, **alone) == ""
    assert finding(three, silent=("m-1",)) == "", "a host is away"


def test_two_hosts_are_refused() -> None:
    sentence = finding(management_cluster_hosts=["m-0", "m-1"])
    assert sentence == (
        "The management cluster has 2 hosts; give one or three, because etcd with two members stops when either is"
        " lost."
    )


def test_three_hosts_need_a_virtual_address() -> None:
    assert finding(management_cluster_virtual_address="") == (
        "management_cluster_virtual_address is not set, and three control planes need an address that survives each of"
        " them; give a free address of their network, or the address of a load balancer of yours."
    )


def test_an_endpoint_of_one_host_cannot_grow() -> None:
    sentence = finding({"m-0": kubeconfig("https://192.0.2.10:6443")})
    assert sentence.startswith(
        "m-0: the cluster was made with the endpoint https://192.0.2.10:6443 and the inventory wants"
    )
    assert sentence.endswith("only where management_cluster_virtual_address was set from the start.")


def test_no_second_cluster_is_started_where_one_may_be() -> None:
    assert finding(__management_cluster_kept=kubeconfig()).endswith(
        "is there, but no management host that answers knows a cluster; bring one of them back, or remove that file to"
        " start with a new cluster."
    )
    assert finding(silent=("m-1", "m-2")) == (
        "A cluster is initialised only when all its hosts answer, because one that does not may hold it; see m-1, m-2."
    )


def test_an_existing_cluster_and_own_hosts_contradict() -> None:
    assert finding(management_cluster_existing_kubeconfig="/k.conf") == (
        "management_cluster_existing_kubeconfig is set and the group management has hosts; empty the one or the other."
    )


@pytest.mark.parametrize(
    ("known", "kept", "seed"),
    [
        ({}, "", "m-0"),
        ({"m-1": kubeconfig(), "m-2": kubeconfig()}, "", "m-1"),
        ({"m-0": kubeconfig(authority="half"), "m-1": kubeconfig()}, kubeconfig(), "m-1"),
    ],
    ids=["nothing yet", "the first was installed anew", "the kept one counts"],
)
def test_whom_the_others_join(known: dict[str, str], kept: str, seed: str) -> None:
    assert role(known, __management_cluster_kept=kept).value("__management_cluster_seed") == seed


NODE = {"metadata": {"name": "m-0", "labels": {"node-role.kubernetes.io/control-plane": ""}}}


@pytest.mark.parametrize(
    ("known", "nodes", "joined"),
    [
        ({"m-0": kubeconfig()}, [NODE], True),
        ({"m-0": kubeconfig()}, [{"metadata": {"name": "m-0", "labels": {}}}], False),
        ({"m-0": kubeconfig()}, [], False),
        ({}, [NODE], False),
    ],
    ids=["joined", "cut off before its last step", "cut off early", "installed anew"],
)
def test_who_has_joined(known: dict[str, str], nodes: list[dict[str, Any]], *, joined: bool) -> None:
    made = role(known, __management_cluster_nodes={"resources": nodes})
    assert made.value("__management_cluster_joined") is joined


OTHER = "1c70f9bbb41018f, started, m-1, https://192.0.2.11:2380, https://192.0.2.11:2379, false"
STARTED = "8e9e05c52164694d, started, m-0, https://192.0.2.10:2380, https://192.0.2.10:2379, false"
ANNOUNCED = "8e9e05c52164694d, unstarted, , https://192.0.2.10:2380, , true"


@pytest.mark.parametrize(
    ("known", "data", "member", "found"),
    [
        (False, False, STARTED, True),
        (False, False, ANNOUNCED, True),
        (True, False, STARTED, True),
        (True, False, ANNOUNCED, False),
        (True, True, STARTED, False),
        (True, True, ANNOUNCED, False),
        (False, False, OTHER, False),
    ],
    ids=[
        "installed anew",
        "installed anew after a join that was cut off",
        "installed anew, and a join failed at the old member",
        "cut off before its etcd started",
        "cut off with an etcd that votes",
        "cut off while its etcd started",
        "never joined",
    ],
)
def test_the_member_of_a_host_without_its_data_is_found(*, known: bool, data: bool, member: str, found: bool) -> None:
    made = role(
        {"m-0": kubeconfig()} if known else None,
        __management_cluster_etcd={"stdout_lines": [OTHER, member]},
        __management_cluster_data={"stat": {"exists": data}} if known else {"skipped": True},
    )
    assert made.value("__management_cluster_old_member") == ("8e9e05c52164694d" if found else "")


def test_no_member_is_looked_for_on_a_host_that_has_joined() -> None:
    made = role({"m-0": kubeconfig()}, __management_cluster_etcd={"skipped": True})
    assert made.value("__management_cluster_old_member") == ""


@pytest.mark.parametrize(
    ("admin", "kept", "finished"),
    [
        (kubeconfig(), "", False),
        (kubeconfig(), kubeconfig(authority="of an earlier cluster"), False),
        (kubeconfig(), kubeconfig(server="https://other.example.org:6443"), True),
        ("", kubeconfig(), False),
    ],
    ids=["first run", "another cluster", "only another kubeconfig", "installed anew"],
)
def test_a_cluster_whose_kubeconfig_was_kept_is_finished(admin: str, kept: str, *, finished: bool) -> None:
    made = role({"m-0": admin}, __management_cluster_kept=kept)
    assert made.value("__management_cluster_finished") is finished


def test_haproxy_asks_every_api_server_whether_it_is_ready() -> None:
    text = role().text("haproxy.cfg.j2")
    assert [line.strip() for line in text.splitlines() if line.strip().startswith("server ")] == [
        "server m-0 192.0.2.10:6443", "server m-1 192.0.2.11:6443", "server m-2 192.0.2.12:6443",
    ]  # fmt: skip
    assert "bind :8443" in text
    assert "option httpchk GET /readyz" in text


def test_keepalived_speaks_to_its_peers_alone() -> None:
    text = role().text("keepalived.conf.j2", __management_cluster_interface="eth1")
    peers = text.partition("unicast_peer {")[2].partition("}")[0].split()
    assert peers == ["192.0.2.11", "192.0.2.12"]
    assert "unicast_src_ip 192.0.2.10" in text
    assert f"{VIRTUAL}/32 dev eth1" in text
    assert "virtual_router_id 101" in text


@pytest.mark.parametrize(("address", "number"), [("192.0.2.0", 1), ("192.0.2.100", 101), ("192.0.2.255", 1)])
def test_virtual_router_id(address: str, number: int) -> None:
    assert role(management_cluster_virtual_address=address).value("management_cluster_virtual_router_id") == number


def test_kube_vip_is_a_static_pod() -> None:
    pod = role().one("kube-vip.yml.j2", "Pod", __management_cluster_kube_vip_kubeconfig="super-admin.conf")
    (container,) = pod["spec"]["containers"]
    values = {each["name"]: each["value"] for each in container["env"]}
    assert container["image"] == "ghcr.io/kube-vip/kube-vip:v1.0.1"
    assert (values["address"], values["port"], values["vip_arp"], values["cp_enable"]) == (
        VIRTUAL,
        "6443",
        "true",
        "true",
    )
    assert pod["spec"]["hostNetwork"] is True
    assert pod["spec"]["volumes"][0]["hostPath"]["path"] == "/etc/kubernetes/super-admin.conf"


def test_a_join_asks_with_a_token_and_a_key_that_end() -> None:
    seed = {"m-1": kubeconfig()}
    made = role(seed, __management_cluster_join_end="2026-11-30T12:00:00Z")
    join = made.one("kubeadm-join.yml.j2", "JoinConfiguration")
    (secret,) = made.objects("bootstrap-token.yml.j2")
    token = f"{secret['stringData']['token-id']}.{secret['stringData']['token-secret']}"
    assert join["discovery"]["tlsBootstrapToken"] == token
    assert secret["stringData"]["expiration"] == "2026-11-30T12:00:00Z"
    upload = made.one("kubeadm-upload.yml.j2", "InitConfiguration")
    assert join["controlPlane"]["certificateKey"] == upload["certificateKey"]
    assert len(bytes.fromhex(upload["certificateKey"])) == 32
    assert join["nodeRegistration"]["ignorePreflightErrors"] == []
    discovery = yaml.safe_load(made.text("discovery.conf.j2"))
    assert discovery["users"] == [{"name": "nobody", "user": {}}]
    assert discovery["clusters"][0]["cluster"]["server"] == f"https://{VIRTUAL}:8443"
    later = role(seed, __management_cluster_join_end="2026-11-30T12:15:00Z")
    assert later.one("kubeadm-join.yml.j2", "JoinConfiguration")["discovery"]["tlsBootstrapToken"] != token


def test_a_join_that_was_cut_off_takes_what_it_finds() -> None:
    both = {"m-0": kubeconfig(), "m-1": kubeconfig()}
    made = role(both, __management_cluster_join_end="2026-11-30T12:00:00Z")
    ignored = made.one("kubeadm-join.yml.j2", "JoinConfiguration")["nodeRegistration"]["ignorePreflightErrors"]
    assert {"FileAvailable--etc-kubernetes-manifests-etcd.yaml", "DirAvailable--var-lib-etcd", "Port-2380"} <= set(
        ignored
    )
