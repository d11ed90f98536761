# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.tenantry.gpu.plugins.lookup.container_engine import choose, docker_socket_open


@pytest.mark.parametrize(
    ("root", "installed", "docker_answers", "engine"),
    [
        pytest.param(True, {"podman", "docker"}, True, "podman", id="root-with-both"),
        pytest.param(True, {"docker"}, True, "docker", id="root-with-docker"),
        pytest.param(True, {"docker"}, False, "podman", id="root-with-a-client-and-no-daemon"),
        pytest.param(True, set(), False, "podman", id="root-with-none-installs-podman"),
        pytest.param(False, {"podman", "docker"}, True, "docker", id="user-in-dockers-group"),
        pytest.param(False, {"podman"}, False, "podman", id="user-with-podman-only"),
    ],
)
def test_choice(root, installed, docker_answers, engine):
    assert choose(root, lambda name: name if name in installed else None, docker_answers) == engine


def test_a_socket_that_is_a_file_must_be_writable(tmp_path):
    socket = tmp_path / "docker.sock"
    assert not docker_socket_open(f"unix://{socket}")
    socket.touch()
    assert docker_socket_open(f"unix://{socket}")
    assert docker_socket_open("tcp://127.0.0.1:2375")
