"""A receiver of webhooks: an HTTP server that keeps what it has taken, and answers as a script says."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from testkit.ports import free_ports
from testkit.waiting import until_holds


class Posted(NamedTuple):
    """A request that a receiver has read."""

    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def events(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = json.loads(self.body)["data"]["events"]
        return found


Behaviour = Callable[[Posted, asyncio.StreamWriter], Awaitable[bool]]
"""Answers a request, or does not; returns whether the receiver has taken it."""


def answering(status: int, *headers: str, body: bytes = b"") -> Behaviour:
    """Answer with this status; a request is taken with 2xx."""

    async def answer(posted: Posted, writer: asyncio.StreamWriter) -> bool:
        lines = "".join(f"{line}\r\n" for line in headers)
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode() + body)
        await writer.drain()
        return 200 <= status < 300

    return answer


async def closing(posted: Posted, writer: asyncio.StreamWriter) -> bool:
    """Close the connection without an answer."""
    writer.close()
    return False


async def taking_and_closing(posted: Posted, writer: asyncio.StreamWriter) -> bool:
    """Take the request and be killed before the answer."""
    writer.close()
    return True


async def silent(posted: Posted, writer: asyncio.StreamWriter) -> bool:
    """Never answer."""
    await asyncio.Event().wait()
    return False


async def half(posted: Posted, writer: asyncio.StreamWriter) -> bool:
    """Break off in the middle of the answer's head."""
    writer.write(b"HTTP/1.1 200 O")
    await writer.drain()
    writer.close()
    return False


async def garbage(posted: Posted, writer: asyncio.StreamWriter) -> bool:
    """Answer with what is no HTTP."""
    writer.write(b"SSH-2.0-OpenSSH\r\n")
    await writer.drain()
    return False


class WebhookReceiver:
    """`posted`: all requests that were read whole; `taken`: those that it has answered for. `next` scripts answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.posted: list[Posted] = []
        self.taken: list[Posted] = []
        self.always: Behaviour = answering(204)
        self.next: list[Behaviour] = []
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def host(self) -> str:
        """The host as CARILLON_WEBHOOK_HOSTS names it."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/hook"

    @property
    def events(self) -> list[Mapping[str, Any]]:
        """The events of the taken requests, repeated ones too, in the order in which they came."""
        return [event for posted in self.taken for event in posted.events]

    async def until_posted(self, count: int) -> None:
        await until_holds(lambda: len(self.posted) >= count)

    async def until_events(self, count: int) -> None:
        """Return once so many different events are taken."""
        await until_holds(lambda: len({event["id"] for event in self.events}) >= count)

    async def start(self) -> None:
        """Listen, unless it does already."""
        if self._server is not None:
            return
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**20)

    async def stop(self) -> None:
        """Close the listener and all connections, as when the receiver's process is killed."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while not writer.is_closing():
                    await self._answer_one(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        posted = Posted(first.split(" ")[1], headers, body)
        self.posted.append(posted)
        behaviour = self.next.pop(0) if self.next else self.always
        if await behaviour(posted, writer):
            self.taken.append(posted)


@asynccontextmanager
async def webhook_receiver() -> AsyncIterator[WebhookReceiver]:
    receiver = WebhookReceiver(*free_ports(1))
    await receiver.start()
    try:
        yield receiver
    finally:
        await receiver.stop()
