# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of the modules that mirror artifacts and look at a mirror."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  folder:
    description: Folder of the artifacts on this machine.
    type: path
    required: true
  registry:
    description:
      - The mirror, one registry that serves every image under its upstream path.
      - A URL, or host and port, which means plain HTTP. Empty where images are not looked at.
    type: str
    default: ""
  images:
    description: References of the images that are wanted, as manifests write them.
    type: list
    elements: str
    default: []
  charts:
    description: The Helm charts that are wanted.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Its name.
        type: str
        required: true
      version:
        description: Its version, as its repository writes it.
        type: str
        required: true
      ref:
        description: What C(helm pull) takes, a name in O(charts[].repo_url) or an OCI address.
        type: str
        required: true
      repo_url:
        description: Its repository.
        type: str
        default: ""
      values:
        description: The values with which it is installed; what images it names follows from them.
        type: dict
        default: {}
      kubernetes_version:
        description: The version that the chart is rendered for.
        type: str
        default: ""
  files:
    description: The programs that are wanted.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Its place in O(folder).
        type: str
        required: true
      url:
        description: Where it is published.
        type: str
        required: true
      checksum_url:
        description: Where its project publishes its SHA-256, alone or in lines as C(sha256sum) writes them.
        type: str
        required: true
  concurrency:
    description: How many artifacts are worked on at the same time.
    type: int
    default: 4
  auth_file:
    description:
      - Credentials of registries, as C(skopeo login) writes them.
      - Empty for the places where skopeo looks.
    type: str
    default: ""
  helm:
    description: The program helm.
    type: str
    default: helm
"""
