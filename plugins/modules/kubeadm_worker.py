#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu maintainers
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Join this host to a cluster with kubeadm, or take it out of one. Runs on the worker: Python 3.9, standard library."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kubeadm_worker
short_description: Join a worker to a Kubernetes cluster with kubeadm
version_added: 0.1.0
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - Joins the host on which it runs to a cluster as a worker, or takes it out of one.
  - A host has joined when its kubelet's own kubeconfig points to O(server) and trusts O(certificate_authority), and
    the API, asked with the kubelet's own certificate, has its Node. A kubelet registers its Node only when it starts;
    where the Node was deleted meanwhile, the kubelet is started again.
  - A host that leaves its cluster, or whose Node was deleted, loses the configuration that kube-router or Calico wrote
    for that Node into C(/etc/cni/net.d); files of others there stay.
  - Whether the Node is Ready is for the cluster to say, ask it with M(kubernetes.core.k8s_info).
  - What a join that was cut off left behind is removed before the next try. A host that belongs to another cluster
    is refused.
  - The token reaches C(kubeadm) through its standard input, never through its arguments or a file of this module.
requirements:
  - kubeadm, kubelet and systemd on the host
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    support: full
    platforms: linux
options:
  state:
    description:
      - V(joined) makes the host a worker of the cluster.
      - V(absent) makes it a worker of none, which needs O(confirm).
    type: str
    choices: [joined, absent]
    default: joined
  server:
    description: Address of the cluster's API server as the kubelet shall use it. Required when O(state=joined).
    type: str
  certificate_authority:
    description: The cluster's certificate authority, in PEM. Required when O(state=joined).
    type: str
  token:
    description:
      - A bootstrap token for signing and authentication.
      - Needed only when the host has not joined yet; in check mode never.
    type: str
  node_name:
    description: Name of the Node. Without it the host's name in lower case.
    type: str
  cri_socket:
    description: Where the container runtime listens.
    type: str
    default: unix:///run/containerd/containerd.sock
  ignore_preflight_errors:
    description: Preflight checks of kubeadm whose failure is only a warning.
    type: list
    elements: str
    default: []
  timeout_s:
    description: How many seconds all tries of a join may take together.
    type: int
    default: 120
  confirm:
    description:
      - Allows C(kubeadm reset), which stops every container of the host.
      - Also lets O(state=joined) take the host out of another cluster first.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: The worker has joined its tenant
  tenantry.gpu.kubeadm_worker:
    server: https://192.0.2.128:6443
    certificate_authority: "{{ lookup('ansible.builtin.file', 'tenant-a-ca.crt') }}"
    token: "{{ bootstrap_token }}"

- name: Would it have to join? (nothing is changed, no token is needed)
  tenantry.gpu.kubeadm_worker:
    server: https://192.0.2.128:6443
    certificate_authority: "{{ lookup('ansible.builtin.file', 'tenant-a-ca.crt') }}"
  check_mode: true
  register: worker

- name: The worker belongs to no cluster
  tenantry.gpu.kubeadm_worker:
    state: absent
    confirm: true
"""

RETURN = r"""
joined:
  description: Whether the host had joined the cluster before this module did anything.
  returned: O(state=joined)
  type: bool
  sample: true
registered:
  description:
    - Whether the API had the Node before this module did anything.
    - Null if the host had not joined or the API could not be asked with the kubelet's certificate.
  returned: O(state=joined)
  type: bool
  sample: true
ready:
  description: Whether the Node was ready before this module did anything. False where RV(registered) is not true.
  returned: O(state=joined)
  type: bool
  sample: true
node_name:
  description: Name of the Node.
  returned: success
  type: str
  sample: a-worker-0
removed:
  description: Files that an earlier, unfinished join had left and that were removed, or would be.
  returned: success
  type: list
  elements: str
  sample: [/etc/kubernetes/bootstrap-kubelet.conf]
attempts:
  description: How many times kubeadm was started.
  returned: success
  type: int
  sample: 1
"""

import base64
import binascii
import fcntl
import http.client
import json
import re
import socket
import ssl
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlsplit

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Iterator

KUBELET_CONF = "etc/kubernetes/kubelet.conf"
BOOTSTRAP_CONF = "etc/kubernetes/bootstrap-kubelet.conf"
CONTROL_PLANE = "etc/kubernetes/manifests/kube-apiserver.yaml"
# In the order in which kubeadm writes them; a CA that stays would be trusted by the next join unseen.
LEFTOVERS = (
    BOOTSTRAP_CONF,
    "etc/kubernetes/pki/ca.crt",
    "var/lib/kubelet/config.yaml",
    "var/lib/kubelet/instance-config.yaml",
    "var/lib/kubelet/kubeadm-flags.env",
)
# What kube-router and Calico write for one Node, and kubeadm reset leaves: the range of its pods, the way to its API.
# Pods that start before the new Node's network has written its own would have addresses of the other one.
NETWORK_FILES = (
    "etc/cni/net.d/10-kuberouter.conflist",
    "etc/cni/net.d/10-calico.conflist",
    "etc/cni/net.d/calico-kubeconfig",
)
RETRY_S = 0.3
ASK_TIMEOUT_S = 5
# No later try can mend these.
FATAL = ("[preflight] Some fatal errors occurred", "already exists in the cluster", "invalid configuration")
TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")


class WorkerError(Exception):
    """What went wrong, in one sentence for the user."""


@dataclass(frozen=True)
class Membership:
    """The cluster that a kubelet's kubeconfig names."""

    server: str
    authority: str


@dataclass(frozen=True)
class Wanted:
    """The cluster that the host shall be a worker of, and how it joins."""

    server: str
    authority: str
    node_name: str
    cri_socket: str
    ignore_preflight_errors: list[str]
    timeout_s: int


@dataclass(frozen=True)
class NodeState:
    """What the API says of the host's Node; registered is None where it cannot be asked as the kubelet."""

    registered: bool | None = None
    ready: bool = False


@dataclass
class Outcome:
    """What was done, or would be."""

    joined: bool = False
    node: NodeState = NodeState()
    before: str = ""
    after: str = ""
    removed: list[str] = field(default_factory=list)
    attempts: int = 0

    @property
    def changed(self) -> bool:
        """Whether the host's state differs from before."""
        return self.before != self.after or bool(self.removed)


def parse_membership(kubeconfig: str, root: Path) -> Membership:
    """The cluster in a kubeconfig as the kubelet writes it: client-go, one cluster, the certificate inside or by path.

    Hosts have no YAML library; the two values stand alone on their lines.
    """
    server = re.search(r"^\s*server:\s*[\"']?([^\s\"']+)", kubeconfig, re.MULTILINE)
    if not server:
        raise WorkerError(
            f"/{KUBELET_CONF} names no server; remove the file if the host belongs to no cluster, then try again."
        )
    data = re.search(r"^\s*certificate-authority-data:\s*[\"']?([A-Za-z0-9+/=]+)", kubeconfig, re.MULTILINE)
    path = re.search(r"^\s*certificate-authority:\s*[\"']?([^\s\"']+)", kubeconfig, re.MULTILINE)
    authority = ""
    if data:
        try:
            authority = base64.b64decode(data.group(1), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise WorkerError(f"/{KUBELET_CONF}: certificate-authority-data is no certificate ({error}).") from error
    elif path and (root / path.group(1).lstrip("/")).is_file():
        authority = (root / path.group(1).lstrip("/")).read_text()
    return Membership(server.group(1), authority.strip())


def discovery_kubeconfig(wanted: Wanted) -> str:
    """A kubeconfig without credentials: where the cluster is and whom to trust (JSON is YAML)."""
    cluster = {
        "server": wanted.server,
        "certificate-authority-data": base64.b64encode(wanted.authority.encode()).decode(),
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tenant", "cluster": cluster}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "tenant", "context": {"cluster": "tenant", "user": "nobody"}}],
            "current-context": "tenant",
        }
    )


def join_configuration(wanted: Wanted, token: str, discovery: Path) -> str:
    """kubeadm's JoinConfiguration (v1beta4). The CA comes by file, so cluster-info need not be signed for the token."""
    return json.dumps(
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "JoinConfiguration",
            "discovery": {
                "file": {"kubeConfigPath": str(discovery)},
                "tlsBootstrapToken": token,
            },
            "nodeRegistration": {
                "name": wanted.node_name,
                "criSocket": wanted.cri_socket,
                "ignorePreflightErrors": wanted.ignore_preflight_errors,
            },
            # Short ones: kubeadm waits 5 s between its own tries, this module much less.
            "timeouts": {
                "discovery": "2s",
                "kubernetesAPICall": "10s",
                "kubeletHealthCheck": f"{wanted.timeout_s}s",
                "tlsBootstrap": f"{wanted.timeout_s}s",
            },
        }
    )


def failure_of(output: str) -> str:
    """The lines of kubeadm's output that say why, without its stack traces and hints."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("error", "Error", "[ERROR"))]
    return " ".join(errors or lines[-2:]) or "it printed nothing"


class Worker:
    """The host, its files under a root folder, and the programs that change it."""

    def __init__(self, module: AnsibleModule, root: Path = Path("/")) -> None:
        self.module = module
        self.root = root

    @contextmanager
    def only_one(self, timeout_s: int) -> Iterator[None]:
        """Wait for a run whose controller was killed while the join itself went on."""
        lock_path = self.root / "run/lock/tenantry-kubeadm-worker.lock"
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + timeout_s
        with lock_path.open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise WorkerError(
                            f"Another join of this host has been running for more than {timeout_s} s; wait for its end."
                        ) from error
                    time.sleep(RETRY_S)
            yield

    def membership(self) -> Membership | None:
        """The cluster that the host belongs to."""
        path = self.root / KUBELET_CONF
        return parse_membership(path.read_text(), self.root) if path.is_file() else None

    def node_state(self, wanted: Wanted) -> NodeState:
        """Ask the API for the Node with the kubelet's own certificate."""
        kubeconfig = (self.root / KUBELET_CONF).read_text()
        files = {}
        for field_name in ("client-certificate", "client-key"):
            found = re.search(rf"^\s*{field_name}:\s*[\"']?([^\s\"']+)", kubeconfig, re.MULTILINE)
            if not found:
                return NodeState()
            files[field_name] = str(self.root / found.group(1).lstrip("/"))
        server = urlsplit(wanted.server)
        try:
            context = ssl.create_default_context(cadata=wanted.authority)
            context.load_cert_chain(files["client-certificate"], files["client-key"])
            connection = http.client.HTTPSConnection(
                server.hostname or "", server.port or 443, timeout=ASK_TIMEOUT_S, context=context
            )
            connection.request("GET", f"/api/v1/nodes/{quote(wanted.node_name)}")
            response = connection.getresponse()
            answer = json.loads(response.read())
            connection.close()
        except (OSError, ValueError, http.client.HTTPException):
            return NodeState()
        return node_state_of(response.status, answer)

    def register_again(self, wanted: Wanted) -> None:
        """Start the kubelet again, and wait until the API has its Node."""
        deadline = time.monotonic() + wanted.timeout_s
        self.remove_network()
        status, output = self.run(["systemctl", "restart", "kubelet"])
        if status:
            raise WorkerError(f"The kubelet could not be started again: {failure_of(output)}")
        while self.node_state(wanted).registered is False:
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"{wanted.server} has no Node {wanted.node_name} {wanted.timeout_s} s after its kubelet was "
                    "started again; see the kubelet's journal on the host."
                )
            time.sleep(RETRY_S)

    def leftovers(self) -> list[str]:
        """Files of an unfinished join; once the kubelet has its own kubeconfig only the one with the token."""
        names = (BOOTSTRAP_CONF,) if (self.root / KUBELET_CONF).is_file() else LEFTOVERS
        return [f"/{name}" for name in names if (self.root / name).is_file()]

    def remove_leftovers(self) -> None:
        """Undo an unfinished join. The kubelet is stopped first, it would go on with a token of yesterday."""
        leftovers = self.leftovers()
        if leftovers and not (self.root / KUBELET_CONF).is_file():
            self.run(["systemctl", "stop", "kubelet"])
        for name in leftovers:
            (self.root / name.lstrip("/")).unlink()

    def run(self, arguments: list[str], data: str | None = None, timeout_s: float = 120) -> tuple[int, str]:
        """Exit status and output of a program; 124 when it ran out of time."""
        try:
            # run_command knows no time limit.  pylint: disable-next=ansible-bad-function
            done = subprocess.run(arguments, input=data, capture_output=True, text=True, timeout=timeout_s, check=False)
        except FileNotFoundError as error:
            raise WorkerError(f"{arguments[0]} is not installed on this host.") from error
        except subprocess.TimeoutExpired:
            return 124, f"error: {arguments[0]} was stopped after {timeout_s:.0f} s"
        return done.returncode, done.stdout + done.stderr

    def join(self, wanted: Wanted, token: str) -> int:
        """Run kubeadm join until it succeeds, at most timeout_s; returns the number of tries."""
        deadline = time.monotonic() + wanted.timeout_s
        attempts = 0
        run_folder = self.root / "run"
        with tempfile.NamedTemporaryFile("w", dir=run_folder, prefix="tenantry-", suffix=".conf") as discovery:
            discovery.write(discovery_kubeconfig(wanted))
            discovery.flush()
            configuration = join_configuration(wanted, token, Path(discovery.name))
            while True:
                attempts += 1
                left = max(1.0, deadline - time.monotonic())
                status, output = self.run(["kubeadm", "join", "--config", "/dev/stdin"], configuration, left)
                # The kubelet may have got its credentials although kubeadm gave up.
                if status == 0 or self.membership() == Membership(wanted.server, wanted.authority):
                    self.remove_leftovers()
                    return attempts
                if any(text in output for text in FATAL) or time.monotonic() + RETRY_S > deadline:
                    reason = failure_of(output).replace(token, "(token)")
                    raise WorkerError(f"{wanted.node_name} could not join {wanted.server} ({attempts} tries): {reason}")
                self.remove_leftovers()
                time.sleep(RETRY_S)

    def reset(self) -> None:
        """Take the host out of its cluster."""
        status, output = self.run(["kubeadm", "reset", "--force"])
        if status:
            raise WorkerError(f"kubeadm reset failed: {failure_of(output)}")
        self.remove_network()

    def remove_network(self) -> None:
        """Remove the network's configuration of a Node that the host is no more."""
        for name in NETWORK_FILES:
            (self.root / name).unlink(missing_ok=True)


def node_state_of(status: int, answer: dict[str, Any]) -> NodeState:
    """Read an answer to a GET of a Node."""
    if status != 200:
        return NodeState(False if status == 404 else None)
    conditions = (answer.get("status") or {}).get("conditions") or []
    return NodeState(True, any(each["type"] == "Ready" and each["status"] == "True" for each in conditions))


def describe(membership: Membership | None) -> str:
    """One line for a diff."""
    return f"worker of {membership.server}" if membership else "worker of no cluster"


def ensure_joined(worker: Worker, wanted: Wanted, token: str | None, *, confirm: bool, check: bool) -> Outcome:
    """Make the host a worker of the wanted cluster."""
    if (worker.root / CONTROL_PLANE).is_file():
        raise WorkerError(
            f"This host runs a control plane (/{CONTROL_PLANE}); it cannot be a worker of {wanted.server}."
        )
    now = worker.membership()
    joined = now == Membership(wanted.server, wanted.authority)
    state = worker.node_state(wanted) if joined else NodeState()
    outcome = Outcome(joined, state, describe(now), f"worker of {wanted.server}", worker.leftovers())
    outcome.before += " (without its Node)" if state.registered is False else ""
    if now and not joined:
        if not confirm:
            raise WorkerError(foreign(now, wanted))
        outcome.before = f"{describe(now)} (another one)"
    if check:
        return outcome
    if not joined and not token:
        raise WorkerError(f"{wanted.node_name} has not joined {wanted.server} yet; give a bootstrap token.")
    if now and not joined:
        worker.reset()
    worker.remove_leftovers()
    if not joined and token:
        outcome.attempts = worker.join(wanted, token)
    if state.registered is False:
        worker.register_again(wanted)
    return outcome


def foreign(now: Membership, wanted: Wanted) -> str:
    """Why a host of another cluster is refused."""
    if now.server == wanted.server:
        other = f"an earlier cluster at {now.server} (its certificate authority is another one)"
    else:
        other = f"another cluster, {now.server}"
    return (
        f"{wanted.node_name} belongs to {other}, not to {wanted.server}; "
        "take it out there first, or set confirm to reset it and lose what runs on it."
    )


def ensure_absent(worker: Worker, *, confirm: bool, check: bool) -> Outcome:
    """Make the host a worker of no cluster."""
    now = worker.membership()
    outcome = Outcome(before=describe(now), after=describe(None), removed=worker.leftovers())
    if not outcome.changed:
        return outcome
    if not confirm:
        raise WorkerError(
            f"This host is a {describe(now)}; kubeadm reset stops every container on it, set confirm to allow that."
        )
    if not check:
        worker.reset()
        worker.remove_leftovers()
    return outcome


def wanted_from(module: AnsibleModule) -> Wanted:
    """The parameters, checked."""
    params = module.params
    authority = params["certificate_authority"].strip()
    if not authority.startswith("-----BEGIN CERTIFICATE-----"):
        raise WorkerError("certificate_authority is no certificate in PEM.")
    if params["token"] and not TOKEN.fullmatch(params["token"]):
        raise WorkerError("token is no bootstrap token: six and sixteen of a-z and 0-9, with a dot between.")
    return Wanted(
        server=params["server"].rstrip("/"),
        authority=authority,
        node_name=params["node_name"] or socket.gethostname().lower(),
        cri_socket=params["cri_socket"],
        ignore_preflight_errors=params["ignore_preflight_errors"],
        timeout_s=params["timeout_s"],
    )


def run(module: AnsibleModule, root: Path = Path("/")) -> NoReturn:
    """Do what the parameters say and leave through the module."""
    worker = Worker(module, root)
    options = {"confirm": module.params["confirm"], "check": module.check_mode}
    with worker.only_one(module.params["timeout_s"]):
        if module.params["state"] == "joined":
            outcome = ensure_joined(worker, wanted_from(module), module.params["token"], **options)
        else:
            outcome = ensure_absent(worker, **options)
    module.exit_json(
        changed=outcome.changed,
        joined=outcome.joined,
        registered=outcome.node.registered,
        ready=outcome.node.ready,
        node_name=module.params["node_name"] or socket.gethostname().lower(),
        removed=outcome.removed,
        attempts=outcome.attempts,
        diff={"before": f"{outcome.before}\n", "after": f"{outcome.after}\n"},
    )


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["joined", "absent"], "default": "joined"},
            "server": {"type": "str"},
            "certificate_authority": {"type": "str"},
            "token": {"type": "str", "no_log": True},
            "node_name": {"type": "str"},
            "cri_socket": {"type": "str", "default": "unix:///run/containerd/containerd.sock"},
            "ignore_preflight_errors": {"type": "list", "elements": "str", "default": []},
            "timeout_s": {"type": "int", "default": 120},
            "confirm": {"type": "bool", "default": False},
        },
        required_if=[("state", "joined", ("server", "certificate_authority"))],
        supports_check_mode=True,
    )
    try:
        run(module)
    except WorkerError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
