# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The tunnel without ssh: the server's selector joined to agents' dialers by the sockets that sshd would bring."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunnel import agent, common, server

ANYWHERE = (ipaddress.ip_network("192.0.2.0/24"),)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.mark.parametrize(
    ("head", "target"),
    [
        ("CONNECT 10.96.3.4:443 HTTP/1.1\r\nHost: x", ("10.96.3.4", 443)),
        ("CONNECT [fd00::1]:10250 HTTP/1.1", ("fd00::1", 10250)),
        ("CONNECT a-worker-0:10250 HTTP/1.0", ("a-worker-0", 10250)),
        ("GET / HTTP/1.1", None),
        ("CONNECT 10.96.3.4 HTTP/1.1", None),
        ("CONNECT 10.96.3.4:0 HTTP/1.1", None),
        ("CONNECT 10.96.3.4:70000 HTTP/1.1", None),
        ("", None),
    ],
)
def test_connect_target(head: str, target: tuple[str, int] | None) -> None:
    if target:
        assert common.connect_target(head) == target
        return
    with pytest.raises(common.BadRequestError):
        common.connect_target(head)


@given(st.text())
def test_any_text_is_a_request_or_refused(head: str) -> None:
    try:
        _, port = common.connect_target(head)
    except common.BadRequestError:
        return
    assert 0 < port < 65536


POLICY = agent.Policy((ipaddress.ip_network("10.96.0.0/16"), ipaddress.ip_network("fd00:1::/64")), (443, 10250))


@pytest.mark.parametrize(
    ("host", "port", "permitted"),
    [
        ("10.96.0.1", 8443, True),
        ("fd00:1::7", 9395, True),
        ("172.28.0.11", 10250, True),
        ("a-worker-0", 10250, True),
        ("172.28.0.11", 22, False),
        ("127.0.0.1", 443, False),
        ("::1", 443, False),
        ("localhost", 443, False),
        ("169.254.169.254", 443, False),
        ("0.0.0.0", 443, False),  # noqa: S104
        ("a-worker-0", 22, False),
    ],
)
def test_policy(host: str, port: int, permitted: bool) -> None:
    assert POLICY.permits(host, port) is permitted


def test_commands_pin_the_host_and_forward_nothing_else() -> None:
    of_agent = agent.ssh_command(agent.Server("172.28.0.128", 8132, Path("/keys")), Path("/r.sock"), Path("/l.sock"))
    assert {"StrictHostKeyChecking=yes", "ExitOnForwardFailure=yes", "IdentitiesOnly=yes"} <= set(of_agent)
    assert of_agent[-5:] == ["-R", "/r.sock:/l.sock", "-p", "8132", "nobody@172.28.0.128"]
    of_server = server.sshd_command(8132, Path("/keys"))
    assert {"PermitListen=none", "PermitTTY=no", "MaxSessions=0", "AuthenticationMethods=publickey"} <= set(of_server)


def test_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    common.log("agent.py", "Received DIAL_REQ", dialAddress="10.96.0.1:443")
    assert capsys.readouterr().err.endswith('] "Received DIAL_REQ" dialAddress="10.96.0.1:443"\n')


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    await common.close(writer)


async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


class Lab:
    """A server's selector, and agents that come and go."""

    def __init__(self, folder: Path, target: int) -> None:
        self.selector = server.Selector(folder)
        self._folder = folder
        self.target = f"127.0.0.1:{target}"

    @asynccontextmanager
    async def agent(self, name: str, handler: Handler) -> AsyncIterator[None]:
        path = self._folder / f"{name}.sock"
        listener = await asyncio.start_unix_server(handler, str(path))
        try:
            yield
        finally:
            listener.close()

    async def dial(self, request: str = "", words: bytes = b"hello") -> tuple[int, bytes]:
        """What the API server sees: the answer's status, and what comes back."""
        socket = self._folder / "api.socket"
        listener = await asyncio.start_unix_server(self.selector.serve, str(socket))
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write((request or f"CONNECT {self.target} HTTP/1.1\r\n\r\n").encode())
        status = common.status_of(await common.read_head(reader))
        if status == 200:
            writer.write(words)
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        listener.close()
        return status, answer


def dialer(*networks: str) -> Handler:
    """An agent that may go to this machine too, as the tests have no other."""

    class Lenient(agent.Policy):
        def permits(self, host: str, port: int) -> bool:
            return not networks

    return agent.Dialer(Lenient(ANYWHERE), "a").serve


@asynccontextmanager
async def lab(folder: Path) -> AsyncIterator[Lab]:
    target = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield Lab(folder, target.sockets[0].getsockname()[1])
    target.close()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(server, "RECEIVED_S", 0.3)
    monkeypatch.setattr(server, "NO_AGENT_S", 0.3)
    return tmp_path_factory.mktemp("t")


def test_through_an_agent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with lab(folder) as there, there.agent("one", dialer()):
            assert await there.dial() == (200, b"hello")
            assert f'"Received DIAL_REQ" agentID="a" dialID="1" dialAddress="{there.target}"' in capsys.readouterr().err

    asyncio.run(run())


def test_no_agent(folder: Path) -> None:
    async def run() -> None:
        async with lab(folder) as there:
            assert await there.dial() == (503, b"No agent available\n")

    asyncio.run(run())


def test_agent_that_is_silent_is_left_for_the_next(folder: Path) -> None:
    async def run() -> None:
        async with lab(folder) as there, there.agent("silent", mute), there.agent("one", dialer()):
            for _ in range(5):
                assert await there.dial() == (200, b"hello")
            assert [path.stem for path in there.selector.agents()] == ["one", "silent"]

    asyncio.run(run())


def test_socket_of_a_lost_agent_goes(folder: Path) -> None:
    async def run() -> None:
        async with lab(folder) as there:
            (folder / "lost.sock").touch()
            async with there.agent("one", dialer()):
                assert await there.dial() == (200, b"hello")
            assert not (folder / "lost.sock").exists()

    asyncio.run(run())


def test_agent_that_comes_during_the_dial(folder: Path) -> None:
    async def run() -> None:
        async with lab(folder) as there:
            dial = asyncio.create_task(there.dial())
            await asyncio.sleep(0.1)
            async with there.agent("one", dialer()):
                assert await dial == (200, b"hello")

    asyncio.run(run())


def test_refusals(folder: Path) -> None:
    async def run() -> None:
        async with lab(folder) as there, there.agent("one", dialer("none")):
            status, text = await there.dial()
            assert (status, b"is no service, pod or kubelet" in text) == (403, True)
            status, text = await there.dial("GET / HTTP/1.1\r\n\r\n")
            assert (status, b"not a CONNECT request" in text) == (400, True)

    asyncio.run(run())


def test_target_that_does_not_listen(folder: Path) -> None:
    async def run() -> None:
        async with lab(folder) as there, there.agent("one", dialer()):
            status, text = await there.dial("CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n")
            assert (status, b"dial 127.0.0.1:1" in text) == (502, True)

    asyncio.run(run())


def test_metrics_count(folder: Path) -> None:
    async def run() -> None:
        async with lab(folder) as there, there.agent("one", dialer()):
            await there.dial()
            assert "konnectivity_network_proxy_server_ready_backend_connections 1" in there.selector.metrics()[1]

    asyncio.run(run())


def test_links_of_one_agent_keep_to_different_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two servers behind one address, chosen in turns; a fake ssh greets and stays."""
    turns = iter(["one", "one", "one", "two"] + ["two"] * 99)

    def fake_ssh(*_: object) -> list[str]:
        return [
            "sh",
            "-c",
            f"echo '{common.GREETING}{next(turns)}' >&2; echo remote forward success >&2; exec sleep 60",
        ]

    monkeypatch.setattr(agent, "ssh_command", fake_ssh)

    async def run() -> None:
        taken: set[str] = set()
        links = [agent.Link(agent.Server("x", 1, tmp_path), "a", tmp_path / "s", taken) for _ in range(2)]
        keeping = [asyncio.create_task(link.keep(0.2)) for link in links]
        async with asyncio.timeout(10):
            while not all(link.connected for link in links):
                await asyncio.sleep(0.05)
        assert taken == {f"{common.GREETING}one", f"{common.GREETING}two"}
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        assert not taken

    asyncio.run(run())
