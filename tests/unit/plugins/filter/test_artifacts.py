# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.tenantry.gpu.plugins.filter.artifacts import artifact_list

PAUSE = "registry.k8s.io/pause:3.10.2"
HOSTVARS = {
    "worker-0": {"__node_needs": {"images": [PAUSE], "files": ["files/runc/1.5.2/runc.amd64"]}},
    "worker-1": {
        "__node_needs": {"images": [PAUSE]},
        "__other_needs": {"images": ["other:1"]},
    },
    "tenant-a": {},
}


def test_what_roles_said_on_hosts_is_merged():
    found = artifact_list(HOSTVARS, HOSTVARS, ["cni", "node"], {"images": ["mine:1"]}, {"runc": "https://example.com"})
    assert [image["reference"] for image in found["images"]] == [
        "docker.io/library/mine:1",
        "registry.k8s.io/pause:3.10.2",
    ]
    assert [file["url"] for file in found["files"]] == ["https://example.com/v1.5.2/runc.amd64"]


def test_a_program_without_an_address_is_named():
    with pytest.raises(AnsibleFilterError, match=r"files/runc/1\.5\.2/runc\.amd64: it is not known where"):
        artifact_list(HOSTVARS, HOSTVARS, ["node"], {}, {})
