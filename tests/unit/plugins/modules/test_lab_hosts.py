# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._engine import Container, EngineError, Network
from ansible_collections.tenantry.gpu.plugins.modules import lab_hosts
from ansible_collections.tenantry.gpu.plugins.modules.lab_hosts import (
    Lab,
    Outcome,
    Wanted,
    mac_address,
    other_address,
    other_version,
    route_batch,
)

SUBNET = "172.30.211.0/24"
PARAMETERS = {
    "state": "present",
    "lab_name": "lab",
    "engine": "podman",
    "version": "0.1.0-new",
    "subnet": SUBNET,
    "image": "node:1",
    "hosts": [{"name": "m", "address": "172.30.211.10"}],
    "registry": None,
    "service_cidrs": ["10.96.0.0/16"],
    "pod_cidrs": ["10.244.0.0/16"],
    "timeout_s": 1,
    "image_prefix": None,
    "progress_file": None,
}


def container(name="lab-m", status="running", address="172.30.211.10", version="0.1.0-new"):
    return Container(name, status, "lab", address, version)


class FakeEngine:
    """An engine that remembers what it was asked, and whose commands fail on demand."""

    program = "podman"
    labels = ()

    def __init__(self, found=(), network=None, failing=(), answer="settled"):
        self.found = {one.name: one for one in found}
        self.found_network = network
        self.failing = set(failing)
        self.answer = answer
        self.calls = []

    def call(self, *arguments, **_options):
        self.calls.append(arguments[0] if arguments[0] != "network" else " ".join(arguments[:2]))
        if arguments[0] in self.failing:
            raise EngineError(f"podman {arguments[0]}: refused")
        return self.answer

    def succeeds(self, *arguments):
        try:
            self.call(*arguments)
        except EngineError:
            return False
        return True

    def containers(self):
        return self.found

    def network(self, _name):
        return self.found_network

    def labelled(self, kind):
        return [f"lab-{kind}"]

    def images(self, prefix):
        return [f"{prefix}node"] if prefix else []

    def remove_containers(self, names):
        self.calls.append(("rm", *names))


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(lab_hosts, "remove_stale_bridge", lambda _gateway: None)
    monkeypatch.setattr(lab_hosts, "INOTIFY_INSTANCES", "/nowhere")
    monkeypatch.setattr(lab_hosts, "CNI_LEASES", "/nowhere")


def lab(engine, check_mode=False, alive=True, **changes):
    one = Lab({**PARAMETERS, **changes}, check_mode)
    one.engine = engine
    one.alive = lambda _name: alive
    return one


OURS = Network("lab", (SUBNET,), "lab")


@pytest.mark.parametrize(
    ("engine", "alive", "key"),
    [
        pytest.param(FakeEngine(), True, "created", id="missing"),
        pytest.param(FakeEngine([container()], OURS), True, None, id="running"),
        pytest.param(FakeEngine([container(status="exited")], OURS), True, "started", id="stopped"),
        pytest.param(FakeEngine([container(status="created")], OURS, {"start"}), True, "replaced", id="half-made"),
        pytest.param(FakeEngine([container()], OURS), False, "replaced", id="dead-and-recorded-as-running"),
        pytest.param(FakeEngine([container()], OURS, answer="routed"), True, "routed", id="new-range"),
    ],
)
def test_a_host_is_kept_started_made_or_replaced(engine, alive, key):
    one = lab(engine, alive=alive)
    one.present()
    outcome = one.outcome.to_result()
    assert outcome.pop("changed") == (key is not None)
    assert {name for name, names in outcome.items() if names} == ({key} if key else set())


def test_check_mode_does_nothing():
    engine = FakeEngine([container("lab-a", "exited")], OURS)
    hosts = [{"name": "m", "address": "172.30.211.10"}, {"name": "a", "address": "172.30.211.11"}]
    one = lab(engine, check_mode=True, hosts=hosts)
    one.present()
    assert engine.calls == []
    assert (one.outcome.created, one.outcome.started) == (["lab-m"], ["lab-a"])


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        pytest.param(
            FakeEngine([container(version="0.1.0-old")], OURS),
            "The lab lab stands in version 0.1.0-old, and this is version 0.1.0-new; remove it with make destroy",
            id="other-version",
        ),
        pytest.param(
            FakeEngine([container(address="172.30.211.12")], OURS),
            "lab-m has address 172.30.211.12 and the inventory gives it 172.30.211.10",
            id="other-address",
        ),
        pytest.param(
            FakeEngine(network=Network("lab", (SUBNET,), "")),
            "podman has a network lab that is no lab's; give lab_name another value",
            id="network-of-someone-else",
        ),
        pytest.param(
            FakeEngine([container()], Network("lab", ("172.28.1.0/24",), "lab")),
            "stands in the network 172.28.1.0/24 and lab_subnet is 172.30.211.0/24",
            id="other-subnet",
        ),
        pytest.param(
            FakeEngine([container()], OURS, answer="silent\ninitializing"),
            "lab-m: containerd gave no answer within 1 s; last seen: initializing",
            id="containerd-silent",
        ),
        pytest.param(FakeEngine(failing={"run"}), "podman run: refused", id="refused"),
    ],
)
def test_what_stops_a_run_is_said(engine, sentence):
    with pytest.raises(EngineError, match=sentence):
        lab(engine).present()


def test_a_network_without_containers_is_made_anew():
    engine = FakeEngine(network=OURS)
    lab(engine).present()
    assert engine.calls[:2] == ["network rm", "network create"]


@pytest.mark.parametrize("check_mode", [True, False])
def test_absent_removes_what_is_labelled_and_what_has_a_hosts_name(check_mode):
    engine = FakeEngine([container()])
    one = lab(engine, check_mode=check_mode, image_prefix="localhost/tenantry-gpu/")
    one.absent()
    assert one.outcome.removed[:3] == ["lab-m", "lab-volume", "lab-network"]
    assert engine.calls == ([] if check_mode else [("rm", "lab-m", "lab-registry"), "volume", "network rm", "rmi"])


def test_routes_keep_services_on_the_link_and_pods_unreachable():
    assert route_batch(["10.113.0.0/16", "10.96.0.0/16"], ["10.244.0.0/16", "10.244.0.0/16"]).splitlines() == [
        "route replace 10.113.0.0/16 dev eth0 scope link proto 84 metric 4096",
        "route replace 10.96.0.0/16 dev eth0 scope link proto 84 metric 4096",
        "route replace unreachable 10.244.0.0/16 proto 84 metric 4096",
    ]


def test_a_host_has_the_same_hardware_address_at_every_start():
    assert mac_address("172.30.211.10") == "02:42:ac:1e:d3:0a"


def test_a_container_without_a_version_is_of_an_unknown_one():
    assert "in version unknown," in other_version([container(version="")], "lab", "0.1.0-new")


def test_a_stopped_container_has_no_address_to_compare():
    wanted = [Wanted("lab-m", "172.30.211.10", "node:1", ())]
    assert other_address([container(status="exited", address="")], wanted) is None


def test_inotify_instances_are_raised_and_never_lowered(tmp_path, monkeypatch):
    setting = tmp_path / "max_user_instances"
    monkeypatch.setattr(lab_hosts, "INOTIFY_INSTANCES", str(setting))
    for before, after in (("128\n", "1024\n"), ("8192\n", "8192\n")):
        setting.write_text(before, encoding="ascii")
        lab(FakeEngine()).ensure_inotify()
        assert setting.read_text(encoding="ascii") == after


def test_an_outcome_is_sorted():
    assert Outcome(created=["b", "a"]).to_result()["created"] == ["a", "b"]
