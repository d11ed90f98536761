# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""kubeadm_worker against a host that is a folder, with a kubeadm that writes what the real one writes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenantry.gpu.plugins.modules import kubeadm_worker as module

AUTHORITY = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
OTHER_AUTHORITY = AUTHORITY.replace("AAAA", "BBBB")
SERVER = "https://192.0.2.128:6443"
TOKEN = "abcdef.0123456789abcdef"
# What kube-router wrote for the Node that the host was.
NETWORK = "etc/cni/net.d/10-kuberouter.conflist"


def kubeconfig(server: str = SERVER, authority: str = AUTHORITY) -> str:
    """A kubelet.conf as client-go writes it."""
    data = base64.b64encode(f"{authority}\n".encode()).decode()
    return (
        "apiVersion: v1\nclusters:\n- cluster:\n"
        f"    certificate-authority-data: {data}\n    server: {server}\n  name: default-cluster\n"
    )


class Host:
    """A worker's root folder and its programs; `answers` are kubeadm's, one for each call, the last one for ever."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "run").mkdir()
        self.calls: list[list[str]] = []
        self.configurations: list[dict] = []
        self.answers: list[tuple[int, str]] = [(0, "")]
        self.after_join = kubeconfig()

    def write(self, name: str, content: str = "") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def has(self, name: str) -> bool:
        return (self.root / name).exists()

    def run(self, arguments: list[str], data: str | None = None, timeout_s: float = 120) -> tuple[int, str]:
        assert timeout_s > 0
        self.calls.append(arguments)
        if arguments[:2] == ["kubeadm", "reset"]:
            (self.root / module.KUBELET_CONF).unlink(missing_ok=True)
        if arguments[:2] != ["kubeadm", "join"]:
            return 0, ""
        configuration = json.loads(data or "{}")
        discovery = Path(configuration["discovery"]["file"]["kubeConfigPath"])
        configuration["discovery"]["file"]["content"] = json.loads(discovery.read_text())
        self.configurations.append(configuration)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.write(module.BOOTSTRAP_CONF, TOKEN)
        self.write("etc/kubernetes/pki/ca.crt", AUTHORITY)
        if answer[0] == 0:
            self.write(module.KUBELET_CONF, self.after_join)
        return answer


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def worker(host: Host, monkeypatch: pytest.MonkeyPatch) -> module.Worker:
    made = module.Worker(None, host.root)
    monkeypatch.setattr(made, "run", host.run)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    return made


def wanted(**changes: object) -> module.Wanted:
    values = {
        "server": SERVER,
        "authority": AUTHORITY,
        "node_name": "a-worker-0",
        "cri_socket": "unix:///run/containerd/containerd.sock",
        "ignore_preflight_errors": ["SystemVerification"],
        "timeout_s": 1,
    }
    return module.Wanted(**{**values, **changes})


def joined(
    worker: module.Worker, token: str | None = TOKEN, *, confirm: bool = False, check: bool = False, **changes: object
) -> module.Outcome:
    return module.ensure_joined(worker, wanted(**changes), token, confirm=confirm, check=check)


def test_a_clean_host_joins(worker: module.Worker, host: Host) -> None:
    outcome = joined(worker)

    assert outcome.changed
    assert not outcome.joined
    assert outcome.attempts == 1
    assert host.calls == [["kubeadm", "join", "--config", "/dev/stdin"]]
    configuration = host.configurations[0]
    assert configuration["discovery"]["tlsBootstrapToken"] == TOKEN
    cluster = configuration["discovery"]["file"]["content"]["clusters"][0]["cluster"]
    assert cluster["server"] == SERVER
    assert base64.b64decode(cluster["certificate-authority-data"]).decode() == AUTHORITY
    assert configuration["nodeRegistration"]["ignorePreflightErrors"] == ["SystemVerification"]


def test_no_file_with_the_token_stays(worker: module.Worker, host: Host) -> None:
    joined(worker)

    assert not host.has(module.BOOTSTRAP_CONF)
    assert list((host.root / "run").iterdir()) == []


def test_a_joined_host_is_left_alone(worker: module.Worker, host: Host) -> None:
    host.write(module.KUBELET_CONF, kubeconfig())

    outcome = joined(worker, token=None)

    assert outcome.joined
    assert not outcome.changed
    assert host.calls == []


def test_a_node_that_was_deleted_is_registered_again(
    worker: module.Worker, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write(module.KUBELET_CONF, kubeconfig())
    host.write(NETWORK)
    answers = [module.NodeState(False), module.NodeState(False), module.NodeState(True)]
    monkeypatch.setattr(worker, "node_state", lambda _wanted: answers.pop(0))

    outcome = joined(worker, token=None)

    assert outcome.changed and outcome.joined and outcome.node.registered is False
    assert host.calls == [["systemctl", "restart", "kubelet"]]
    assert outcome.before == f"worker of {SERVER} (without its Node)"
    assert not host.has(NETWORK)


def test_in_check_mode_a_node_that_was_deleted_is_only_told(
    worker: module.Worker, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write(module.KUBELET_CONF, kubeconfig())
    monkeypatch.setattr(worker, "node_state", lambda _wanted: module.NodeState(False))

    assert joined(worker, token=None, check=True).changed
    assert host.calls == []


def test_a_node_that_does_not_come_back_is_named(
    worker: module.Worker, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write(module.KUBELET_CONF, kubeconfig())
    monkeypatch.setattr(worker, "node_state", lambda _wanted: module.NodeState(False))

    with pytest.raises(module.WorkerError, match="has no Node a-worker-0 0 s after its kubelet was started again"):
        joined(worker, token=None, timeout_s=0)


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (200, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, module.NodeState(True, True)),
        (200, {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, module.NodeState(True, False)),
        (200, {"status": {}}, module.NodeState(True, False)),
        (404, {"kind": "Status", "status": "Failure"}, module.NodeState(False)),
        (403, {"kind": "Status", "status": "Failure"}, module.NodeState()),
    ],
)
def test_a_node_says_whether_it_is_ready(status: int, answer: dict[str, Any], expected: module.NodeState) -> None:
    assert module.node_state_of(status, answer) == expected


def test_check_mode_needs_no_token_and_changes_nothing(worker: module.Worker, host: Host) -> None:
    host.write(module.BOOTSTRAP_CONF, TOKEN)

    outcome = joined(worker, token=None, check=True)

    assert outcome.changed
    assert outcome.removed == [f"/{module.BOOTSTRAP_CONF}"]
    assert host.has(module.BOOTSTRAP_CONF)
    assert host.calls == []


def test_what_an_interrupted_join_left_is_removed_first(worker: module.Worker, host: Host) -> None:
    for name in module.LEFTOVERS:
        host.write(name, "old")

    outcome = joined(worker)

    assert outcome.removed == [f"/{name}" for name in module.LEFTOVERS]
    assert host.calls[0] == ["systemctl", "stop", "kubelet"]
    assert (host.root / "etc/kubernetes/pki/ca.crt").read_text() == AUTHORITY


def test_a_token_that_a_killed_join_left_is_removed_from_a_joined_host(worker: module.Worker, host: Host) -> None:
    host.write(module.KUBELET_CONF, kubeconfig())
    host.write(module.BOOTSTRAP_CONF, TOKEN)
    host.write("var/lib/kubelet/config.yaml", "kept")

    outcome = joined(worker, token=None)

    assert outcome.joined
    assert outcome.changed
    assert not host.has(module.BOOTSTRAP_CONF)
    assert host.has("var/lib/kubelet/config.yaml")
    assert host.calls == []


def test_kubeadm_is_tried_until_the_cluster_is_ready_for_it(worker: module.Worker, host: Host) -> None:
    host.answers = [(1, "error: cluster-info not found"), (1, "error: forbidden"), (0, "")]

    assert joined(worker).attempts == 3


def test_credentials_that_came_although_kubeadm_gave_up_count(worker: module.Worker, host: Host) -> None:
    host.answers = [(1, "error: timed out waiting for the condition")]
    run = worker.run

    def with_credentials(arguments: list[str], data: str | None = None, timeout_s: float = 1) -> tuple[int, str]:
        answer = run(arguments, data, timeout_s)
        host.write(module.KUBELET_CONF, kubeconfig())
        return answer

    worker.run = with_credentials

    assert joined(worker).attempts == 1
    assert not host.has(module.BOOTSTRAP_CONF)


def test_the_last_error_is_in_the_message_and_the_token_is_not(worker: module.Worker, host: Host) -> None:
    host.answers = [
        (1, f"I1 noise\nerror execution phase preflight: token {TOKEN} is not known\nTo see the stack trace")
    ]

    with pytest.raises(module.WorkerError) as raised:
        joined(worker, timeout_s=0)

    assert str(raised.value) == (
        f"a-worker-0 could not join {SERVER} (1 tries): error execution phase preflight: token (token) is not known"
    )


@pytest.mark.parametrize("text", module.FATAL)
def test_what_no_later_try_can_mend_fails_at_once(worker: module.Worker, host: Host, text: str) -> None:
    host.answers = [(1, f"error: {text}"), (0, "")]

    with pytest.raises(module.WorkerError, match=r"1 tries"):
        joined(worker)


FOREIGN = [
    pytest.param(
        kubeconfig(server="https://192.0.2.129:6443"),
        "a-worker-0 belongs to another cluster, https://192.0.2.129:6443, not to",
        id="another server",
    ),
    pytest.param(
        kubeconfig(authority=OTHER_AUTHORITY),
        f"a-worker-0 belongs to an earlier cluster at {SERVER}",
        id="another authority",
    ),
]


@pytest.mark.parametrize(("conf", "message"), FOREIGN)
@pytest.mark.parametrize("check", [False, True])
def test_a_host_of_another_cluster_is_refused(
    worker: module.Worker, host: Host, conf: str, message: str, check: bool
) -> None:
    host.write(module.KUBELET_CONF, conf)

    with pytest.raises(module.WorkerError) as raised:
        joined(worker, check=check)

    assert str(raised.value).startswith(message)
    assert host.calls == []


def test_a_host_of_another_cluster_is_reset_when_confirmed(worker: module.Worker, host: Host) -> None:
    others = "etc/cni/net.d/87-podman-bridge.conflist"
    for name in (NETWORK, others):
        host.write(name)
    host.write(module.KUBELET_CONF, kubeconfig(server="https://192.0.2.129:6443"))

    assert joined(worker, confirm=True).changed

    assert [call[1] for call in host.calls] == ["reset", "join"]
    assert host.has(others) and not host.has(NETWORK)


def test_a_control_plane_is_no_worker(worker: module.Worker, host: Host) -> None:
    host.write(module.CONTROL_PLANE)

    with pytest.raises(module.WorkerError, match="runs a control plane"):
        joined(worker, confirm=True)


def test_joining_needs_a_token(worker: module.Worker) -> None:
    with pytest.raises(module.WorkerError, match="give a bootstrap token"):
        joined(worker, token=None)


def test_absent_needs_confirm(worker: module.Worker, host: Host) -> None:
    host.write(module.KUBELET_CONF, kubeconfig())

    with pytest.raises(module.WorkerError, match="set confirm"):
        module.ensure_absent(worker, confirm=False, check=False)

    assert module.ensure_absent(worker, confirm=True, check=True).changed
    assert host.calls == []
    assert module.ensure_absent(worker, confirm=True, check=False).changed
    assert not module.ensure_absent(worker, confirm=False, check=False).changed


def test_an_authority_by_path_is_read(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki/ca.crt").write_text(f"{AUTHORITY}\n")

    found = module.parse_membership(f"    certificate-authority: /pki/ca.crt\n    server: {SERVER}\n", tmp_path)

    assert found == module.Membership(SERVER, AUTHORITY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("apiVersion: v1\n", "names no server", id="no server"),
        pytest.param(f"server: {SERVER}\ncertificate-authority-data: A\n", "is no certificate", id="cut off"),
    ],
)
def test_a_broken_kubeconfig_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(module.WorkerError, match=message):
        module.parse_membership(text, tmp_path)


def test_two_runs_wait_for_each_other(worker: module.Worker, host: Host) -> None:
    other = module.Worker(None, host.root)
    with worker.only_one(1), pytest.raises(module.WorkerError, match="Another join"), other.only_one(0):
        pass


def test_a_missing_program_is_named(host: Host) -> None:
    with pytest.raises(module.WorkerError, match="no-such-program is not installed"):
        module.Worker(None, host.root).run(["no-such-program"])


def test_a_program_that_takes_too_long_is_stopped(host: Host) -> None:
    status, output = module.Worker(None, host.root).run(["sleep", "5"], timeout_s=0.05)

    assert status == 124
    assert "was stopped" in output


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        pytest.param("W1 a\nerror: b\nTo see\n", "error: b", id="error line"),
        pytest.param("[ERROR Port-10250]: in use\nother\n", "[ERROR Port-10250]: in use", id="preflight"),
        pytest.param("a\nb\nc\n", "b c", id="no error line"),
        pytest.param("", "it printed nothing", id="nothing"),
    ],
)
def test_why_kubeadm_failed(output: str, reason: str) -> None:
    assert module.failure_of(output) == reason
