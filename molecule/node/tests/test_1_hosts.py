"""What role node has made of plain hosts, and that their kubelets joined a control plane."""

from __future__ import annotations

import re

import pytest

HOSTS = ("control", "debian", "ubuntu", "packaged")
FROM_THE_FOLDER = ("control", "debian", "ubuntu")
HELD = ["containerd.io", "kubeadm", "kubectl", "kubelet"]


@pytest.mark.parametrize("name", HOSTS)
def test_services_run_and_are_enabled(host, name):
    for service in ("containerd", "kubelet"):
        assert host(name).service(service).is_running
        assert host(name).service(service).is_enabled


@pytest.mark.parametrize("name", HOSTS)
def test_programs_are_of_the_matrix(host, name, versions):
    assert host(name).check_output("kubelet --version") == f"Kubernetes v{versions['kubernetes']}"
    assert host(name).check_output("kubeadm version --output short") == f"v{versions['kubernetes']}"
    assert f" v{versions['containerd']} " in host(name).check_output("containerd --version")


@pytest.mark.parametrize("name", HOSTS)
def test_the_kernel_is_ready_now_and_at_the_next_start(host, name):
    assert host(name).sysctl("net.ipv4.ip_forward") == 1
    assert "net.ipv4.ip_forward = 1\n" in host(name).file("/etc/sysctl.d/95-tenantry-node.conf").content_string
    assert "\nbr_netfilter\n" in host(name).file("/etc/modules-load.d/tenantry-node.conf").content_string


@pytest.mark.parametrize("name", HOSTS)
def test_containerd_runs_with_the_drop_in(host, name, versions):
    dump = host(name).check_output("containerd config dump")
    assert "version = 4" in dump
    assert f"registry.k8s.io/pause:{versions['pause']}" in dump
    version_2 = host(name).file("/sys/fs/cgroup/cgroup.controllers").exists
    assert re.findall(r"SystemdCgroup = (\w+)", dump) == ["true" if version_2 else "false"]
    # The host's own drop-in, which the role does not know.
    assert "restrict_oom_score_adj = true" in dump


@pytest.mark.parametrize("name", HOSTS)
def test_every_image_comes_from_the_mirror(host, name):
    text = host(name).file("/etc/containerd/certs.d/_default/hosts.toml").content_string
    assert re.search(r'^\[host\."http://[0-9.]+:5000"]$', text, re.MULTILINE)


@pytest.mark.parametrize("name", FROM_THE_FOLDER)
def test_the_folders_units_are_there_and_nothing_of_it_is_left_in_between(host, name):
    assert "ExecStart=/usr/local/bin/containerd" in host(name).check_output("systemctl cat containerd")
    assert "EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env" in host(name).check_output("systemctl cat kubelet")
    assert host(name).run("ls ~/.ansible/tmp").stdout == ""


def test_packages_are_pinned_and_held(host, versions):
    packaged = host("packaged")
    for name in ("kubelet", "kubeadm", "kubectl"):
        assert packaged.package(name).version == f"{versions['kubernetes']}-1.1"
    assert packaged.package("containerd.io").version.startswith(f"{versions['containerd']}-1~debian")
    assert packaged.check_output("apt-mark showhold").split() == HELD
    for command in ("dist-upgrade", "--ignore-hold dist-upgrade"):
        planned = packaged.check_output(f"apt-get --simulate {command}")
        assert not re.search(r"^Inst (kube|containerd)", planned, re.MULTILINE), planned


def test_what_the_package_had_configured_is_kept(host):
    packaged = host("packaged")
    kept = packaged.check_output("ls /etc/containerd/config.toml.*.orig").splitlines()
    assert len(kept) == 1
    assert packaged.file(kept[0]).content_string == 'disabled_plugins = ["cri"]\n'


def test_all_of_them_are_ready_nodes(api, versions):
    nodes = {node.metadata.name: node for node in api.request("get", "/api/v1/nodes").items}
    assert sorted(nodes) == sorted(HOSTS)
    for node in nodes.values():
        assert {each.type: each.status for each in node.status.conditions}["Ready"] == "True"
        assert node.status.nodeInfo.kubeletVersion == f"v{versions['kubernetes']}"
        assert node.status.nodeInfo.containerRuntimeVersion == f"containerd://{versions['containerd']}"
