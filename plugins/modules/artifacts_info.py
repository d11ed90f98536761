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
  - Without O(images), O(charts), O(files) and O(packages) it judges what was mirrored, whatever it was for.
  - Findings do not fail the task.
extends_documentation_fragment:
  - tenantry.gpu.attributes
  - tenantry.gpu.attributes.info_module
  - tenantry.gpu.artifacts
options:
  packages:
    description:
      - Names of the packages that are wanted, by family of distributions (C(Debian), C(RedHat)). A version may stand
        behind a name, as apt or dnf takes it.
      - Every distribution in C(packages/) has to have those of its family. Which distributions the hosts have is not
        known here.
    type: dict
    default: {}
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
distributions:
  description: The distributions that have a repository of packages in the folder.
  returned: success
  type: list
  elements: str
  sample: [debian-12]
checked_files:
  description: How many files were compared.
  returned: success
  type: int
  sample: 40
"""

import concurrent.futures
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._artifact_folder import LOCK, Folder, chart_images
from ..module_utils._artifact_options import OPTIONS
from ..module_utils._checksums import ArtifactsError, fault
from ..module_utils._mirror import collisions, missing_packages, parse_reference
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


def judge_packages(folder: Folder, sums: Iterable[str], wanted: Mapping[str, list[str]]) -> list[str]:
    """Sentences on the wanted packages that the distributions' repositories lack."""
    if not any(wanted.values()):
        return []
    if not folder.packages.is_dir():
        return [
            f"packages/: no package was ever mirrored to {folder.path}; give the group artifact_hosts a host of each "
            "distribution, or make this folder, empty, where hosts have a repository of their distribution at the site."
        ]
    findings = []
    for distribution in folder.distributions():
        begin = f"packages/{distribution}/"
        files = [path.removeprefix(begin) for path in sums if path.startswith(begin)]
        if not files:
            findings.append(f"{begin}: its packages were never mirrored.")
        findings += [f"{begin}: package {name} was never mirrored." for name in missing_packages(wanted, files)]
    return findings


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
    findings += judge_packages(folder, sums, parameters["packages"])
    findings += judge_files(folder, sums, parameters["concurrency"])
    return {
        "findings": findings,
        "images": sorted(lock),
        "distributions": folder.distributions(),
        "checked_files": len(sums),
    }


def main() -> None:
    """Entry point."""
    options = {**OPTIONS, "packages": {"type": "dict", "default": {}}}
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    try:
        module.exit_json(changed=False, **look(module.params))
    except (ArtifactsError, RegistryError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
