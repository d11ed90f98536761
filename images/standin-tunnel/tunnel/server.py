# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The end in the control plane's pod: sshd for the agents, and the socket that the API server dials through.

Each agent's connection brings a socket of its own under AGENT_SOCKETS; a dial takes any of them that answers. An agent
says at once that it has the request (100 Continue), so that one that is gone is left for the next without a wait.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import signal
import socket
from pathlib import Path

from .common import (
    AGENT_SOCKETS,
    BANNER,
    ESTABLISHED,
    GREETING,
    HEAD_LIMIT,
    BadRequestError,
    close,
    connect_target,
    http,
    join,
    log,
    options_words,
    read_head,
    refusal,
    status_of,
)

SSHD = "/usr/sbin/sshd"
RECEIVED_S = 1.5  # an agent that lives says within this time that it has the request
DIAL_S = 10.0
LISTENING = "00010000"  # the flag __SO_ACCEPTCON in /proc/net/unix
NO_AGENT_S = 2.0  # an agent that reconnects needs less

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RefusedError(Exception):
    """An agent had the request and could not dial; its whole answer is in `answer`."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer.decode("latin-1"))
        self.answer = answer


def sshd_command(port: int, keys: Path) -> list[str]:
    """An sshd that does one thing: let the holder of the agents' key listen on a socket here."""
    options = {
        "Port": port,
        "HostKey": keys / "host-key",
        "AuthorizedKeysFile": keys / "agent-key.pub",
        "StrictModes": "no",  # the keys are root's, in a read-only volume
        "AuthenticationMethods": "publickey",
        "UsePAM": "no",
        "PidFile": "none",
        "PermitTTY": "no",
        "PermitTunnel": "no",
        "PermitUserRC": "no",
        "X11Forwarding": "no",
        "AllowAgentForwarding": "no",
        "AllowTcpForwarding": "remote",  # without it sshd refuses sockets too
        "PermitListen": "none",
        "AllowStreamLocalForwarding": "remote",
        "StreamLocalBindUnlink": "yes",
        "MaxSessions": 0,
        "Banner": BANNER,
        "MaxStartups": 200,
        "LoginGraceTime": 10,
        "ClientAliveInterval": 2,
        "ClientAliveCountMax": 3,
        "LogLevel": "ERROR",
    }
    return [SSHD, "-D", "-e", "-f", "/dev/null", *options_words(options)]


def listening_sockets() -> set[str]:
    """Returns the paths of this network namespace's listening Unix sockets."""
    table = (line.split() for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:])
    return {words[7] for words in table if len(words) == 8 and words[3] == LISTENING}


class Selector:
    """Answers the API server's CONNECT requests through one of the agents."""

    def __init__(self, agents: Path) -> None:
        self._agents = agents
        self._numbers = itertools.count(1)
        self._silent: set[Path] = set()
        self.dials = 0
        self.failures = 0
        self.open = 0

    def agents(self) -> list[Path]:
        """Returns the sockets of the connected agents in random order, those last that did not answer lately.

        sshd leaves the sockets of lost agents behind; they go here.
        """
        listening = listening_sockets()
        found = list(self._agents.glob("*.sock"))
        for stale in found:
            if str(stale) not in listening:
                stale.unlink(missing_ok=True)
                self._silent.discard(stale)
        alive = [socket for socket in found if str(socket) in listening]
        random.shuffle(alive)
        return sorted(alive, key=self._silent.__contains__)

    async def _some_agents(self) -> list[Path]:
        for _ in range(int(NO_AGENT_S / 0.1)):
            if found := self.agents():
                return found
            await asyncio.sleep(0.1)
        return []

    async def _through(self, agent: Path, request: bytes, received_s: float) -> Connection:
        """Returns the dialled connection. Raises RefusedError, others where the agent is gone."""
        reader, writer = await asyncio.open_unix_connection(str(agent), limit=HEAD_LIMIT)
        try:
            async with asyncio.timeout(received_s):
                writer.write(request)
                await writer.drain()
                status = status_of(await read_head(reader))
            if status == 100:
                async with asyncio.timeout(DIAL_S):
                    head = await read_head(reader)
                    status = status_of(head)
            if status != 200:
                text = (await asyncio.wait_for(reader.read(HEAD_LIMIT), DIAL_S)).decode("latin-1")
                raise RefusedError(refusal(status, "Dial failed", text.strip()))
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def dial(self, request: bytes, number: int) -> Connection:
        """Tries the agents one after another. Raises RefusedError."""
        agents = await self._some_agents()
        for position, agent in enumerate(agents, 1):
            try:
                dialled = await self._through(agent, request, DIAL_S if position == len(agents) else RECEIVED_S)
            except (OSError, TimeoutError, BadRequestError) as error:
                reason = str(error) or "timeout"
                log("server.py", "Agent does not answer", "W", dialID=number, agentID=agent.stem, err=reason)
                self._silent.add(agent)
            else:
                self._silent.discard(agent)
                return dialled
        raise RefusedError(refusal(503, "Service Unavailable", "No agent available"))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles one connection of the API server."""
        number = next(self._numbers)
        try:
            head = await read_head(reader)
            host, port = connect_target(head)
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            log("server.py", "Received DIAL_REQ", dialID=number, dialAddress=address)
            self.dials += 1
            dialled = await self.dial(f"{head}\r\n\r\n".encode("latin-1"), number)
        except BadRequestError as error:
            writer.write(refusal(400, "Bad Request", str(error)))
        except RefusedError as error:
            self.failures += 1
            reason = str(error).splitlines()[-1]
            log("server.py", "DIAL_REQ failed", "E", dialID=number, dialAddress=address, err=reason)
            writer.write(error.answer)
        else:
            writer.write(ESTABLISHED)
            self.open += 1
            try:
                await join((reader, writer), dialled)
            finally:
                self.open -= 1
                await close(dialled[1])
        with contextlib.suppress(OSError):
            await writer.drain()
        await close(writer)

    def metrics(self) -> tuple[int, str]:
        prefix = "konnectivity_network_proxy_server_"
        values = {
            "ready_backend_connections": len(self.agents()),
            "established_connections": self.open,
            "dial_failure_count": self.failures,
            "http_connections": self.dials,
        }
        return 200, "\n".join(f"{prefix}{name} {value}" for name, value in values.items())


async def _keep_sshd(command: list[str]) -> None:
    """Runs sshd for ever. Its end is the end of every agent's connection; they come back."""
    while True:
        process = await asyncio.create_subprocess_exec(*command)
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
        log("server.py", "sshd ended", "E", code=code)
        await asyncio.sleep(0.5)


async def run(options: argparse.Namespace) -> None:
    AGENT_SOCKETS.mkdir(mode=0o700, exist_ok=True)
    for stale in AGENT_SOCKETS.glob("*.sock"):
        stale.unlink()
    # So that an agent knows which of several servers it reached.
    BANNER.write_text(f"{GREETING}{socket.gethostname()}\n", encoding="utf-8")
    selector = Selector(AGENT_SOCKETS)
    with contextlib.suppress(FileNotFoundError):
        options.uds_name.unlink()
    await asyncio.start_unix_server(selector.serve, str(options.uds_name), limit=HEAD_LIMIT)
    options.uds_name.chmod(0o666)  # the API server may run as another user of the pod
    sshd = asyncio.create_task(_keep_sshd(sshd_command(options.agent_port, options.keys)))
    await asyncio.start_server(
        http(dict.fromkeys(("/healthz", "/readyz"), lambda: (200, "ok"))), None, options.health_port
    )
    await asyncio.start_server(http({"/metrics": selector.metrics}), "127.0.0.1", options.admin_port)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    log("server.py", "Listening", udsName=options.uds_name, agentPort=options.agent_port)
    await stopped.wait()
    sshd.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sshd


def main() -> None:
    parser = argparse.ArgumentParser(prog="proxy-server", description=__doc__)
    parser.add_argument("--uds-name", type=Path, default=Path("/run/konnectivity/konnectivity-server.socket"))
    parser.add_argument("--keys", type=Path, default=Path("/etc/konnectivity"), help="has host-key and agent-key.pub")
    parser.add_argument("--agent-port", type=int, default=8132)
    parser.add_argument("--admin-port", type=int, default=8133)
    parser.add_argument("--health-port", type=int, default=8134)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
