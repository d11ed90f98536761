#!/usr/bin/python
# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: artifacts_mirror
short_description: Brings images, charts and programs to a registry and a folder
version_added: "0.1.0"
author: The tenantry.gpu maintainers (@tenantry)
description:
  - Pulls charts with helm, copies images with skopeo (all platforms, digests kept) and downloads programs by their
    published checksums, several at the same time. Images that a chart's containers name are copied too.
  - What is there already and whole is left alone, by asking the mirror and the folder; nothing upstream is asked for
    it. So a run that was interrupted goes on where it was.
  - Fails at the end with every artifact that could not be had. The others are there then.
  - Keeps each image's digest in C(images.json) and each file's checksum in C(SHA256SUMS). A tag that moved upstream
    is not followed while the digest is kept there.
requirements:
  - skopeo 1.9 or newer, and helm
extends_documentation_fragment:
  - tenantry.gpu.attributes
  - tenantry.gpu.artifacts
attributes:
  check_mode:
    support: full
    details:
      - Asks the mirror and looks at the folder, and returns what it would bring.
  diff_mode:
    support: none
    details:
      - RV(brought) names every artifact.
  idempotent:
    support: full
options:
  sources:
    description:
      - What is read instead of the origin, by the beginning of a reference, say a registry's name. The longest
        beginning decides.
      - The address or URL of a registry, or for a whole reference a name with one of skopeo's transports
        (C(oci-archive:/path)).
    type: dict
    default: {}
  skopeo:
    description: The program skopeo.
    type: str
    default: skopeo
  timeout_s:
    description: Seconds that one artifact may take.
    type: int
    default: 1800
"""

EXAMPLES = r"""
- name: The mirror has what a small cluster needs
  tenantry.gpu.artifacts_mirror:
    folder: /srv/tenantry
    registry: mirror.example.com:5000
    images:
      - registry.k8s.io/pause:3.10.2
    files:
      - path: files/runc/1.5.2/runc.amd64
        url: https://github.com/opencontainers/runc/releases/download/v1.5.2/runc.amd64
        checksum_url: https://github.com/opencontainers/runc/releases/download/v1.5.2/runc.sha256sum
"""

RETURN = r"""
brought:
  description: What was copied or downloaded, or would be.
  returned: always
  type: list
  elements: str
  sample: [registry.k8s.io/pause:3.10.2]
present:
  description: How many artifacts were there already.
  returned: always
  type: int
  sample: 23
"""

import concurrent.futures
import os
import subprocess
import tempfile
import threading
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ..module_utils._artifact_folder import Folder, chart_images, last_line
from ..module_utils._artifact_options import OPTIONS
from ..module_utils._checksums import ArtifactsError, checksum
from ..module_utils._mirror import (
    Reference,
    collisions,
    parse_reference,
    published_checksum,
    source_of,
)
from ..module_utils._registry import Registry, RegistryError, losses

CHUNK = 1024 * 1024  # bytes
CHECKSUM_BYTES = 1024 * 1024  # more is no list of checksums
ANSWER_TIMEOUT_S = 30
RETRIES = "1"


class Mirror:
    """Works through what is wanted. Collects what was brought, and sentences on what could not be had."""

    def __init__(self, parameters: Mapping[str, Any], check: bool) -> None:
        self.parameters = parameters
        self.check = check
        self.folder = Folder(parameters["folder"])
        self.lock = self.folder.lock()
        self.sums = self.folder.sums()
        self.registry = Registry(parameters["registry"], parameters["auth_file"]) if parameters["registry"] else None
        self.brought: list[str] = []
        self.present: list[str] = []
        self.failures: list[str] = []
        self._mutex = threading.Lock()

    def run(self) -> bool:
        """Brings what is missing. Returns whether anything changed."""
        # One archive may be installed with several values.
        charts = {f"chart {chart['name']} {chart['version']}": chart for chart in self.parameters["charts"]}
        self.each([(name, self.bring_chart, chart) for name, chart in charts.items()])
        images = self.images()
        kept = {str(image) for image in images}
        self.lock = {reference: digest for reference, digest in self.lock.items() if reference in kept}
        jobs: list[tuple[str, Callable[[Any], bool], Any]] = []
        if self.registry:
            jobs += [(str(image), self.bring_image, image) for image in images]
        jobs += [(file["path"], self.bring_file, file) for file in self.parameters["files"]]
        self.each(jobs)
        if self.check:
            return bool(self.brought)
        written = self.folder.write_lock(self.lock) if self.registry else False
        return self.folder.write_sums() or written or bool(self.brought)

    def each(self, jobs: Sequence[tuple[str, Callable[[Any], bool], Any]]) -> None:
        """Do all jobs, some at the same time. A job says whether it had anything to bring."""
        with concurrent.futures.ThreadPoolExecutor(self.parameters["concurrency"]) as pool:
            running = {pool.submit(work, wanted): name for name, work, wanted in jobs}
            for job in concurrent.futures.as_completed(running):
                name = running[job]
                try:
                    (self.brought if job.result() else self.present).append(name)
                except (ArtifactsError, RegistryError) as error:
                    self.failures.append(f"{name}: {error}")
                except subprocess.TimeoutExpired:
                    seconds = self.parameters["timeout_s"]
                    self.failures.append(f"{name}: was not there after {seconds} s; try again, or give timeout_s more.")
                except OSError as error:
                    self.failures.append(f"{name}: {error}")

    def images(self) -> list[Reference]:
        """The images that are wanted and those that the charts name. Raises ArtifactsError on one that is none."""
        named = list(self.parameters["images"])
        for chart in self.parameters["charts"]:
            archive = self.folder.chart(chart)
            if archive.is_file():
                try:
                    named += chart_images(self.parameters["helm"], archive, chart)
                except (ArtifactsError, OSError, subprocess.TimeoutExpired) as error:
                    self.failures.append(str(error))
        images = sorted(set(map(parse_reference, named)))
        self.failures += collisions(images)
        return images

    def bring_chart(self, chart: Mapping[str, Any]) -> bool:
        """Pull a chart where its archive is not there as it was."""
        archive = self.folder.chart(chart)
        if self.as_listed(archive):
            return False
        if not self.check:
            archive.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".") as new:
                command = [self.parameters["helm"], "pull", chart["ref"], "--version", chart["version"]]
                command += ["--destination", new, *(["--repo", chart["repo_url"]] if chart["repo_url"] else [])]
                self.program(command)
                found = list(Path(new).glob("*.tgz"))
                if len(found) != 1:
                    raise ArtifactsError("helm pull left no archive.")
                os.replace(found[0], archive)
        return True

    def bring_image(self, image: Reference) -> bool:
        """Copy an image of which the mirror has not all."""
        text = str(image)
        kept = self.lock.get(text) or image.digest
        if self.registry is None or (kept and not losses(self.registry, image.repository, image.mark, kept)):
            if kept:
                self.keep(text, kept)
            return False
        if not self.check:
            source, insecure = source_of(image, self.parameters["sources"], kept)
            with tempfile.NamedTemporaryFile("r", encoding="ascii") as digest:
                command = [self.parameters["skopeo"], "copy", "--quiet", "--all", "--preserve-digests"]
                command += ["--retry-times", RETRIES, "--digestfile", digest.name]
                command += [f"--authfile={self.parameters['auth_file']}"] if self.parameters["auth_file"] else []
                command += ["--src-tls-verify=false"] if insecure else []
                command += ["--dest-tls-verify=false"] if self.registry.insecure else []
                tag = f":{image.tag}" if image.tag else f"@{image.digest}"
                self.program([*command, source, f"docker://{self.registry.host}/{image.repository}{tag}"])
                copied = digest.read().strip()
            lost = losses(self.registry, image.repository, image.mark, kept or copied)
            if lost:
                raise ArtifactsError(f"was copied, and the mirror {lost[0]}.")
            self.keep(text, kept or copied)
        return True

    def keep(self, reference: str, digest: str) -> None:
        """Remember a digest at once: a run that is killed later need not ask for it again."""
        with self._mutex:
            if self.lock.get(reference) != digest:
                self.lock[reference] = digest
                if not self.check:
                    self.folder.write_lock(self.lock)

    def bring_file(self, file: Mapping[str, Any]) -> bool:
        """Download a program that is not there as it was, nor as its project publishes it."""
        path = self.folder.path / file["path"]
        if self.as_listed(path):
            return False
        if self.check:
            return True
        name = file["url"].rpartition("/")[2]
        with answer(file["checksum_url"]) as stream:
            published = published_checksum(stream.read(CHECKSUM_BYTES).decode(errors="replace"), name)
        if path.is_file() and checksum(path) == published:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        with answer(file["url"]) as stream, part.open("wb") as out:
            try:
                while chunk := stream.read(CHUNK):
                    out.write(chunk)
            except (HTTPException, OSError) as error:
                raise ArtifactsError(f"{file['url']} was cut off: {error!r}.") from error
        found = checksum(part)
        if found != published:
            raise ArtifactsError(
                f"{file['url']} has the checksum {found}, and its project publishes {published}; "
                "another file stands there, or it was cut off."
            )
        os.replace(part, path)
        return True

    def as_listed(self, path: Path) -> bool:
        """Whether a file has the checksum that SHA256SUMS says."""
        listed = self.sums.get(path.relative_to(self.folder.path).as_posix())
        return listed is not None and path.is_file() and checksum(path) == listed

    def program(self, command: list[str]) -> None:
        """Run a program; raises ArtifactsError with what it said last."""
        try:
            # It runs in a thread, and with a time limit.  pylint: disable-next=ansible-bad-function
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=self.parameters["timeout_s"]
            )
        except FileNotFoundError as error:
            raise ArtifactsError(f"the program {command[0]} is missing; install it.") from error
        if ended.returncode:
            raise ArtifactsError(last_line(ended.stderr))


def answer(url: str) -> Any:
    """Open a URL; raises ArtifactsError where it does not answer."""
    try:
        return open_url(url, timeout=ANSWER_TIMEOUT_S, http_agent="tenantry.gpu")
    except urllib.error.HTTPError as error:
        raise ArtifactsError(f"{url} answers {error.code}.") from error
    except (OSError, HTTPException, ValueError) as error:
        raise ArtifactsError(f"{url} does not answer: {getattr(error, 'reason', error)}.") from error


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            **OPTIONS,
            "sources": {"type": "dict", "default": {}},
            "skopeo": {"type": "str", "default": "skopeo"},
            "timeout_s": {"type": "int", "default": 1800},
        },
        supports_check_mode=True,
    )
    try:
        mirror = Mirror(module.params, module.check_mode)
        changed = mirror.run()
    except (ArtifactsError, OSError) as error:
        module.fail_json(msg=str(error))
    result = {"brought": sorted(mirror.brought), "present": len(mirror.present)}
    if mirror.failures:
        heading = f"{len(mirror.failures)} artifacts could not be had, {len(mirror.brought)} were brought"
        lines = "\n".join(f"- {failure}" for failure in sorted(mirror.failures))
        module.fail_json(
            msg=f"{heading}, {len(mirror.present)} were there; the next run goes on with these:\n{lines}",
            changed=changed,
            **result,
        )
    module.exit_json(changed=changed, **result)


if __name__ == "__main__":
    main()
