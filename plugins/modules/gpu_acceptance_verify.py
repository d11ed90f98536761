#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_acceptance_verify
short_description: Runs CUDA jobs on a real card and judges what HAMi's shares are worth there
version_added: "0.1.0"
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - Runs jobs on one idle card of a cluster with HAMi, one stage after the other, and gives evidence for
    M(tenantry.gpu.verification_report). Two jobs run on the card at the same time; the compute that a share gets is
    measured in throughput, with percentiles over repeats after a warm-up; allocations above a share are refused by
    CUDA, to the job itself, a child process of it and one that is started in its container; pods that ask for no card
    see none.
  - No image with CUDA is needed. The jobs are one script, which loads the driver's library that the container runtime
    puts into the container.
  - The pods run as nobody, without capabilities and service account token, with a read-only root file system and the
    runtime's seccomp profile, in a namespace that enforces Kubernetes' restricted standard.
  - A check that fails does not fail the task; RV(passed) says whether there is one.
  - Everything that it created is deleted again, also after a failure, a timeout or an interruption.
notes:
  - The card belongs to the run for some minutes. Whatever else asks for it meanwhile waits, or spoils the figures.
  - C(docs/reference/rights/gpu_acceptance_verify.yml) is the smallest ClusterRole that it works with.
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - tenantry.gpu.attributes
attributes:
  check_mode:
    support: partial
    details:
      - In check mode the options are checked and RV(stages) says what would be run; nothing is created and judged.
  diff_mode:
    support: none
    details:
      - The cluster is left as it was found.
  idempotent:
    support: full
    details:
      - The cluster is left as it was found.
options:
  card:
    description: The card on which everything is tried. It must be idle.
    type: dict
    required: true
    suboptions:
      node:
        description: Name of its node.
        type: str
        required: true
      uuid:
        description: Its UUID, as HAMi registers it.
        type: str
        required: true
      memory_mib:
        description: Its whole memory as HAMi registers it, in MiB.
        type: int
        required: true
  tenant:
    description: Whom the evidence is about.
    type: str
    default: ""
  image:
    description:
      - Image of the pods, pinned as C(name@sha256:...). It needs C(python3), 3.9 or newer, and glibc; HAMi's library
        does not work with musl.
    type: str
    required: true
  other_images:
    description: Images with other versions of glibc, pinned as well, whose share of memory is tried too.
    type: list
    elements: str
    default: []
  script:
    description: Text of the job's script, C(probe.py) of the role gpu_acceptance.
    type: str
    required: true
  share_cores:
    description: Compute of the share that is measured, in percent of the card.
    type: int
    default: 30
  cores_tolerance:
    description:
      - How many points of percent a share's throughput may differ from what it asked for. HAMi holds a share back by
        what it sees of the card's load during the last second, so that it is no exact figure.
    type: float
    default: 10
  overhead_tolerance:
    description: How many percent longer the same work may take under HAMi's control than without, at the median.
    type: float
    default: 5
  native:
    description:
      - Whether to run a job without HAMi's control, with C(CUDA_DISABLE_CONTROL=true), to compare with.
        Where an admission policy denies it, the comparison is skipped.
    type: bool
    default: true
  repeats:
    description: How often the same work is repeated, from 20 to 300. One takes about 0.1 s on the whole card.
    type: int
    default: 100
  warm_up_s:
    description: For how many seconds a job works before it is measured.
    type: float
    default: 5
  runtime_class:
    description:
      - RuntimeClass with which NVIDIA's runtime can be had where it is not the default. A pod that asks for no card
        and names it must see none either.
    type: str
    default: ""
  scheduler_name:
    description: Name of HAMi's scheduler in pods.
    type: str
    default: hami-scheduler
  timeout_s:
    description: Time for all jobs together, in seconds. What has not ended by then counts as failed.
    type: int
    default: 900
seealso:
  - module: tenantry.gpu.gpu_scheduling_verify
  - module: tenantry.gpu.verification_report
"""

EXAMPLES = r"""
- name: A card is tried
  tenantry.gpu.gpu_acceptance_verify:
    kubeconfig: .state/production/kubeconfigs/tenant-a.conf
    tenant: tenant-a
    card:
      node: a-worker-0
      uuid: GPU-00010203-0405-0607-0809-0a0b0c0d0e0f
      memory_mib: 16384
    image: registry.example.com/python@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    script: "{{ lookup('ansible.builtin.file', 'probe.py') }}"
    repeats: 20
    warm_up_s: 2
  register: accepted

- name: The report is written
  tenantry.gpu.verification_report:
    path: .state/production/acceptance
    components: upstream
    evidence: "{{ accepted.evidence }}"
"""

RETURN = r"""
passed:
  description: Whether no check failed. Absent in check mode.
  returned: success, when jobs were run
  type: bool
  sample: true
evidence:
  description: Records for M(tenantry.gpu.verification_report), one a check.
  returned: success, when jobs were run
  type: list
  elements: dict
  sample:
    - id: cuda-memory
      subject: tenant-a
      claim: An allocation above the share fails with a CUDA error, and the process lives on.
      expected: CUDA_ERROR_OUT_OF_MEMORY (2) at 2,048 MiB, exit status 2
      observed: 2,032 of 2,048 MiB granted, then cuMemAlloc_v2 answered CUDA_ERROR_OUT_OF_MEMORY (2)
      verdict: passed
      reason: ""
      proof: {}
stages:
  description: Names of the jobs that are on the card at the same time, stage by stage.
  returned: success
  type: list
  elements: list
  sample: [[native], [whole], [share], [half-0, half-1], [memory, children, exec, bare, bare-all, exhaust]]
namespace:
  description: The namespace in which the pods were; it is gone, or about to be.
  returned: when pods were created
  type: str
  sample: gpu-verify-1f3a9c02
cleaned_up:
  description: Whether every pod is gone and the namespace is deleted.
  returned: when pods were created
  type: bool
  sample: true
"""

import secrets
import signal
import time
from collections.abc import Sequence
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._acceptance import (
    PROBE,
    AcceptanceError,
    Judge,
    Outcome,
    Plan,
    Trial,
    TrialCard,
    case_of,
    check_plan,
    in_vain,
    outcome_of,
    pod_of_trial,
    same_work,
    stages_of,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import (
    Cluster,
    ClusterError,
    Follower,
    connect,
    new_module,
)
from ansible_collections.tenantry.gpu.plugins.module_utils._hami import SCHEDULER_NAME
from ansible_collections.tenantry.gpu.plugins.module_utils._scheduling import Seen, Setting
from ansible_collections.tenantry.gpu.plugins.module_utils._trial import (
    SIGNALS,
    InterruptedRunError,
    TrialNamespace,
    denial_of,
    interrupt,
    uninterrupted,
)

POLL_S = 0.25
# For how long a pod that no node takes, or whose container does not start, may change its mind.
PATIENCE_S = 60
GONE_S = 60
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}

OPTIONS: dict[str, Any] = {
    "card": {
        "type": "dict",
        "required": True,
        "options": {
            "node": {"type": "str", "required": True},
            "uuid": {"type": "str", "required": True},
            "memory_mib": {"type": "int", "required": True},
        },
    },
    "tenant": {"type": "str", "default": ""},
    "image": {"type": "str", "required": True},
    "other_images": {"type": "list", "elements": "str", "default": []},
    "script": {"type": "str", "required": True},
    "share_cores": {"type": "int", "default": 30},
    "cores_tolerance": {"type": "float", "default": 10},
    "overhead_tolerance": {"type": "float", "default": 5},
    "native": {"type": "bool", "default": True},
    "repeats": {"type": "int", "default": 100},
    "warm_up_s": {"type": "float", "default": 5},
    "runtime_class": {"type": "str", "default": ""},
    "scheduler_name": {"type": "str", "default": SCHEDULER_NAME},
    "timeout_s": {"type": "int", "default": 900},
}


class Run:
    """All stages in a namespace of their own, from its creation to its deletion."""

    def __init__(self, cluster: Cluster, plan: Plan, setting: Setting, hami: str) -> None:
        self._cluster, self._plan, self._setting, self._hami = cluster, plan, setting, hami
        self._trial = TrialNamespace(cluster, setting.run, setting.namespace)
        self._pods: dict[str, Seen] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.cleaned_up = False

    def run(self, script: str, timeout_s: float) -> None:
        """Run every stage until its jobs have ended or ``timeout_s`` seconds are over; clean up in any case."""
        deadline = time.monotonic() + timeout_s
        try:
            self._trial.create(timeout_s, RESTRICTED)
            probe = {"metadata": {"name": PROBE}, "data": {f"{PROBE}.py": script}}
            self._cluster.create(f"{self._trial.path}/configmaps", probe)
            follower = Follower(self._cluster, f"{self._trial.path}/pods")
            try:
                for stage in stages_of(self._plan):
                    self._run_stage(stage, follower, deadline)
            finally:
                follower.stop()
        finally:
            with uninterrupted():
                self.cleaned_up = self._trial.clean_up()

    def _run_stage(self, stage: Sequence[Trial], follower: Follower, deadline: float) -> None:
        vain = in_vain(stage, self.outcomes)
        if vain:
            self.outcomes.update({trial.name: Outcome(trial.name, problem=vain) for trial in stage})
            return
        for trial in stage:
            self._create(same_work(trial, self.outcomes))
        names = [trial.name for trial in stage]
        started = time.monotonic()
        while time.monotonic() < deadline and not all(self._settled(self._pods[name], started) for name in names):
            self._take_news(follower)
        for name in names:
            self._pods[name].decided = True
            self.outcomes[name] = self._outcome(name)
            self._cluster.delete(f"{self._trial.path}/pods/{name}")
        until = min(deadline, time.monotonic() + GONE_S)
        while time.monotonic() < until and any(self._pods[name].pod and not self._pods[name].gone for name in names):
            self._take_news(follower)

    def _create(self, trial: Trial) -> None:
        case = case_of(trial, self._plan.card)
        scheduler = self._hami if trial.memory_mib else "default-scheduler"
        seen = self._pods[trial.name] = Seen(trial.name, scheduler, case.containers)
        try:
            seen.pod = self._trial.submit(pod_of_trial(trial, self._plan.card, self._setting))
        except ClusterError as error:
            seen.denied = denial_of(error)

    @staticmethod
    def _settled(seen: Seen, started: float) -> bool:
        """Whether nothing more is to be awaited of a pod."""
        if seen.denied or seen.lost or seen.phase in ("Succeeded", "Failed"):
            return True
        stuck = seen.unschedulable or seen.cannot_start or not seen.node
        return bool(stuck) and time.monotonic() - started > PATIENCE_S

    def _take_news(self, follower: Follower) -> None:
        news = follower.next(POLL_S)
        while news:
            name, pod = news
            seen = self._pods.get(name)
            if seen:
                seen.gone = pod is None
                if pod and not seen.decided:
                    seen.pod = pod
                if seen.gone and not seen.decided:
                    seen.lost = "it was deleted by somebody else"
            news = follower.next(0)

    def _outcome(self, name: str) -> Outcome:
        seen = self._pods[name]
        if seen.phase not in ("Succeeded", "Failed"):
            events = self._cluster.list(f"{self._trial.path}/events")
            seen.events = [event for event in events if event["involvedObject"].get("name") == name]
        return outcome_of(name, seen)


def plan_of(params: dict[str, Any]) -> Plan:
    """The plan that the module's options describe. Raises AcceptanceError."""
    names = ("share_cores", "repeats", "warm_up_s", "native", "runtime_class", "cores_tolerance", "overhead_tolerance")
    plan = Plan(
        card=TrialCard(**params["card"]),
        image=params["image"],
        other_images=tuple(params["other_images"]),
        **{name: params[name] for name in names},
    )
    check_plan(plan)
    return plan


def main() -> None:
    module = new_module(OPTIONS)
    params = module.params
    try:
        plan = plan_of(params)
    except AcceptanceError as error:
        module.fail_json(msg=str(error))
    stages = [[trial.name for trial in stage] for stage in stages_of(plan)]
    if module.check_mode:
        module.exit_json(changed=False, stages=stages)
    for number in SIGNALS:
        signal.signal(number, interrupt)
    name = secrets.token_hex(4)
    setting = Setting(name, f"gpu-verify-{name}", plan.image)
    run: Run | None = None
    failure = ""
    try:
        run = Run(connect(module), plan, setting, params["scheduler_name"])
        run.run(params["script"], params["timeout_s"])
    except (ClusterError, InterruptedRunError) as error:
        failure = str(error)
    more = {"namespace": setting.namespace, "cleaned_up": run.cleaned_up} if run else {}
    if run and not run.cleaned_up:
        module.warn(f"Namespace {setting.namespace} may be left; delete it, or leave it to the next run after an hour.")
    if failure or run is None:
        module.fail_json(msg=failure, **more)
    evidence = Judge(plan, params["tenant"], run.outcomes).evidence()
    passed = all(record.verdict != "failed" for record in evidence)
    records = [record.to_dict() for record in evidence]
    module.exit_json(changed=False, passed=passed, evidence=records, stages=stages, **more)


if __name__ == "__main__":
    main()
