# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A registry in memory that answers what a reader asks, and a site with files beside it."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


def digest_of(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Site:
    """Repositories with manifests (by digest and tag) and blobs; files by their path; what was asked."""

    def __init__(self):
        self.manifests = {}  # (repository, tag or digest): content
        self.blobs = {}  # (repository, digest): content
        self.files = {}
        self.asked = []
        self.token = ""
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                site.answer(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.address}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def answer(self, request):
        path = request.path.partition("?")[0]
        self.asked.append(f"{request.command} {path}")
        status, headers, content = self.find(path, request.headers.get("Authorization", ""))
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(content)

    def find(self, path, authorization):
        if path == "/token":
            return 200, {}, json.dumps({"token": self.token}).encode()
        found = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", path)
        if found and self.token and authorization != f"Bearer {self.token}":
            challenge = f'Bearer realm="{self.url}/token",service="mirror",scope="x"'
            return 401, {"WWW-Authenticate": challenge}, b""
        kept = getattr(self, found[2]) if found else self.files
        key = (found[1], found[3]) if found else path
        return (200, {}, kept[key]) if key in kept else (404, {}, b"")

    def add_image(self, repository, tag, layers=(b"layer",), platforms=1):
        """Put an image there; returns its digest."""
        children = [self._add_manifest(repository, layers, number) for number in range(platforms)]
        if platforms == 1:
            content = self.manifests[repository, children[0]["digest"]]
        else:
            content = json.dumps({"manifests": children}).encode()
        self.manifests[repository, tag] = self.manifests[repository, digest_of(content)] = content
        return digest_of(content)

    def _add_manifest(self, repository, layers, number):
        config = f'{{"platform": {number}}}'.encode()
        blobs = [config, *layers]
        for blob in blobs:
            self.blobs[repository, digest_of(blob)] = blob
        named = [{"digest": digest_of(blob), "size": len(blob)} for blob in blobs]
        content = json.dumps({"config": named[0], "layers": named[1:]}).encode()
        self.manifests[repository, digest_of(content)] = content
        return {"digest": digest_of(content), "size": len(content)}

    def copy_to(self, other, repository, source, tag):
        """What `skopeo copy --all` does; returns the digest."""
        for kept in ("manifests", "blobs"):
            for (name, mark), content in getattr(self, kept).items():
                if name == repository and mark.startswith("sha256:"):
                    getattr(other, kept)[name, mark] = content
        content = self.manifests[repository, source]
        other.manifests[repository, tag] = content
        return digest_of(content)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def new_site():
    """Makes registries in memory, and closes them at the end."""
    made = []

    def make():
        made.append(Site())
        return made[-1]

    yield make
    for site in made:
        site.close()
