#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: artifacts_info
short_description: Says what a mirror lacks
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Asks the mirror for every manifest and blob of every image in C(images.json), compares every file of the folder with
    C(SHA256SUMS), and looks whether both have all that is wanted. Contacts nothing but the mirror.
  - Without O(images), O(charts) and O(files) it judges what was mirrored, whatever it was for.
  - Findings do not fail the task.
extends_documentation_fragment:
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
  - tenantry.gpu.artifacts
"""

EXAMPLES = r"""
- name: The mirror is looked at
  tenantry.gpu.artifacts_info:
    folder: /srv/tenantry
    registry: mirror.example.com:5000
  register: mirror

- name: The mirror has everything
  ansible.builtin.assert:
    that: mirror.findings | length == 0
    fail_msg: "{{ mirror.findings | join('\n') }}"
"""

RETURN = r"""
findings:
  description: A sentence on each thing that is missing or not what was mirrored.
  returned: success
  type: list
  elements: str
  sample:
    - "registry.k8s.io/pause:3.10.2: the mirror 192.0.2.10:5000 does not have it."
images:
  description: The images that were looked at.
  returned: success
  type: list
  elements: str
  sample: [registry.k8s.io/pause:3.10.2]
checked_files:
  description: How many files were compared.
  returned: success
  type: int
  sample: 40
"""

import concurrent.futures
import subprocess
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._artifact_folder import LOCK, Folder, chart_images
from ..module_utils._artifact_options import OPTIONS
from ..module_utils._checksums import ArtifactsError, fault
from ..module_utils._mirror import collisions, parse_reference
from ..module_utils._registry import Registry, RegistryError, losses


def wanted_images(parameters: Mapping[str, Any], folder: Folder) -> tuple[set[str], list[str]]:
    """The images that are wanted and those that the charts at hand name, and sentences on what cannot be read."""
    named, findings = list(parameters["images"]), []
    for chart in parameters["charts"]:
        archive = folder.chart(chart)
        if archive.is_file():
            try:
                named += chart_images(parameters["helm"], archive, chart)
            except (ArtifactsError, OSError, subprocess.TimeoutExpired) as error:
                findings.append(str(error))
    references = set()
    for name in named:
        try:
            references.add(parse_reference(name))
        except ArtifactsError as error:
            findings.append(str(error))
    return {str(reference) for reference in references}, findings + collisions(references)


def judge_images(registry: Registry, lock: Mapping[str, str], concurrency: int) -> list[str]:
    """Sentences on what the mirror lacks of the images that were mirrored."""

    def judge(text: str) -> list[str]:
        reference = parse_reference(text)
        lost = losses(registry, reference.repository, reference.mark, lock[text])
        return [f"{text}: the mirror {registry.host} {loss}." for loss in lost]

    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        return [finding for findings in pool.map(judge, sorted(lock)) for finding in findings]


def judge_files(folder: Folder, sums: Mapping[str, str], concurrency: int) -> list[str]:
    """Sentences on the files that are not what was mirrored."""

    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        faults = pool.map(lambda name: fault(folder.path, name, sums), sorted(sums))
        return [f"{found}." for found in faults if found]


def look(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Every finding. Raises ArtifactsError for a lock that is damaged, RegistryError for a mirror that is away."""
    folder = Folder(parameters["folder"])
    lock, sums = folder.lock(), folder.sums()
    images, findings = wanted_images(parameters, folder)
    paths = [file["path"] for file in parameters["files"]]
    paths += [folder.chart(chart).relative_to(folder.path).as_posix() for chart in parameters["charts"]]
    findings += [f"{path}: was never mirrored to {folder.path}." for path in sorted(set(paths) - set(sums))]
    if parameters["registry"]:
        registry = Registry(parameters["registry"], parameters["auth_file"])
        findings += [f"{image}: was never mirrored, {LOCK} does not name it." for image in sorted(images - set(lock))]
        findings += judge_images(registry, lock, parameters["concurrency"])
    findings += judge_files(folder, sums, parameters["concurrency"])
    return {"findings": findings, "images": sorted(lock), "checked_files": len(sums)}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    try:
        module.exit_json(changed=False, **look(module.params))
    except (ArtifactsError, RegistryError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
