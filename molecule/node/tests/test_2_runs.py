"""What further runs do: with another version, with a damaged folder, with a host or a join that fails."""

from __future__ import annotations

import hashlib
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from node_scenario import ENVIRONMENT, ROOT, STATE, ansible, container

STAGE = "playbooks/stages/2_nodes.yml"
WORKERS = "playbooks/stages/5_workers.yml"
PROGRAMS = "/var/lib/tenantry-gpu/programs.json"
NVIDIA = """\
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
  BinaryName = "/usr/bin/nvidia-container-runtime"
"""


def changed(output: str) -> dict[str, int]:
    """How many tasks changed something, by host."""
    return {name: int(count) for name, count in re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", output, re.MULTILINE)}


def last_lines(output: str) -> list[str]:
    """What a run says behind its recap."""
    return [line for line in output.partition("PLAY RECAP")[2].splitlines() if line.startswith(("Failed: ", "Reboot "))]


def podman(*arguments: str) -> str:
    done = subprocess.run(["podman", *arguments], env=ENVIRONMENT, text=True, capture_output=True, check=True)
    return done.stdout.strip()


def test_check_mode_on_finished_hosts_foresees_nothing(play):
    done = play("molecule/node/converge.yml", "--check", "--diff")
    assert done.returncode == 0, done.stdout
    assert set(changed(done.stdout).values()) == {0}, done.stdout


def test_the_nvidia_runtime_survives_a_rewrite(host, play):
    debian = host("debian")
    debian.check_output("cat > /etc/containerd/conf.d/60-tenantry-nvidia.toml <<'END'\n" + NVIDIA + "END")
    debian.check_output("sed -i /pause/d /etc/containerd/conf.d/50-tenantry-node.toml")
    debian.check_output("sed -i s/4/2/ /etc/containerd/config.toml")
    done = play(STAGE, "--limit=debian")
    assert done.returncode == 0, done.stdout
    dump = debian.check_output("containerd config dump")
    assert 'BinaryName = "/usr/bin/nvidia-container-runtime"' in dump.replace("'", '"')
    assert "registry.k8s.io/pause:" in dump
    info = debian.check_output("crictl info")
    assert '"nvidia"' in info  # the runtime that answers has it too
    assert changed(play(STAGE, "--limit=debian").stdout)["debian"] == 0


@pytest.fixture
def damaged(tmp_path, versions):
    """A folder of another version of Kubernetes, with one file damaged and one lost."""
    folder = tmp_path / "artifacts"
    subprocess.run(["cp", "--recursive", "--link", STATE / "artifacts", folder], check=True)
    sums = (folder / "SHA256SUMS").read_text()
    (folder / "SHA256SUMS").unlink()  # a link, not a copy
    files = folder / "files/kubernetes/1.36.99"
    files.mkdir()
    for name in ("kubelet", "kubeadm", "kubectl"):
        sums += f"{hashlib.sha256(name.encode()).hexdigest()}  files/kubernetes/1.36.99/{name}\n"
    (files / "kubelet").write_text("kubel")
    (files / "kubectl").write_text("kubectl")
    (folder / "SHA256SUMS").write_text(sums)
    return folder


def test_a_damaged_folder_is_refused_by_name_before_any_change(host, play, damaged):
    before = host("ubuntu").file(PROGRAMS).content_string
    done = play(STAGE, "--limit=ubuntu", f"--extra-vars=tenantry_artifacts_dir={damaged}",
                "--extra-vars=node_kubernetes_version=1.36.99")  # fmt: skip
    assert done.returncode != 0
    (line,) = last_lines(done.stdout)
    assert line.startswith(
        "Failed: ubuntu at 'tenantry.gpu.node : Programs and packages of the folder are on the host'"
    )
    assert "files/kubernetes/1.36.99/kubeadm cannot be read (No such file or directory)" in line
    assert "files/kubernetes/1.36.99/kubelet has checksum" in line
    assert "kubectl" not in line
    assert changed(done.stdout)["ubuntu"] == 0
    assert host("ubuntu").file(PROGRAMS).content_string == before


def test_another_patch_moves_what_is_held(host, api, play, versions):
    packaged = host("packaged")
    kubelet = packaged.check_output("systemctl show --property=MainPID kubelet")
    patch = re.sub(r"\d+$", lambda number: str(int(number.group()) + 1), versions["kubernetes"])
    done = play(STAGE, "--limit=packaged", f"--extra-vars=node_kubernetes_version={patch}")
    assert done.returncode == 0, done.stdout
    assert packaged.package("kubelet").version == f"{patch}-1.1"
    assert packaged.check_output("apt-mark showhold").split() == ["containerd.io", "kubeadm", "kubectl", "kubelet"]
    assert packaged.check_output("systemctl show --property=MainPID kubelet") != kubelet
    assert packaged.service("kubelet").is_running
    assert changed(play(STAGE, "--limit=packaged", f"--extra-vars=node_kubernetes_version={patch}").stdout) == {
        "packaged": 0
    }


def test_a_host_that_drops_out_is_named_and_the_next_run_goes_on(host, play, versions):
    for name in ("debian", "ubuntu"):
        host(name).check_output("rm -f /usr/local/bin/crictl")
    process = subprocess.Popen(
        ansible("ansible-playbook", str(ROOT / STAGE)), env=ENVIRONMENT, cwd=ROOT, text=True, stdout=subprocess.PIPE
    )
    output = ""
    for line in process.stdout:
        output += line
        if "The host's distribution is one of those" in line:
            podman("kill", container("ubuntu"))
    assert process.wait(timeout=300) != 0
    (line,) = last_lines(output)
    assert line.startswith("Failed: ubuntu at 'tenantry.gpu.node : "), output
    assert host("debian").file("/usr/local/bin/crictl").exists
    # It had been moved on by a patch.
    assert host("packaged").package("kubelet").version == f"{versions['kubernetes']}-1.1"

    podman("start", container("ubuntu"))
    done = play(STAGE)
    assert done.returncode == 0, done.stdout
    assert host("ubuntu").file("/usr/local/bin/crictl").exists
    assert changed(done.stdout)["debian"] == 0


def test_a_join_that_fails_is_named_and_the_next_run_joins(api, play):
    module = ["--module-name=tenantry.gpu.kubeadm_worker", "--args=state=absent confirm=true"]
    subprocess.run(ansible("ansible", "ubuntu", *module), env=ENVIRONMENT, cwd=ROOT, check=True, capture_output=True)
    api.request("delete", "/api/v1/nodes/ubuntu")
    expired = ["--extra-vars=tenant_worker_token_lifetime_s=-60", "--extra-vars=tenant_worker_timeout_s=5"]
    done = play(WORKERS, *expired)
    assert done.returncode != 0
    (line,) = last_lines(done.stdout)
    assert line.startswith(
        "Failed: ubuntu at 'tenantry.gpu.tenant_worker : The worker has joined management': ubuntu could not join"
    )
    assert changed(done.stdout)["debian"] == 0

    done = play(WORKERS)
    assert done.returncode == 0, done.stdout
    assert api.request("get", "/api/v1/nodes/ubuntu").metadata.name == "ubuntu"


REBOOT = '--extra-vars={"tenantry_reboot_reasons": ["A test wants it."]}'


def test_a_reboot_that_is_not_allowed_is_named_at_the_end(play):
    done = play(STAGE, "--limit=debian", REBOOT)
    assert done.returncode == 0, done.stdout
    assert last_lines(done.stdout) == [
        "Reboot due: debian: A test wants it. "
        "Start it again yourself, or set node_reboot_allowed to true and run this again."
    ]


def test_what_a_run_that_was_cut_off_had_drained_takes_pods_again(api, play):
    """Also where the run is about drivers alone, which names a reboot that is due as every other."""
    node = "/api/v1/nodes/debian"
    mark = STATE / "rebooting" / "debian"
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    merge = {"content_type": "application/merge-patch+json"}
    api.request("patch", node, body={"spec": {"unschedulable": True}}, **merge)
    done = play(STAGE, "--limit=debian", "--tags=gpu_hosts", REBOOT)
    assert done.returncode == 0, done.stdout
    assert last_lines(done.stdout)[0].startswith("Reboot due: debian: A test wants it.")
    assert not api.request("get", node).spec.unschedulable
    assert not mark.exists()

    api.request("patch", node, body={"spec": {"unschedulable": True}}, **merge)
    assert play(STAGE, "--limit=debian", "--tags=gpu_hosts").returncode == 0
    assert api.request("get", node).spec.unschedulable
    api.request("patch", node, body={"spec": {"unschedulable": False}}, **merge)


@contextmanager
def started_again(name: str) -> Iterator[None]:
    """Do for a container what a machine does itself: start again after it went down."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.3):
            if podman("inspect", "--format={{.State.Running}}", container(name)) == "false":
                podman("start", container(name))

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    over.set()
    thread.join()


def test_reboots_that_are_allowed_come_one_after_the_other_and_drain_first(host, api, play):
    names = ("debian", "ubuntu")
    show = "systemctl show --property=UserspaceTimestampMonotonic"
    before = {name: host(name).check_output(show) for name in names}
    with started_again("debian"), started_again("ubuntu"):
        done = play(STAGE, "--limit=debian,ubuntu", REBOOT, "--extra-vars=node_reboot_allowed=true")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PLAY [Hosts that have to be started again are, in batches]") == len(names)
    for name in names:
        assert host(name).check_output(show) != before[name]
        node = api.request("get", f"/api/v1/nodes/{name}")
        assert not node.spec.unschedulable
        assert {each.type: each.status for each in node.status.conditions}["Ready"] == "True"
        query = [("fieldSelector", f"involvedObject.name={name}")]
        events = api.request("get", "/api/v1/events", query_params=query).items
        assert "NodeNotSchedulable" in {event.reason for event in events}
