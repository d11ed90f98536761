"""The tasks for the RHEL family, with Debian's dnf and empty packages: pinned, left out of updates, and moved."""

from __future__ import annotations

import re

PLAYBOOK = "molecule/node/rpm.yml"
KEPT = ("containerd.io", "kubeadm", "kubectl", "kubelet")


def installed(host):
    listed = host("ubuntu").check_output("rpm --query --all --queryformat '%{name} %{version}\\n'")
    return dict(line.split() for line in listed.splitlines())


def test_packages_are_pinned_and_left_out_of_updates(host, play, versions):
    kubernetes = versions["kubernetes"]
    following = re.sub(r"\d+$", lambda number: str(int(number.group()) + 1), kubernetes)
    arguments = (f"--extra-vars=next_kubernetes={following}",)
    done = play(PLAYBOOK, *arguments)
    assert done.returncode == 0, done.stdout
    wanted = {**dict.fromkeys(KEPT, kubernetes), "containerd.io": versions["containerd"]}
    assert {name: installed(host).get(name) for name in KEPT} == wanted

    host("ubuntu").check_output("dnf --assumeyes upgrade")
    assert {name: installed(host).get(name) for name in KEPT} == wanted
    assert re.search(r"^ubuntu .* changed=0 ", play(PLAYBOOK, *arguments).stdout, re.MULTILINE)

    moved = play(PLAYBOOK, *arguments, f"--extra-vars=node_kubernetes_version={following}")
    assert moved.returncode == 0, moved.stdout
    assert installed(host)["kubelet"] == following
    assert installed(host)["containerd.io"] == versions["containerd"]
