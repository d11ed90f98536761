# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""What both ends share: log lines in klog's shape, HTTP CONNECT's head, and copying between two connections."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

AGENT_SOCKETS = Path("/run/konnectivity/agents")
BANNER = AGENT_SOCKETS / "banner"
GREETING = "tunnel server "
LOGIN = "nobody"  # whom uid 65534 is in the image
HEAD_LIMIT = 8192
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class BadRequestError(Exception):
    """The peer does not speak HTTP CONNECT."""


def log(source: str, message: str, severity: str = "I", **values: object) -> None:
    """Prints a line as klog's InfoS does: a quoted message, then key="value" pairs."""
    now = datetime.datetime.now(datetime.UTC).strftime("%m%d %H:%M:%S.%f")
    pairs = "".join(f' {key}="{value}"' for key, value in values.items())
    print(f'{severity}{now}       1 {source}] "{message}"{pairs}', file=sys.stderr, flush=True)


def options_words(options: Mapping[str, object]) -> list[str]:
    """Returns OpenSSH's options as words of a command."""
    return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]


async def read_head(reader: asyncio.StreamReader) -> str:
    """Returns an HTTP head without its empty last line. Raises BadRequestError where none comes."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
        raise BadRequestError(f"no HTTP head: {error}") from error
    return head[:-4].decode("latin-1")


def connect_target(head: str) -> tuple[str, int]:
    """Returns host and port of a CONNECT request. Raises BadRequestError."""
    match = re.match(r"CONNECT (?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+)):(\d{1,5}) HTTP/1\.[01](?:\r\n|$)", head)
    if not match or not 0 < int(match[3]) < 65536:
        raise BadRequestError(f"not a CONNECT request: {head.splitlines()[0][:100] if head else ''!r}")
    return match[1] or match[2], int(match[3])


def status_of(head: str) -> int:
    match = re.match(r"HTTP/1\.[01] (\d{3})", head)
    if not match:
        raise BadRequestError(f"not an HTTP answer: {head[:100]!r}")
    return int(match[1])


def refusal(status: int, reason: str, text: str) -> bytes:
    body = f"{text}\n".encode()
    return f"HTTP/1.1 {status} {reason}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def join(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter], other: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Copies both ways until both ends are done; a half-closed connection stays half open."""
    await asyncio.gather(_copy(one[0], other[1]), _copy(other[0], one[1]))


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def http(pages: dict[str, Callable[[], tuple[int, str]]]) -> Handler:
    """Takes a function for each path, which returns status and text. Returns a handler that serves them."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(BadRequestError, OSError):
            words = (await read_head(reader)).split(" ")
            page = pages.get(words[1].partition("?")[0]) if len(words) > 1 else None
            status, text = page() if page else (404, "not found")
            writer.write(refusal(status, "OK" if status == 200 else "Not OK", text))
            await writer.drain()
        await close(writer)

    return handle
