#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tenant_isolation_info
short_description: Asks every tenant's API with every tenant's credentials
version_added: "0.1.0"
author:
  - The tenantry.gpu maintainers (@tenantry)
description:
  - Takes a kubeconfig for each tenant and asks each tenant's API server for its nodes and namespaces, once with the
    tenant's own credentials and once with every other tenant's.
  - A tenant is isolated when its API answers its own credentials and refuses all others with 401 or 403.
  - The connection is verified with the API's own CA in every case, so that a refusal is the API's answer.
  - No credential is returned or logged.
extends_documentation_fragment:
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
options:
  kubeconfigs:
    description: For each tenant the path of its kubeconfig.
    type: dict
    required: true
requirements:
  - kubernetes >= 24.2.0
"""

EXAMPLES = r"""
- name: No tenant can read another's API
  tenantry.gpu.tenant_isolation_info:
    kubeconfigs:
      tenant-a: .state/lab/kubeconfigs/tenant-a.conf
      tenant-b: .state/lab/kubeconfigs/tenant-b.conf
  register: tenants
  failed_when: not tenants.isolated
"""

RETURN = r"""
isolated:
  description: Whether every API answered its own tenant alone.
  returned: success
  type: bool
  sample: true
violations:
  description: What is not as it should be, a sentence each.
  returned: success
  type: list
  elements: str
  sample: []
answers:
  description: What every API answered to every tenant's credentials.
  returned: success
  type: list
  elements: dict
  contains:
    api:
      description: The tenant whose API was asked.
      type: str
      sample: tenant-a
    server:
      description: Address of the API.
      type: str
      sample: https://172.30.211.128:6443
    credentials:
      description: The tenant whose credentials were used.
      type: str
      sample: tenant-b
    own:
      description: Whether they are the API's own tenant's.
      type: bool
      sample: false
    path:
      description: What was asked for.
      type: str
      sample: /api/v1/nodes
    status:
      description: HTTP status of the answer. 0 if there was none.
      type: int
      sample: 401
    message:
      description: What the API said in refusing it, or why there was no answer.
      type: str
      sample: Unauthorized
    names:
      description: Names of the objects that were shown.
      type: list
      elements: str
      sample: []
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import (
    ClusterError,
    Kubeconfig,
    ask,
    read_kubeconfig,
)

Object = dict[str, Any]

PATHS = ("/api/v1/nodes", "/api/v1/namespaces")
REFUSED = (401, 403)
THREADS = 8


def question(tenants: Mapping[str, Kubeconfig], api: str, credentials: str, path: str) -> Object:
    """Ask one tenant's API with one tenant's credentials."""
    asked = {
        "api": api,
        "server": tenants[api].server,
        "credentials": credentials,
        "own": api == credentials,
        "path": path,
    }
    try:
        status, answer = ask(tenants[api], tenants[credentials], path)
    except ClusterError as error:
        return {**asked, "status": 0, "message": str(error), "names": []}
    names = [item["metadata"]["name"] for item in answer.get("items") or []]
    return {**asked, "status": status, "message": "" if status < 400 else str(answer.get("message")), "names": names}


def violation(answer: Object) -> str:
    """What is wrong with an answer; empty when it is as it should be."""
    who = f"{answer['api']}'s API answered {answer['path']} with {answer['status']}"
    if answer["status"] == 0:
        return f"{answer['api']}'s API did not answer: {answer['message']}"
    if answer["own"] and answer["status"] != 200:
        return f"{who} to its own tenant: {answer['message']}"
    if not answer["own"] and answer["status"] not in REFUSED:
        return f"{who} to the credentials of {answer['credentials']}"
    return ""


def ask_all(tenants: Mapping[str, Kubeconfig]) -> list[Object]:
    questions = [(api, credentials, path) for api in tenants for credentials in tenants for path in PATHS]
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(lambda asked: question(tenants, *asked), questions))


def main() -> None:
    module = AnsibleK8SModule(
        module_class=AnsibleModule,
        argument_spec={"kubeconfigs": {"type": "dict", "required": True}},
        supports_check_mode=True,
    )
    try:
        tenants = {name: read_kubeconfig(str(path)) for name, path in module.params["kubeconfigs"].items()}
    except ClusterError as error:
        module.fail_json(msg=str(error))
    answers = ask_all(tenants)
    violations = list(filter(None, map(violation, answers)))
    module.exit_json(changed=False, isolated=not violations, violations=violations, answers=answers)


if __name__ == "__main__":
    main()
