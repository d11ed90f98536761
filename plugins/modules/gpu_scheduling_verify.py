#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_scheduling_verify
short_description: Submits GPU pods and judges where HAMi put them, or why it refused them
version_added: "0.1.0"
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - Creates the pods of one or more cases in a namespace of its own, watches them all with one watch,
    and compares each with what is expected of it.
  - Returns the causal chain of every pod (scheduler, annotations, events, lock, the limits that its container sees),
    and for every case a line that says where the chain broke.
  - Everything that it created is deleted again, also after a failure, a timeout or an interruption.
    What a killed run left is deleted by the next one on the same cluster.
notes:
  - C(docs/reference/rights/gpu_scheduling_verify.yml) is the smallest ClusterRole that it works with.
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - tenantry.gpu.attributes
  - tenantry.gpu.cases
attributes:
  check_mode:
    support: partial
    details:
      - In check mode the cases are read and checked, nothing is created and nothing is judged.
  diff_mode:
    support: none
    details:
      - The cluster is left as it was found.
  idempotent:
    support: full
    details:
      - The cluster is left as it was found.
options:
  quota:
    description: A quota of the run's namespace, for all cases together.
    type: dict
    suboptions:
      memory_mib:
        description: Memory of all cards together, in MiB (V(limits.nvidia.com/gpumem)).
        type: int
      cores:
        description: Compute of all cards together, in percent of one card (V(limits.nvidia.com/gpucores)).
        type: int
  image:
    description:
      - Image of the containers. It needs V(sh), V(env), V(grep) and V(sleep), unless O(command) is given.
    type: str
    required: true
  command:
    description:
      - Command of the containers, instead of one that tells the limits that it sees.
      - That one sleeps until the case is decided where other pods are tried beside it, and else ends by itself.
    type: list
    elements: str
  read_limits:
    description:
      - Whether to read from the containers' logs the limits that they see. Needs the default O(command).
    type: bool
    default: true
  scheduler_name:
    description: Name of HAMi's scheduler in pods.
    type: str
    default: hami-scheduler
  timeout_s:
    description: Time for all cases together, in seconds. A case that is not decided by then is judged as it stands.
    type: int
    default: 120
  on_mismatch:
    description: Whether a case that comes out otherwise fails the task, or is only reported.
    type: str
    choices: [fail, report]
    default: fail
seealso:
  - module: tenantry.gpu.hami_device_info
"""

EXAMPLES = r"""
- name: Three pods share one card, and a fourth finds no compute left
  tenantry.gpu.gpu_scheduling_verify:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    image: tenantry/gpu-simulator:0.1.0
    cases:
      - name: share-three
        replicas: 3
        memory_mib: 20000
        cores: 30
        expect: {outcome: placed, spread: one_card}
      - name: core-exhausted
        memory_mib: 1000
        cores: 30
        while_running: [share-three]
        expect: {outcome: refused, reason: CardInsufficientCore}
      - name: freed
        cores: 100
        after: [share-three]
        expect: {outcome: placed}

- name: A pod that asks for more memory than any card has is refused
  tenantry.gpu.gpu_scheduling_verify:
    kubeconfig: .state/lab/kubeconfigs/tenant-b.conf
    image: tenantry/gpu-simulator:0.1.0
    cases:
      - name: too-big
        memory_mib: 100000
        expect: {outcome: refused, reason: CardInsufficientMemory}

- name: A card takes a small share, and nobody gets the whole of it meanwhile
  tenantry.gpu.gpu_scheduling_verify:
    kubeconfig: .state/lab/kubeconfigs/tenant-a.conf
    image: tenantry/gpu-simulator:0.1.0
    cases:
      - name: small
        memory_mib: 1000
        cores: 10
        use_uuids: [GPU-6d0c1c9b-6a53-5c6e-9d7f-0d7b1f0f6b0e]
        expect: {outcome: placed, node: a-worker-0}
      - name: whole
        cores: 100
        memory_mib: 1000
        while_running: [small]
        expect: {outcome: refused, reason: CardInsufficientCore, uuid: GPU-6d0c1c9b-6a53-5c6e-9d7f-0d7b1f0f6b0e}
"""

RETURN = r"""
passed:
  description: Whether every case came out as expected. Absent in check mode.
  returned: success, or failure once the cases were run
  type: bool
  sample: true
namespace:
  description: The namespace in which the pods were; it is gone, or about to be.
  returned: when pods were created
  type: str
  sample: gpu-verify-1f3a9c02
cases:
  description: The cases in their order.
  returned: when pods were created
  type: list
  elements: dict
  contains:
    name:
      description: Name of the case.
      type: str
      sample: share-three
    passed:
      description: Whether it came out as expected.
      type: bool
      sample: true
    verdict:
      description: One line that says what was expected, what was seen and where the chain broke.
      type: str
      sample: "core-exhausted: 1 pod refused with CardInsufficientCore, as expected"
    expected:
      description: What was expected, in words.
      type: str
      sample: 1 pod refused with CardInsufficientCore
    observed:
      description: What was seen, in words.
      type: str
      sample: "refused: CardInsufficientCore"
    broke_at:
      description:
        - Where the chain broke of a case that came out otherwise, one of V(webhook), V(scheduler), V(registration),
          V(filter), V(lock), V(bind), V(allocate), V(start), V(limits) and V(expectation). Empty if it did not.
      type: str
      sample: ""
    duration_s:
      description: From the creation of its pods to the decision, in seconds.
      type: float
      sample: 2.4
    pods:
      description: The causal chain of every pod.
      type: list
      elements: dict
      contains:
        name:
          description: Name of the pod.
          type: str
          sample: share-three-0
        scheduler:
          description: The scheduler that the webhook (or nobody) put into its spec.
          type: str
          sample: hami-scheduler
        node:
          description: The node that it was bound to.
          type: str
          sample: a-worker-0
        phase:
          description: Its phase when it was last seen.
          type: str
          sample: Running
        bind_phase:
          description: HAMi's phase of the allocation.
          type: str
          sample: success
        annotations:
          description: HAMi's annotations.
          type: dict
          sample: {"hami.io/vgpu-devices-to-allocate": ";", "hami.io/bind-phase": success}
        shares:
          description: What it got, of which card.
          type: list
          elements: dict
          sample: [{uuid: GPU-6d0c, type: NVIDIA, memory_mib: 20000, cores: 30}]
        limits:
          description: For each container, the limits that its own process found in its environment.
          type: list
          elements: dict
          sample: [{CUDA_DEVICE_MEMORY_LIMIT_0: 20000m, CUDA_DEVICE_SM_LIMIT: "30"}]
        lock_released:
          description: Whether the node's lock was no longer this pod's when it ran. Absent unless it ran.
          type: bool
          sample: true
        denied:
          description: The message with which it was not admitted.
          type: str
          sample: ""
        reasons:
          description: HAMi's reasons for refusing it.
          type: list
          elements: str
          sample: []
        reasons_by_node:
          description: HAMi's reasons for each node, as far as its events name nodes.
          type: dict
          sample: {}
        events:
          description: Its events.
          type: list
          elements: str
          sample: ["FilteringSucceed: find fit node(a-worker-0), 0 nodes not fit"]
        broke_at:
          description: Where its way to a card ended. Empty if it runs.
          type: str
          sample: ""
cleaned_up:
  description: Whether every pod is gone and the namespace is deleted.
  returned: when pods were created
  type: bool
  sample: true
"""

import secrets
import signal
import time
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import (
    Cluster,
    ClusterError,
    Follower,
    connect,
    new_module,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_LOCK,
    SCHEDULER_NAME,
    HamiFormatError,
    parse_lock,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import (
    CASE_OPTIONS,
    SERVICE_ACCOUNT,
    Case,
    CaseError,
    Limit,
    Seen,
    Setting,
    case_from_options,
    check_order,
    judge,
    limits_from_log,
    pod_of,
    refused_as_expected,
    settled,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._trial import (
    SIGNALS,
    InterruptedRunError,
    TrialNamespace,
    denial_of,
    interrupt,
    uninterrupted,
)

POLL_S = 0.25
# A case that was refused otherwise than expected may still change its mind, but not for long.
OTHER_REASON_S = 8
COMPLETION_S = 5
# HAMi reads a quota a moment after Kubernetes does, which says so unless nobody runs its controllers.
QUOTA_S = 2

OPTIONS: dict[str, Any] = {
    "cases": {"type": "list", "elements": "dict", "required": True, "options": CASE_OPTIONS},
    "quota": {"type": "dict", "options": {"memory_mib": {"type": "int"}, "cores": {"type": "int"}}},
    "image": {"type": "str", "required": True},
    "command": {"type": "list", "elements": "str"},
    "read_limits": {"type": "bool", "default": True},
    "scheduler_name": {"type": "str", "default": SCHEDULER_NAME},
    "timeout_s": {"type": "int", "default": 120},
    "on_mismatch": {"type": "str", "choices": ["fail", "report"], "default": "fail"},
}


class Progress:
    """One case on its way: waiting, created, decided, deleted, gone.

    holds: its pods keep their shares until they are deleted, because others are tried beside them.
    """

    def __init__(self, case: Case, holds: bool, hami: str) -> None:
        self.case = case
        self.holds = holds
        self.pods = [Seen(name, hami, case.ordered) for name in case.pod_names()]
        self.created_at: float | None = None
        self.decided_at: float | None = None
        self.ending_since: float | None = None
        self.deleted = False

    @property
    def gone(self) -> bool:
        return self.deleted and all(seen.gone or seen.pod is None for seen in self.pods)

    @property
    def holds_shares(self) -> bool:
        return not self.deleted and all(seen.allocated for seen in self.pods)


class Run:
    """All cases in a namespace of their own, from its creation to its deletion."""

    def __init__(
        self, cluster: Cluster, cases: list[Case], setting: Setting, read_limits: bool, limit: Limit, hami: str
    ) -> None:
        self._cluster, self._setting, self._limit = cluster, setting, limit
        self._read_limits = read_limits and not setting.command
        self.namespace = setting.namespace
        self._trial = TrialNamespace(cluster, setting.run, setting.namespace)
        beside = {name for case in cases for name in case.while_running}
        self.progress = {case.name: Progress(case, case.replicas > 1 or case.name in beside, hami) for case in cases}
        self._by_pod = {seen.name: (each, seen) for each in self.progress.values() for seen in each.pods}
        self._path = self._trial.path
        self._follower: Follower | None = None
        self.cleaned_up = False

    def run(self, timeout_s: float) -> None:
        """Run the cases until all are decided or ``timeout_s`` seconds are over; clean up in any case."""
        deadline = time.monotonic() + timeout_s
        try:
            self._trial.create(timeout_s)
            if self._limit.hard():
                self._create_quota()
            self._follower = follower = Follower(self._cluster, f"{self._path}/pods")
            while time.monotonic() < deadline and not all(each.decided_at for each in self.progress.values()):
                self._advance()
                self._take_news(follower, POLL_S)
            for progress in self.progress.values():
                self._decide(progress)
        finally:
            with uninterrupted():
                self.cleaned_up = self._trial.clean_up()
                if self._follower:
                    self._follower.stop()

    def _create_quota(self) -> None:
        path = f"{self._path}/resourcequotas"
        self._cluster.create(path, {"metadata": {"name": SERVICE_ACCOUNT}, "spec": {"hard": self._limit.hard()}})
        deadline = time.monotonic() + QUOTA_S
        while time.monotonic() < deadline:
            quota = self._cluster.get(f"{path}/{SERVICE_ACCOUNT}")
            if (quota.get("status") or {}).get("hard"):
                return
            time.sleep(POLL_S)

    def _advance(self) -> None:
        """Create what may begin, decide what has ended, delete what nobody needs any more."""
        for progress in self.progress.values():
            case = progress.case
            if progress.created_at is None:
                if self._hopeless(case):
                    progress.created_at = progress.decided_at = time.monotonic()
                    progress.deleted = True
                elif all(self.progress[name].holds_shares for name in case.while_running) and all(
                    self.progress[name].gone for name in case.after
                ):
                    self._create(progress)
            elif progress.decided_at is None:
                self._look_closer(progress)
                if self._ended(progress):
                    self._decide(progress)
            if progress.decided_at and not progress.deleted and not self._needed(case):
                self._delete(progress)

    def _hopeless(self, case: Case) -> bool:
        """Whether a case beside which this one is to be tried was decided and has no shares to keep."""
        others = (self.progress[name] for name in case.while_running)
        return any(other.decided_at and not other.holds_shares for other in others)

    def _needed(self, case: Case) -> bool:
        return any(case.name in other.case.while_running and not other.decided_at for other in self.progress.values())

    def _create(self, progress: Progress) -> None:
        progress.created_at = time.monotonic()
        for seen in progress.pods:
            pod = pod_of(progress.case, seen.name, self._setting, progress.holds)
            try:
                seen.pod = self._trial.submit(pod)
            except ClusterError as error:
                seen.denied = denial_of(error)

    def _take_news(self, follower: Follower, timeout_s: float) -> None:
        news = follower.next(timeout_s)
        while news:
            name, pod = news
            progress, seen = self._by_pod.get(name, (None, None))
            if progress and seen:
                seen.gone = pod is None
                # What was decided stays as it was then; what follows is its deletion.
                if pod and not seen.decided:
                    seen.pod = pod
                if seen.gone and not progress.deleted:
                    seen.lost = seen.lost or "it was deleted by somebody else"
            news = follower.next(0)

    def _look_closer(self, progress: Progress) -> None:
        """Fetch what the watch does not tell: events of refused pods, limits and lock of running ones."""
        for seen in progress.pods:
            if seen.unschedulable and not refused_as_expected(progress.case, seen):
                self._read_events([seen])
            if seen.running and self._read_limits and not seen.limits:
                seen.limits = self._limits(progress.case, seen)
            if seen.running and not seen.lock_released:
                seen.lock_released = self._lock_released(seen)

    def _ended(self, progress: Progress) -> bool:
        case, pods = progress.case, progress.pods
        if all(settled(case, seen) for seen in pods):
            # Limits and lock follow a moment after the phase turns to success.
            complete = all(self._complete(seen) for seen in pods if seen.running)
            return complete or self._patience_is_over(progress, COMPLETION_S)
        refusable = case.expect.outcome in ("refused", "over_quota")
        otherwise = all(settled(case, seen) or seen.cannot_start or (refusable and seen.unschedulable) for seen in pods)
        return otherwise and self._patience_is_over(progress, OTHER_REASON_S)

    def _complete(self, seen: Seen) -> bool:
        return bool(seen.lock_released and (seen.limits or not self._read_limits))

    @staticmethod
    def _patience_is_over(progress: Progress, patience_s: float) -> bool:
        progress.ending_since = progress.ending_since or time.monotonic()
        return time.monotonic() - progress.ending_since > patience_s

    def _decide(self, progress: Progress) -> None:
        if progress.decided_at is None and progress.created_at is not None:
            progress.decided_at = time.monotonic()
        if not progress.deleted:
            self._read_events(progress.pods)
        for seen in progress.pods:
            seen.decided = True

    def _read_events(self, pods: list[Seen]) -> None:
        by_pod: dict[str, list[dict[str, Any]]] = {}
        for event in self._cluster.list(f"{self._path}/events"):
            by_pod.setdefault(event["involvedObject"].get("name", ""), []).append(event)
        for seen in pods:
            found = by_pod.get(seen.name, [])
            seen.events = sorted(found, key=lambda event: str(event.get("eventTime") or event.get("firstTimestamp")))

    def _limits(self, case: Case, seen: Seen) -> list[dict[str, str]]:
        """The limits of each container, init containers first; empty while one has not told them yet."""
        order = sorted(range(len(case.containers)), key=lambda position: not case.containers[position].init)
        found = []
        for position in order:
            try:
                log = self._cluster.text(f"{self._path}/pods/{seen.name}/log", container=f"c{position}")
            except ClusterError as error:
                if error.status in (401, 403):
                    raise
                return []
            limits = limits_from_log(log)
            if limits is None:
                return []
            found.append(limits)
        return found

    def _lock_released(self, seen: Seen) -> bool | None:
        try:
            node = self._cluster.get(f"/api/v1/nodes/{seen.node}")
        except ClusterError as error:
            if error.status != 404:
                raise
            seen.lost = f"node {seen.node} is gone"
            return None
        text = (node["metadata"].get("annotations") or {}).get(NODE_LOCK)
        try:
            lock = parse_lock(text) if text else None
        except HamiFormatError:
            return False
        return lock is None or (lock.namespace, lock.pod) != (self.namespace, seen.name)

    def _delete(self, progress: Progress) -> None:
        progress.deleted = True
        for seen in progress.pods:
            if seen.pod:
                self._cluster.delete(f"{self._path}/pods/{seen.name}")

    def results(self) -> list[dict[str, Any]]:
        return [self._result(progress) for progress in self.progress.values()]

    def _result(self, progress: Progress) -> dict[str, Any]:
        case = progress.case
        judgement = judge(case, progress.pods)
        expected = case.expect.sentence(case.replicas)
        waited_for = [*case.while_running, *case.after]
        observed = judgement.observed
        if progress.pods[0].pod is None and not progress.pods[0].denied:
            observed = f"not tried, since {' and '.join(waited_for)} did not come out as expected"
        verdict = f"{case.name}: {expected}, as expected"
        if not judgement.passed:
            verdict = f"{case.name}: expected {expected}; {observed}"
        started, ended = progress.created_at, progress.decided_at
        return {
            "name": case.name,
            "passed": judgement.passed,
            "verdict": verdict,
            "expected": expected,
            "observed": observed,
            "broke_at": "" if judgement.passed else judgement.broke_at,
            "duration_s": round(ended - started, 2) if started and ended else 0.0,
            "pods": [seen.result() for seen in progress.pods],
        }


def main() -> None:
    module = new_module(OPTIONS)
    params = module.params
    limit = Limit(**(params["quota"] or {}))
    try:
        cases = [case_from_options(options) for options in params["cases"]]
        check_order(cases, limit)
    except CaseError as error:
        module.fail_json(msg=str(error))
    if module.check_mode:
        module.exit_json(changed=False)
    for number in SIGNALS:
        signal.signal(number, interrupt)
    name = secrets.token_hex(4)
    setting = Setting(name, f"gpu-verify-{name}", params["image"], tuple(params["command"] or ()))
    run: Run | None = None
    failure = ""
    try:
        run = Run(connect(module), cases, setting, params["read_limits"], limit, params["scheduler_name"])
        run.run(params["timeout_s"])
    except (ClusterError, InterruptedRunError) as error:
        failure = str(error)
    results = run.results() if run else []
    more = {"namespace": run.namespace, "cases": results, "cleaned_up": run.cleaned_up} if run else {}
    if run and not run.cleaned_up:
        module.warn(f"Namespace {run.namespace} may be left; delete it, or leave it to the next run after an hour.")
    if failure:
        module.fail_json(msg=failure, passed=False, **more)
    passed = all(result["passed"] for result in results)
    if not passed and params["on_mismatch"] == "fail":
        module.fail_json(
            msg="; ".join(result["verdict"] for result in results if not result["passed"]), passed=False, **more
        )
    module.exit_json(changed=False, passed=passed, **more)


if __name__ == "__main__":
    main()
