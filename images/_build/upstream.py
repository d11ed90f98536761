# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where components come from, and the one image that is still made when they come from their own registries."""

from __future__ import annotations

import queue
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .manifest import digest, file_digest
from .progress import Progress

REGISTRIES = ("https://registry.k8s.io", "https://registry-1.docker.io", "https://quay.io")
PROBE_TIMEOUT_S = 2.0
NODE_FILES = (
    "Containerfile",
    "files/usr/local/lib/tenantry/node-boot",
    "files/etc/systemd/system/tenantry-node-boot.service",
)


def with_scheme(registry: str) -> str:
    """A registry's address as a URL; one without a scheme is plain HTTP."""
    return registry if "://" in registry else f"http://{registry}"


def registry_answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/", timeout=PROBE_TIMEOUT_S):  # noqa: S310  always http or https
            return True
    except urllib.error.HTTPError as error:
        return error.code == 401  # it asks for a token: a registry
    except OSError:
        return False


def all_answer(urls: Iterable[str], answers: Callable[[str], bool] = registry_answers) -> bool:
    """Tells whether every registry answers within PROBE_TIMEOUT_S, names' resolution included."""
    urls = list(urls)
    results: queue.Queue[bool] = queue.Queue()
    for url in urls:
        threading.Thread(target=lambda url=url: results.put(answers(url)), daemon=True).start()
    try:
        return all(results.get(timeout=PROBE_TIMEOUT_S) for _ in urls)
    except queue.Empty:
        return False


def resolve(wanted: str, recorded: str, mirror: str, answer: Callable[[Iterable[str]], bool] = all_answer) -> str:
    """Takes what the user wants (auto, upstream, standin) and what this lab took before. Returns upstream or standin.

    A lab keeps its choice while the user says auto: a registry that is away for a moment changes nothing."""
    if wanted != "auto":
        return wanted
    if recorded:
        return recorded
    return "upstream" if answer([with_scheme(mirror)] if mirror else REGISTRIES) else "standin"


@dataclass(frozen=True)
class Node:
    """The node image where registries answer: its reference in the engine, and what it is built from."""

    folder: Path
    reference: str
    base: str
    mirror: str

    @classmethod
    def of(cls, folder: Path, prefix: str, kubernetes: str, mirror: str) -> Node:
        host = mirror.partition("://")[2] or mirror or "docker.io"
        base = f"{host}/kindest/node:v{kubernetes}"
        key = digest([base, mirror, [file_digest(folder / name) for name in NODE_FILES]])
        return cls(folder, f"{prefix}/node:{key}", base, with_scheme(mirror) if mirror else "")

    def build(self, engine: str, progress: Progress) -> bool:
        """Builds it where the engine does not have it. Returns whether it did."""
        found = subprocess.run([engine, "image", "inspect", self.reference], capture_output=True, check=False)
        if found.returncode == 0:
            return False
        arguments = ["--build-arg", f"NODE={self.base}", "--build-arg", f"MIRROR={self.mirror}"]
        if engine == "podman" and self.mirror.startswith("http://"):
            arguments.append("--tls-verify=false")  # docker takes this from its daemon's insecure-registries
        with progress.step(f"node image from {self.base}"):
            progress.run("node-image", [engine, "build", "--tag", self.reference, *arguments, str(self.folder)])
        return True
