# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._engine import (
    Container,
    Engine,
    EngineError,
    Network,
    bridge_with,
    parse_containers,
    parse_network,
)

LABELS = {"tenantry.gpu.lab": "lab", "tenantry.gpu.version": "0.1.0-x"}


def container(name, networks):
    return {
        "Name": name,
        "State": {"Status": "running"},
        "Config": {"Labels": LABELS},
        "NetworkSettings": {"Networks": networks},
    }


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(
            container("lab-a", {"lab": {"IPAddress": "172.30.211.11"}}),
            Container("lab-a", "running", "lab", "172.30.211.11", "0.1.0-x"),
            id="podman",
        ),
        pytest.param(
            container("/lab-a", {"lab": {"IPAddress": "172.30.211.11"}}),
            Container("lab-a", "running", "lab", "172.30.211.11", "0.1.0-x"),
            id="docker",
        ),
        pytest.param(container("lab-a", None), Container("lab-a", "running", "", "", "0.1.0-x"), id="stopped"),
        pytest.param(
            {"Name": "x", "State": {"Status": "exited"}, "Config": {"Labels": None}},
            Container("x", "exited", "", "", ""),
            id="without-labels",
        ),
    ],
)
def test_parse_containers(item, expected):
    assert parse_containers(json.dumps([item])) == [expected]


@pytest.mark.parametrize(
    "item",
    [
        pytest.param({"name": "lab", "subnets": [{"subnet": "172.30.211.0/24"}], "labels": LABELS}, id="podman"),
        pytest.param(
            {"Name": "lab", "IPAM": {"Config": [{"Subnet": "172.30.211.0/24"}]}, "Labels": LABELS}, id="docker"
        ),
    ],
)
def test_parse_network(item):
    assert parse_network(json.dumps([item])) == Network("lab", ("172.30.211.0/24",), "lab")


def test_only_a_bridge_of_podmans_is_found():
    links = [
        {"ifname": "eth0", "addr_info": [{"local": "172.30.211.1"}]},
        {"ifname": "cni-podman1", "addr_info": [{"local": "172.30.7.1"}]},
    ]
    assert bridge_with(json.dumps(links), "172.30.7.1") == "cni-podman1"
    assert bridge_with(json.dumps(links), "172.30.211.1") is None
    assert bridge_with("", "172.30.211.1") is None


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        pytest.param("echo no such image >&2; exit 125", "run: no such image", id="says-why"),
        pytest.param("exit 3", "run: exit status 3", id="says-nothing"),
    ],
)
def test_a_failed_command_says_what_the_engine_said(tmp_path, script, sentence):
    program = tmp_path / "podman"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    with pytest.raises(EngineError, match=sentence):
        Engine(str(program), "lab").call("run")


def test_a_missing_engine_is_an_error():
    with pytest.raises(EngineError, match="cannot be run: No such file"):
        Engine("/nowhere/podman", "lab").call("ps")


class BusyEngine(Engine):
    """Fails the first removals, as podman does while a process does not die."""

    def __init__(self, failures):
        super().__init__("podman", "lab", "1")
        self.failures = failures
        self.removals = 0

    def call(self, *arguments, timeout_s=None):
        self.removals += 1
        if self.removals <= self.failures:
            raise EngineError("given PIDs did not die within timeout")
        return ""


@pytest.mark.parametrize("failures", [pytest.param(0, id="at-once"), pytest.param(1, id="late")])
def test_a_container_that_dies_late_is_removed(failures):
    engine = BusyEngine(failures)
    engine.remove_containers(["lab-a"])
    assert engine.removals == failures + 1


def test_a_container_that_does_not_die_is_an_error():
    with pytest.raises(EngineError, match="did not die"):
        BusyEngine(2).remove_containers(["lab-a"])
