"""The configuration for other versions of containerd, read by the distribution's own and by this one."""

from __future__ import annotations

import re

import pytest


@pytest.fixture(scope="module")
def written(play):
    done = play("molecule/node/formats.yml")
    assert done.returncode == 0, done.stdout


def dump(host, program, version):
    text = host.check_output(f"{program} --config /srv/{version}.toml config dump").replace("'", '"')
    assert re.search(r'^\s*(sandbox|sandbox_image) = "registry.k8s.io/pause:3', text, re.MULTILINE)
    assert re.search(r'^\s*config_path = "/etc/containerd/certs.d"', text, re.MULTILINE)
    assert re.search(r"^\s*SystemdCgroup = true$", text, re.MULTILINE)
    assert re.search(r'^\s*bin_dirs? = (\[)?"/opt/cni/bin"', text, re.MULTILINE)
    return text


@pytest.mark.parametrize(("name", "version"), [("debian", "1.6.20"), ("control", "1.7.24")])
def test_the_distributions_containerd_reads_format_2(host, written, name, version):
    there = host(name)
    there.check_output("mkdir -p /srv/deb && cd /srv/deb && apt-get download containerd")
    there.check_output("cd /srv/deb && dpkg-deb -x containerd_*.deb .")
    assert f" {version[:4]}" in there.check_output("/srv/deb/usr/bin/containerd --version")
    text = dump(there, "/srv/deb/usr/bin/containerd", version)
    assert text.startswith("disabled_plugins") and "\nversion = 2\n" in text


@pytest.mark.parametrize(("version", "format_"), [("2.0.7", 3), ("2.2.1", 3), ("2.3.7", 4)])
def test_this_containerd_reads_formats_3_and_4(host, written, version, format_):
    assert f"version = {format_}\n" in host("debian").file(f"/srv/{version}.toml").content_string
    dump(host("debian"), "containerd", version)
