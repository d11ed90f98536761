# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The end in the tenant: keeps an ssh connection to the control plane's pod, and dials what comes through it.

The CONNECT proxy listens on a socket in the agent's own file system: no other process of the node reaches it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import itertools
import os
import re
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path

from .common import (
    AGENT_SOCKETS,
    CONTINUE,
    ESTABLISHED,
    GREETING,
    HEAD_LIMIT,
    LOGIN,
    BadRequestError,
    close,
    connect_target,
    http,
    join,
    log,
    options_words,
    read_head,
    refusal,
)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DIAL_S = 5.0
FIRST_RETRY_S = 0.2
LAST_RETRY_S = 1.0
# The servers stand behind one address, and which of them answers is chance.
LAST_RETRY_OF_SEVERAL_S = 5.0
NODE_PORTS = (443, 10250)
CHATTER = ("debug1:", "Transferred:", "Bytes per second:")  # ssh's words that give no reason for its end


@dataclass(frozen=True)
class Policy:
    """Where the API server may be taken: the tenant's services and pods, and a few ports of everything else."""

    networks: tuple[Network, ...]
    ports: tuple[int, ...] = NODE_PORTS

    def permits(self, host: str, port: int) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return port in self.ports and host != "localhost"
        if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
            return False
        return port in self.ports or any(address in network for network in self.networks)


class Dialer:
    """Answers CONNECT requests that come through the tunnel."""

    def __init__(self, policy: Policy, agent_id: str) -> None:
        self._policy = policy
        self._agent_id = agent_id
        self._numbers = itertools.count(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            host, port = connect_target(await read_head(reader))
        except BadRequestError as error:
            writer.write(refusal(400, "Bad Request", str(error)))
        else:
            await self._dial(host, port, reader, writer)
        with contextlib.suppress(OSError):
            await writer.drain()
        await close(writer)

    async def _dial(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        number = next(self._numbers)
        log("agent.py", "Received DIAL_REQ", agentID=self._agent_id, dialID=number, dialAddress=address)
        if not self._policy.permits(host, port):
            log("agent.py", "Refused: not a service, a pod or a kubelet", "W", dialID=number, dialAddress=address)
            writer.write(refusal(403, "Forbidden", f"{address} is no service, pod or kubelet of the tenant"))
            return
        writer.write(CONTINUE)
        try:
            await writer.drain()
            target = await asyncio.wait_for(asyncio.open_connection(host, port), DIAL_S)
        except (OSError, TimeoutError) as error:
            reason = str(error) or "timeout"
            log("agent.py", "error dialing backend", "E", dialID=number, dialAddress=address, err=reason)
            writer.write(refusal(502, "Bad Gateway", f"dial {address}: {reason}"))
            return
        writer.write(ESTABLISHED)
        try:
            await join((reader, writer), target)
        finally:
            await close(target[1])


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    keys: Path


def ssh_command(server: Server, remote: Path, local: Path) -> list[str]:
    """An ssh that does one thing: hand connections to `remote`, a socket on the server, on to `local`."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": 3,
        "ExitOnForwardFailure": "yes",
        "GlobalKnownHostsFile": "/dev/null",
        "IdentitiesOnly": "yes",
        "IdentityFile": server.keys / "agent-key",
        "LogLevel": "DEBUG1",  # the only level that tells that the forwarding stands
        "PreferredAuthentications": "publickey",
        "ServerAliveCountMax": 3,
        "ServerAliveInterval": 2,
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "UserKnownHostsFile": server.keys / "known-hosts",
    }
    forward = ["-R", f"{remote}:{local}", "-p", str(server.port), f"{LOGIN}@{server.host}"]
    return ["ssh", "-F", "none", "-N", "-T", *options_words(options), *forward]


class Link:
    """Keeps the connection to a server; comes back within a second when it is lost.

    Where there are several servers, each link keeps to one that no other link of this agent has.
    """

    def __init__(self, server: Server, agent_id: str, local: Path, taken: set[str]) -> None:
        """Takes the names of the servers that links have, which all links share."""
        self._server = server
        self._agent_id = agent_id
        self._local = local
        self._taken = taken
        self.connected = False

    async def _once(self) -> str:
        """Returns why the connection ended."""
        # A name of its own for each connection: an old one that ends late must not take the new one's socket away.
        remote = AGENT_SOCKETS / f"{self._agent_id[:40]}-{secrets.token_hex(4)}.sock"
        process = await asyncio.create_subprocess_exec(
            *ssh_command(self._server, remote, self._local),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        last, name = "no words", ""
        try:
            while process.stderr and (line := await process.stderr.readline()):
                words = line.decode(errors="replace").strip()
                if words.startswith(GREETING):
                    if words in self._taken:
                        return "another link has this server"
                    name = words
                    self._taken.add(name)
                elif "remote forward success" in words:
                    self.connected = True
                    log("agent.py", "Connected", agentID=self._agent_id, server=self._server.host)
                elif words and not words.startswith(CHATTER):
                    last = words.partition(" for listen path")[0]
            await process.wait()
        finally:
            self.connected = False
            self._taken.discard(name)
            if process.returncode is None:
                process.terminate()
                await process.wait()
        return last

    async def keep(self, last_retry_s: float) -> None:
        wait_s, said = FIRST_RETRY_S, ""
        while True:
            started = asyncio.get_running_loop().time()
            reason = await self._once()
            if reason != said:
                log("agent.py", "Not connected", "W", agentID=self._agent_id, reason=reason)
                said = reason
            lasted = asyncio.get_running_loop().time() - started
            wait_s = FIRST_RETRY_S if lasted > 5 else min(last_retry_s, wait_s * 1.5)
            await asyncio.sleep(wait_s)


async def run(options: argparse.Namespace) -> None:
    agent_id = re.sub(r"[^a-z0-9-]", "-", os.environ.get("POD_NAME", "").lower()) or secrets.token_hex(4)
    dialer = Dialer(Policy(options.networks, (*NODE_PORTS, *options.allow_port)), agent_id)
    with contextlib.suppress(FileNotFoundError):
        options.socket.unlink()
    await asyncio.start_unix_server(dialer.serve, str(options.socket), limit=HEAD_LIMIT)
    server, taken = Server(options.proxy_server_host, options.proxy_server_port, options.keys), set[str]()
    links = [Link(server, agent_id, options.socket, taken) for _ in range(options.server_count)]
    pages = {
        "/healthz": lambda: (200, "ok"),
        "/readyz": lambda: (
            (200, "ok") if any(link.connected for link in links) else (503, "not connected to the server")
        ),
    }
    await asyncio.start_server(http(pages), None, options.health_server_port)
    last_retry_s = LAST_RETRY_S if len(links) == 1 else LAST_RETRY_OF_SEVERAL_S
    keeping = [asyncio.create_task(link.keep(last_retry_s)) for link in links]
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    for task in keeping:
        task.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(part) for part in text.split(",") if part)


def main() -> None:
    parser = argparse.ArgumentParser(prog="proxy-agent", description=__doc__)
    parser.add_argument("--proxy-server-host", required=True)
    parser.add_argument("--proxy-server-port", type=int, default=8132)
    parser.add_argument("--server-count", type=int, default=1, help="how many servers stand behind the address")
    parser.add_argument("--health-server-port", type=int, default=8134)
    parser.add_argument("--keys", type=Path, default=Path("/etc/konnectivity"), help="has agent-key and known-hosts")
    parser.add_argument("--networks", type=_networks, default=(), help="the tenant's services and pods: any port there")
    parser.add_argument("--allow-port", type=int, action="append", default=[], help="one more port outside of them")
    parser.add_argument("--socket", type=Path, default=Path("/run/konnectivity/proxy.sock"))
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
