"""Three management hosts: what is spread, what is saved, what happens when one is lost, and when one is replaced.

The order counts.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from kubernetes.dynamic import DynamicClient
from production_site import MANAGEMENT, Site

API_BACK_S = 30.0
TENANT_S = 300.0
BACK_S = 240.0
REPLACED_S = 600.0
# What tells whether anything was lost: by name and identity. Leases, events and what runs move by themselves.
KINDS = {
    "/api/v1": ("namespaces", "configmaps", "secrets", "services", "serviceaccounts", "persistentvolumes"),
    "/apis/apps/v1": ("deployments", "statefulsets", "daemonsets"),
    "/apis/kamaji.clastix.io/v1alpha1": ("datastores", "tenantcontrolplanes"),
    "/apis/policy/v1": ("poddisruptionbudgets",),
    "/apis/rbac.authorization.k8s.io/v1": ("clusterroles", "clusterrolebindings", "roles", "rolebindings"),
}
OF_A_TENANT = {path: KINDS[path] for path in ("/api/v1", "/apis/apps/v1", "/apis/rbac.authorization.k8s.io/v1")}


def items(api: DynamicClient, path: str) -> list[dict[str, object]]:
    return list(json.loads(api.request("get", path, serialize=False).data)["items"])


def hosts_of(api: DynamicClient, namespace: str, selector: str) -> list[str]:
    """Where the ready pods of a selector run."""
    found = items(api, f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")
    return [
        each["spec"]["nodeName"]
        for each in found
        if "deletionTimestamp" not in each["metadata"]
        and any(c["type"] == "Ready" and c["status"] == "True" for c in each["status"].get("conditions", []))
    ]


def identities(api: DynamicClient, kinds: dict[str, tuple[str, ...]]) -> set[tuple[str, str]]:
    """Every object's path and uid."""
    return {
        (f"{path}/{kind}/{each['metadata'].get('namespace', '')}/{each['metadata']['name']}", each["metadata"]["uid"])
        for path, plurals in kinds.items()
        for kind in plurals
        for each in items(api, f"{path}/{kind}")
    }


# kubeadm's members have their credentials in files, the tenants' in their environment.
CREDENTIALS = {
    "kube-system": "--endpoints=https://127.0.0.1:2379 --cacert=/etc/kubernetes/pki/etcd/ca.crt"
    " --cert=/etc/kubernetes/pki/etcd/server.crt --key=/etc/kubernetes/pki/etcd/server.key",
    "kamaji-system": "",
}


def members(site: Site, namespace: str, *, learners: bool = False) -> set[str]:
    """The members of a namespace's etcd that run: those that vote, or those that still learn."""
    pod = f"crictl ps --quiet --label io.kubernetes.container.name=etcd --label io.kubernetes.pod.namespace={namespace}"
    etcdctl = f"etcdctl {CREDENTIALS[namespace]} member list --write-out=json"
    listed = json.loads(site.on(MANAGEMENT[1], f"crictl exec $({pod}) {etcdctl}"))["members"]
    return {each["name"] for each in listed if "name" in each and each.get("isLearner", False) is learners}


def bootstrap(management: DynamicClient) -> str:
    """With whom a datastore's member without data joins."""
    path = "/api/v1/namespaces/kamaji-system/configmaps/datastore-bootstrap"
    return str(json.loads(management.request("get", path, serialize=False).data)["data"]["initial-cluster"])


def wait_for(what: str, seen: Callable[[], object], within_s: float) -> None:
    """Wait until something is so; an API that does not answer for a moment is asked again."""
    deadline, last = time.monotonic() + within_s, "nothing"
    while time.monotonic() < deadline:
        try:
            if last := seen():
                return
        except Exception as error:  # noqa: BLE001
            last = error
        time.sleep(1)
    pytest.fail(f"not within {within_s:.0f} s: {what}; seen last: {last}")


def wait_for_every_host(site: Site) -> None:
    """Wait until what keeps data, and the API servers, are ready on each host."""
    management = site.api("management")
    for namespace, selector in (
        ("kube-system", "component=etcd"),
        ("kube-system", "component=kube-apiserver"),
        ("kamaji-system", "app.kubernetes.io/instance=datastore"),
    ):
        wait_for(
            f"{selector} on every host",
            lambda n=namespace, s=selector: sorted(hosts_of(management, n, s)) == sorted(MANAGEMENT),
            BACK_S,
        )


@pytest.mark.parametrize(
    ("namespace", "selector", "copies"),
    [
        ("kube-system", "component=kube-apiserver", 3),
        ("kube-system", "component=etcd", 3),
        ("kube-system", "k8s-app=kube-dns", 2),
        ("kamaji-system", "app.kubernetes.io/instance=datastore", 3),
        ("kamaji-system", "app.kubernetes.io/instance=kamaji", 2),
        ("tenant-a", "kamaji.clastix.io/name=tenant-a", 2),
    ],
)
def test_copies_are_on_different_hosts(site: Site, namespace: str, selector: str, copies: int) -> None:
    hosts = hosts_of(site.api("management"), namespace, selector)
    assert len(hosts) == len(set(hosts)) == copies


def test_drains_leave_a_quorum(site: Site) -> None:
    budgets = {
        each["metadata"]["name"] for each in items(site.api("management"), "/apis/policy/v1/poddisruptionbudgets")
    }
    assert {"datastore", "tenant-a"} <= budgets


def test_nothing_that_lets_a_host_join_is_left(site: Site) -> None:
    secrets = items(site.api("management"), "/api/v1/namespaces/kube-system/secrets")
    assert "kubeadm-certs" not in {each["metadata"]["name"] for each in secrets}
    tokens = [each for each in secrets if each["type"] == "bootstrap.kubernetes.io/token"]
    assert not [each["metadata"]["name"] for each in tokens if "usage-bootstrap-authentication" in each["data"]]


@pytest.mark.parametrize("host", MANAGEMENT)
def test_etcd_was_saved(site: Site, host: str) -> None:
    """A snapshot ends with the checksum of what stands before it, which etcdutl looks at before it restores."""
    name, mode = site.on(host, "stat -c '%n %a' /var/backups/tenantry/etcd/*.db").split()
    assert mode == "600"
    copy = site.state / f"{host}.db"
    site.podman("cp", f"{site.state.name}-{host}:{name}", str(copy))
    content = copy.read_bytes()
    copy.unlink()
    assert hashlib.sha256(content[:-32]).digest() == content[-32:]
    assert site.on(host, "systemctl is-enabled tenantry-etcd-snapshot.timer").strip() == "enabled"


def test_a_check_runs_to_the_end(site: Site) -> None:
    """Also where a tenant is new, as tenant-b is."""
    run = site.run("playbooks/site.yml", "--check")
    output = site.finish(run, TENANT_S)
    assert run.returncode == 0, output
    assert "tenant-b: a new control plane" in output


class Watch:
    """Asks the API at its virtual address all the time, and knows since when it answers again."""

    def __init__(self, server: str) -> None:
        self._target = urlsplit(server)
        self._answers: list[tuple[float, bool]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        context = ssl._create_unverified_context()  # noqa: S323
        while not self._stopped.wait(0.2):
            asked = time.monotonic()
            good = False
            with suppress(OSError, http.client.HTTPException):
                host, port = self._target.hostname or "", self._target.port
                connection = http.client.HTTPSConnection(host, port, timeout=2, context=context)
                connection.request("GET", "/readyz")
                good = connection.getresponse().status == 200
                connection.close()
            self._answers.append((asked, good))

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def away_s(self, since: float) -> float:
        """Seconds from a moment to the last question that got no answer."""
        missed = [asked for asked, good in self._answers if asked >= since and not good]
        return max(missed) - since if missed else 0.0


def holder(site: Site) -> str:
    """The host that has the virtual address."""
    address = urlsplit(site.server).hostname
    (found,) = (host for host in MANAGEMENT if f" {address}/" in site.on(host, "ip -oneline -4 address"))
    return found


@pytest.fixture(scope="module")
def lost(site: Site) -> str:
    return holder(site)


def test_a_host_is_lost_while_a_tenant_is_made(site: Site, lost: str, capsys: pytest.CaptureFixture[str]) -> None:
    management, tenant = site.api("management"), site.api("tenant-a")
    note = {"metadata": {"name": "written-before"}, "data": {"text": "kept"}}
    for api in (management, tenant):
        api.request("post", "/api/v1/namespaces/default/configmaps", body=note)
    before, tenant_before = identities(management, KINDS), identities(tenant, OF_A_TENANT)
    watch = Watch(site.server)
    run = site.run("playbooks/stages/4_tenants.yml", "--limit=tenant-b")
    try:
        path = "/apis/kamaji.clastix.io/v1alpha1/namespaces/tenant-b/tenantcontrolplanes"
        wait_for("tenant-b is declared", lambda: items(management, path), 60)
        killed = time.monotonic()
        site.podman("kill", f"{site.state.name}-{lost}")
        output = site.finish(run, TENANT_S)
        ready_s = time.monotonic() - killed
    finally:
        watch.stop()
    away_s = watch.away_s(killed)
    with capsys.disabled():
        print(f"\n{lost} killed: the API answered again after {away_s:.1f} s, tenant-b was ready after {ready_s:.0f} s")
    assert run.returncode == 0, output
    assert away_s <= API_BACK_S
    (made,) = items(management, path)
    assert made["status"]["kubernetesResources"]["version"]["status"] == "Ready"
    assert before - identities(management, KINDS) == set()
    assert tenant_before - identities(tenant, OF_A_TENANT) == set()


def test_the_datastore_keeps_its_quorum(site: Site, lost: str) -> None:
    management = site.api("management")

    def hosts() -> list[str]:
        return sorted(hosts_of(management, "kamaji-system", "app.kubernetes.io/instance=datastore"))

    # Until Kubernetes has noticed, the lost host's member counts as ready.
    wait_for("the lost member is known as lost", lambda: lost not in hosts(), BACK_S)
    assert hosts() == sorted(set(MANAGEMENT) - {lost})
    for tenant in ("tenant-a", "tenant-b"):
        body = {"metadata": {"generateName": "written-without-a-host-"}}
        site.api(tenant).request("post", "/api/v1/namespaces/default/configmaps", body=body)


def test_the_host_comes_back(site: Site, lost: str) -> None:
    site.podman("start", f"{site.state.name}-{lost}")
    wait_for_every_host(site)
    assert holder(site)


# The first host: it founded both etcds, and the kubeconfig on the controller was its.
REPLACED = "management-0"


@pytest.fixture(scope="module")
def anew(site: Site) -> dict[str, set[tuple[str, str]]]:
    """The host is installed anew; what the clusters had before."""
    before = {
        "management": identities(site.api("management"), KINDS),
        "tenant-a": identities(site.api("tenant-a"), OF_A_TENANT),
    }
    site.podman("rm", "--force", "--volumes", f"{site.state.name}-{REPLACED}")
    site.podman("volume", "rm", f"{site.state.name}-{REPLACED}-containerd")
    run = site.run("molecule/hosts/create.yml")
    output = site.finish(run, REPLACED_S)
    assert run.returncode == 0, output
    return before


STAGES = ("playbooks/stages/2_nodes.yml", "playbooks/stages/3_management.yml")
OF_MANAGEMENT = "--limit=localhost,management"
CONFIRMED = "--extra-vars=management_cluster_replace_confirm=true"


def refused(site: Site, sentence: str, *stages: str) -> None:
    """Stages without the confirmation: they end with this sentence, and nothing of a cluster is on the host."""
    run = site.run(*stages, OF_MANAGEMENT)
    output = site.finish(run, REPLACED_S)
    assert run.returncode != 0
    assert f"{REPLACED}: {sentence}" in " ".join(output.split())
    assert site.on(REPLACED, "ls -A /etc/kubernetes/manifests 2>/dev/null || true").split() == []


@pytest.mark.usefixtures("anew")
def test_a_host_that_was_installed_anew_comes_in_only_when_that_is_wanted(site: Site) -> None:
    sentence = (
        f"the cluster has a Node {REPLACED} of that address, and the host knows nothing of it; set"
        " management_cluster_replace_confirm to remove that Node and its etcd member and to join the host again."
    )
    refused(site, sentence, *STAGES)


@pytest.mark.usefixtures("anew")
def test_nor_does_it_come_in_when_its_node_was_removed_by_hand(site: Site) -> None:
    """Its member of etcd is in the way as well."""
    site.api("management").request("delete", f"/api/v1/nodes/{REPLACED}")
    sentence = (
        "the cluster's etcd has a member of that address, and the host has no data of it; set"
        " management_cluster_replace_confirm to remove that member and to join the host again."
    )
    refused(site, sentence, STAGES[1])
    assert REPLACED in members(site, "kube-system")


def killed_when(site: Site, what: str, seen: Callable[[], object]) -> None:
    """A run that replaces the host, killed in that moment."""
    run = site.run(STAGES[1], OF_MANAGEMENT, CONFIRMED)
    try:
        wait_for(what, seen, REPLACED_S)
    finally:
        run.kill()
        output, _ = run.communicate()
        print(output)
    assert "PLAY RECAP" not in output


@pytest.mark.usefixtures("anew")
def test_the_controller_and_the_join_are_killed(site: Site) -> None:
    """In the moment at which the host's etcd votes; its Node comes without kubeadm, and pods start on it."""
    management = site.api("management")

    def new_member_votes() -> bool:
        site.on(REPLACED, "test -e /etc/kubernetes/manifests/etcd.yaml")
        return REPLACED in members(site, "kube-system")

    killed_when(site, "the host's new etcd votes", new_member_votes)
    site.on(REPLACED, "kill -9 $(pidof kubeadm)")
    pods = ("kube-system", "k8s-app=kube-router")
    wait_for("the network's pod runs", lambda: REPLACED in hosts_of(management, *pods), BACK_S)
    node = json.loads(management.request("get", f"/api/v1/nodes/{REPLACED}", serialize=False).data)
    assert "node-role.kubernetes.io/control-plane" not in node["metadata"]["labels"]


@pytest.mark.usefixtures("anew")
def test_the_controller_is_killed_while_a_member_learns(site: Site) -> None:
    """Such a member is never ready, so the next run must not wait for that."""
    management = site.api("management")

    def its_pod_is_made_anew() -> bool:
        core = "/api/v1/namespaces/kamaji-system"
        pod = json.loads(management.request("get", f"{core}/pods/datastore-0", serialize=False).data)
        lost = "deletionTimestamp" in pod["metadata"] or "find local name" in json.dumps(pod["status"])
        return not lost and "datastore-0=" in bootstrap(management)

    def learners() -> set[str]:
        return members(site, "kamaji-system", learners=True)

    killed_when(site, "the member's pod is made anew", its_pod_is_made_anew)
    wait_for("the member learns", lambda: learners() == {"datastore-0"}, BACK_S)


def test_the_next_run_replaces_the_host(site: Site, anew: dict[str, set[tuple[str, str]]]) -> None:
    run = site.run(STAGES[1], OF_MANAGEMENT, CONFIRMED)
    output = site.finish(run, REPLACED_S)
    assert run.returncode == 0, output
    wait_for_every_host(site)
    assert anew["management"] - identities(site.api("management"), KINDS) == set()
    assert anew["tenant-a"] - identities(site.api("tenant-a"), OF_A_TENANT) == set()


def test_every_member_votes_and_nobody_else_is_let_in(site: Site) -> None:
    assert members(site, "kube-system") == set(MANAGEMENT)
    assert members(site, "kamaji-system") == {f"datastore-{n}" for n in range(3)}
    assert bootstrap(site.api("management")).startswith("nobody=")
