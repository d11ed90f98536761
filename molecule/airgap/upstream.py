#!/usr/bin/env python3
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plays everything that is public: serves files, and passes what a registry is asked on to the scenario's registry.

    upstream.py --address 172.30.1.1:8080 --folder .state/x/upstream --registry 172.30.1.2:5000 --blobs 9

With --blobs it is gone after so many blobs, in the middle of the next one.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import sys
import urllib.error
import urllib.request
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Of what a project publishes under another path than the folder of artifacts has.
HALF = 1000  # bytes


class Upstream(SimpleHTTPRequestHandler):
    """One request. The class's own attributes are set by main()."""

    registry = ""
    blobs = sys.maxsize
    served = itertools.count(1)

    def do_GET(self) -> None:
        """Answer from the registry or from the folder."""
        if self.path.startswith("/v2/"):
            self.pass_on()
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        """Answer without content."""
        if self.path.startswith("/v2/"):
            self.pass_on()
        else:
            super().do_HEAD()

    def pass_on(self) -> None:
        """Ask the registry and give its answer on."""
        headers = {"Accept": ", ".join(self.headers.get_all("Accept", ["*/*"]))}
        request = urllib.request.Request(f"http://{self.registry}{self.path}", headers=headers, method=self.command)
        try:
            answer = urllib.request.urlopen(request)  # noqa: S310
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            content = answer.read()
            self.send_response(answer.status)
            for name in ("Content-Type", "Content-Length", "Docker-Content-Digest"):
                if answer.headers.get(name):
                    self.send_header(name, answer.headers[name])
            self.end_headers()
            if self.command == "GET" and "/blobs/" in self.path and next(self.served) > self.blobs:
                self.wfile.write(content[:HALF])
                self.wfile.flush()
                os._exit(1)
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True, help="address and port to serve on")
    parser.add_argument("--folder", type=Path, required=True, help="what is served as files")
    parser.add_argument("--registry", required=True, help="address and port of the registry behind it")
    parser.add_argument("--blobs", type=int, default=sys.maxsize, help="how many blobs it gives out before it is gone")
    parser.add_argument("--pid", type=Path, required=True, help="file for its process id, written once it serves")
    options = parser.parse_args()
    Upstream.registry, Upstream.blobs = options.registry, options.blobs
    host, _, port = options.address.rpartition(":")
    handler = functools.partial(Upstream, directory=str(options.folder))
    with ThreadingHTTPServer((host, int(port)), handler) as server:
        if os.fork():
            os._exit(0)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        options.pid.write_text(str(os.getpid()), encoding="ascii")
        server.serve_forever()


if __name__ == "__main__":
    main()
