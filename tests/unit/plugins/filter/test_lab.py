# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ipaddress

import pytest
from ansible.errors import AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.filter.lab import (
    FilterModule,
    host_variables,
    lab_address,
    lab_addresses,
    lab_subnet,
)


def test_the_lab_has_its_known_network():
    assert lab_subnet("lab") == "172.30.211.0/24"


@given(st.text(min_size=1))
def test_every_name_has_one_network_in_the_block(name):
    network = ipaddress.IPv4Network(lab_subnet(name))
    assert network.prefixlen == 24
    assert network.subnet_of(ipaddress.IPv4Network("172.28.0.0/14"))
    assert lab_subnet(name) == str(network)


def test_no_name_is_an_error():
    with pytest.raises(AnsibleFilterError, match="lab_subnet: '' is no lab name; give a non-empty string"):
        lab_subnet("")


@pytest.mark.parametrize(("number", "address"), [(1, "172.28.7.1"), ("10", "172.28.7.10"), (254, "172.28.7.254")])
def test_an_address_is_counted_from_the_network(number, address):
    assert lab_address("172.28.7.0/24", number) == address


@pytest.mark.parametrize(
    ("subnet", "number", "sentence"),
    [
        ("172.28.7.0/24", 0, "172.28.7.0/24 has no host address 0; give 1 to 254"),
        ("172.28.7.0/24", 255, "has no host address 255"),
        ("172.28.7.1/24", 1, "'172.28.7.1/24' is no IPv4 network"),
    ],
)
def test_no_such_address(subnet, number, sentence):
    with pytest.raises(AnsibleFilterError, match=sentence):
        lab_address(subnet, number)


def test_hosts_get_addresses_in_their_order():
    assert lab_addresses(["m", "a"], "172.28.7.0/24") == {"m": "172.28.7.10", "a": "172.28.7.11"}


def test_hosts_end_where_load_balancers_begin():
    assert lab_addresses(map(str, range(118)), "172.28.7.0/24")["117"] == "172.28.7.127"
    with pytest.raises(AnsibleFilterError, match="room for 118 hosts, and the inventory has 119"):
        lab_addresses(map(str, range(119)), "172.28.7.0/24")


def test_host_variables_leaves_out_what_is_not_set():
    hostvars = {"a": {"tenant_worker_tenant": "tenant-a"}, "b": {}}
    assert host_variables(["a", "b"], hostvars, {"tenant": "tenant_worker_tenant"}) == [
        {"name": "a", "tenant": "tenant-a"},
        {"name": "b"},
    ]


def test_every_filter_is_found_by_its_name():
    assert sorted(FilterModule().filters()) == ["host_variables", "lab_address", "lab_addresses", "lab_subnet"]
