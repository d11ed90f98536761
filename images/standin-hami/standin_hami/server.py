# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The HTTP servers: one with TLS for the API server and the kube-scheduler, one for Prometheus."""

import json
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .api import Json

log = logging.getLogger(__name__)

# A pod is at most 1.5 MiB in etcd; an AdmissionReview holds it once here.
MAX_BODY = 4 * 1024 * 1024

Post = Callable[[Json], Json]
Get = Callable[[], str]


def handler(posts: dict[str, Post], gets: dict[str, Get]) -> type[BaseHTTPRequestHandler]:
    """A request handler that serves JSON on POST and text on GET."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # head and body leave in one packet
        timeout = 180  # an idle connection

        def do_GET(self) -> None:
            get = gets.get(self.path.split("?")[0])
            if get is None:
                self._answer(404, "text/plain", b"not found\n")
            else:
                self._answer(200, "text/plain; version=0.0.4", get().encode())

        def do_POST(self) -> None:
            post = posts.get(self.path.split("?")[0])
            if post is None:
                self._answer(404, "text/plain", b"not found\n")
                return
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 < length <= MAX_BODY:
                self.close_connection = True
                self._answer(400, "text/plain", f"a body of {length} bytes is none that is read here\n".encode())
                return
            try:
                answer = post(json.loads(self.rfile.read(length)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                log.exception("%s could not be answered", self.path)
                self._answer(400, "text/plain", f"{type(error).__name__}: {error}\n".encode())
                return
            self._answer(200, "application/json", json.dumps(answer).encode())

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name in the standard library
            log.debug(format, *args)

    return Handler


class Server(ThreadingHTTPServer):
    """Serves each connection in a thread of its own; an error of one peer is a line in the log."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("connection from %s", client_address, exc_info=True)


def serve(address: str, kind: type[BaseHTTPRequestHandler], certificate: Path | None, key: Path | None) -> Server:
    """Start serving at host:port (an empty host is all addresses), with TLS where there is a certificate."""
    host, port = address.rsplit(":", 1)
    server = Server((host.strip("[]"), int(port)), kind)
    if certificate is not None and key is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        # The handshake then happens in the connection's own thread.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=_reload, args=(context, certificate, key), name="certificate", daemon=True).start()
    threading.Thread(target=server.serve_forever, name=f"serve {address}", daemon=True).start()
    return server


def _reload(context: ssl.SSLContext, certificate: Path, key: Path, every_s: float = 10.0) -> None:
    """Read the certificate again whenever its file has changed."""
    read = os.stat(certificate).st_mtime_ns
    while True:
        time.sleep(every_s)
        try:
            changed = os.stat(certificate).st_mtime_ns
            if changed != read:
                context.load_cert_chain(certificate, key)
                read = changed
                log.info("the certificate %s has been read again", certificate)
        except (OSError, ssl.SSLError) as error:
            log.warning("the certificate %s cannot be read: %s", certificate, error)
