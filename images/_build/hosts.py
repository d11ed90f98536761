# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Puts images that no registry has into the containerd of hosts that are containers."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from .oci import Built, Store, write_oci_archive
from .progress import BuildError, Progress

CTR = ("ctr", "--namespace", "k8s.io", "images")  # the namespace that the kubelet's images are in


def load_all(
    engine: str, hosts: Sequence[str], images: Iterable[tuple[str, Built]], store: Store, progress: Progress
) -> list[str]:
    """Loads what a host does not have. Takes the hosts' containers and (reference, image); returns what it loaded."""
    loaded = []
    for reference, built in images:
        name = f"docker.io/{reference}"  # what a pod's short name means
        missing = [host for host in hosts if built.digest not in _listing(engine, host, name)]
        if not missing:
            continue
        with tempfile.TemporaryDirectory(dir=store.folder, prefix=".load-") as work:
            archive = Path(work) / "image.tar"
            write_oci_archive(archive, store, built, name)
            for host in missing:
                with progress.step(f"image {reference}: into {host}"), archive.open("rb") as stream:
                    argv = [engine, "exec", "--interactive", host, *CTR, "import", "-"]
                    progress.run(f"load-{host}", argv, stdin=stream)
                loaded.append(f"{reference} into {host}")
    return loaded


def _listing(engine: str, host: str, name: str) -> str:
    """containerd's line about an image, with its digest."""
    argv = [engine, "exec", host, *CTR, "list", f"name=={name}"]
    answer = subprocess.run(argv, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise BuildError(f"{host}: containerd does not list its images: {answer.stderr.strip()}")
    return answer.stdout
