"""Small servers on the loopback for what a cluster would run: a proxy that makes an API fail, and any other."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from control_plane import LOOPBACK, ControlPlane, file_name

Answer = tuple[int, bytes]


class Server(ThreadingHTTPServer):
    """An HTTP server on a free port; with a certificate (its key beside it), HTTPS."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], certificate: Path | None = None) -> None:
        super().__init__((LOOPBACK, 0), handler)
        self.port = self.server_address[1]
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is no news."""


class Handler(BaseHTTPRequestHandler):
    """Answers every verb alike."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        sent = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """pytest shows what matters."""


def serve(answers: Callable[[str, bytes], Answer], certificate: Path | None = None) -> Server:
    """A server whose answers are a function of path and body."""

    class Answering(Handler):
        def answer(self) -> None:
            self.send(*answers(self.path, self.body()))

    return Server(Answering, certificate)


@dataclass
class Fault:
    """What a request that fits gets instead of the API's answer, for a number of times.

    ``method`` and ``path`` are searched for in the request's; ``status`` 0 ends the connection without an answer,
    ``before`` False lets the API do it first.
    """

    path: str
    status: int
    method: str = ""
    message: str = "a fault of the test"
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int = 1
    before: bool = True


class FaultProxy:
    """Stands before the API of a control plane for one user, and makes it fail as a test wants.

    The proxy ends TLS, so it has the user's certificate; the kubeconfig that leads through it has none.
    """

    def __init__(self, control_plane: ControlPlane, user: str) -> None:
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, int]] = []  # method, path and query, status (0: none)
        self._away_until = 0.0
        self._answering: set[socket.socket] = set()
        self._upstream = control_plane.server.removeprefix("https://")
        certificate = control_plane.authority.folder / f"{file_name(user)}.crt"
        self._context = ssl.create_default_context(cafile=str(control_plane.authority.certificate))
        self._context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        proxy = self

        class Forwarding(Handler):
            def answer(self) -> None:
                proxy.answer(self)

        self._server = Server(Forwarding, control_plane.authority.issue("fault-proxy"))
        server = f"https://{LOOPBACK}:{self._server.port}"
        self.kubeconfig = control_plane.write_kubeconfig(f"{user}-proxied", {"token": "none"}, server)

    def stop(self) -> None:
        self._server.stop()

    def be_away(self, seconds: float) -> None:
        """End every connection without an answer from now on, for a while."""
        self._away_until = time.monotonic() + seconds
        for connection in list(self._answering):
            connection.shutdown(socket.SHUT_RDWR)

    def count(self, method: str, path: str = "", status: int | None = None) -> int:
        return sum(
            method == seen and bool(re.search(path, where)) and status in (None, got)
            for seen, where, got in self.requests
        )

    def answer(self, handler: Handler) -> None:
        body = handler.body()
        if time.monotonic() < self._away_until:
            self._hang_up(handler)
            return
        fault = self._fault_for(handler.command, handler.path)
        if fault is None:
            self._forward(handler, body)
            return
        if not fault.before:
            self._ask(handler, body)[1].read()
        if fault.status == 0:
            self._hang_up(handler)
            return
        self.requests.append((handler.command, handler.path, fault.status))
        handler.send(fault.status, status_object(fault.status, fault.message), fault.headers)

    def _fault_for(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and re.search(fault.method, method) and re.search(fault.path, path):
                fault.times -= 1
                return fault
        return None

    def _hang_up(self, handler: Handler) -> None:
        self.requests.append((handler.command, handler.path, 0))
        handler.close_connection = True

    def _ask(self, handler: Handler, body: bytes) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection(self._upstream, context=self._context)
        kept = {name: value for name, value in handler.headers.items() if name.lower() not in ("authorization", "host")}
        connection.request(handler.command, handler.path, body or None, kept)
        return connection, connection.getresponse()

    def _forward(self, handler: Handler, body: bytes) -> None:
        connection, response = self._ask(handler, body)
        self.requests.append((handler.command, handler.path, response.status))
        handler.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                handler.send_header(name, value)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        self._answering.add(handler.connection)
        try:
            # Piece by piece, as it comes: this may be a watch.
            while piece := response.read1(1 << 16):
                handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                handler.wfile.flush()
            handler.wfile.write(b"0\r\n\r\n")
        finally:
            self._answering.discard(handler.connection)
            connection.close()


def status_object(code: int, message: str) -> bytes:
    """A failure as the API server writes it."""
    return (
        f'{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{message}","code":{code}}}'
    ).encode()
