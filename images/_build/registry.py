# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pushes images to the lab's registry (OCI distribution API, plain HTTP on the lab's own bridge)."""

from __future__ import annotations

import http.client
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path

from .oci import MANIFEST_TYPE, Built, Store
from .progress import BuildError, Progress

START_TIMEOUT_S = 20


class Registry:
    def __init__(self, address: str) -> None:
        self.address = address
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self._homes: dict[str, str] = {}  # blob: a repository that has it

    def wait(self) -> None:
        """Returns when the registry answers."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self._ask("GET", "/v2/", (200,))
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"the registry {self.address} does not answer after {START_TIMEOUT_S} s: {error}."
                    ) from error
                self._connection.close()
                time.sleep(0.1)

    def has(self, repository: str, tag: str, digest: str) -> bool:
        """Tells whether the tag names this manifest already."""
        accept = {"Accept": MANIFEST_TYPE}
        answer = self._ask("HEAD", f"/v2/{repository}/manifests/{tag}", (200, 404), headers=accept)
        return answer.status == 200 and answer.headers.get("Docker-Content-Digest") == digest

    def push(self, repository: str, tag: str, built: Built, store: Store) -> None:
        for digest in dict.fromkeys([*(layer.digest for layer in built.layers), built.config]):
            self._push_blob(repository, digest, store.blob(digest))
        manifest = store.blob(built.digest).read_bytes()
        headers = {"Content-Type": MANIFEST_TYPE}
        self._ask("PUT", f"/v2/{repository}/manifests/{tag}", (201,), manifest, headers)

    def _push_blob(self, repository: str, digest: str, file: Path) -> None:
        if self._ask("HEAD", f"/v2/{repository}/blobs/{digest}", (200, 404)).status == 404:
            query = {"mount": digest, "from": self._homes[digest]} if digest in self._homes else {}
            path = f"/v2/{repository}/blobs/uploads/?{urllib.parse.urlencode(query)}"
            answer = self._ask("POST", path, (201, 202))
            if answer.status == 202:
                location = urllib.parse.urlsplit(answer.headers["Location"])
                query = {**dict(urllib.parse.parse_qsl(location.query)), "digest": digest}
                with file.open("rb") as stream:
                    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(file.stat().st_size)}
                    self._ask("PUT", f"{location.path}?{urllib.parse.urlencode(query)}", (201,), stream, headers)
        self._homes[digest] = repository

    def _ask(
        self,
        method: str,
        path: str,
        expected: Iterable[int],
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        self._connection.request(method, path, body=body, headers=dict(headers or {}))  # type: ignore[arg-type]
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status not in expected:
            raise BuildError(
                f"the registry {self.address} answers {method} {path} with {answer.status}: "
                f"{text[:300].decode(errors='replace')}"
            )
        return answer


def push_all(address: str, images: Iterable[tuple[str, str, Built]], store: Store, progress: Progress) -> list[str]:
    """Pushes what the registry does not have. Takes (repository, tag, image); returns what it pushed."""
    registry = Registry(address)
    registry.wait()
    missing = [image for image in images if not registry.has(image[0], image[1], image[2].digest)]
    for number, (repository, tag, built) in enumerate(missing, start=1):
        with progress.step(f"image {number} of {len(missing)}: {repository}:{tag} to the registry"):
            registry.push(repository, tag, built, store)
    return [f"{repository}:{tag}" for repository, tag, _ in missing]
