"""Reads server-sent events of the console as a browser does, over ASGI."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.console.conftest import Browser

BOUND_S = 60


class Event(NamedTuple):
    name: str
    data: str


class EventStream:
    """An answer that lasts: its status and headers, and its events as they come. None: the stream has ended."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.comments = 0
        self._started = asyncio.Event()
        self._left = asyncio.Event()
        self._asked = False

    async def run(self, application: Any, browser: Browser, path: str, **more_headers: str) -> None:
        cookies = "; ".join(f"{name}={value}" for name, value in browser.http.cookies.items())
        path, _, query = path.partition("?")
        headers = {"cookie": cookies, "accept": "text/event-stream", "host": "console"}
        if "accept-language" in browser.http.headers:
            headers["accept-language"] = browser.http.headers["accept-language"]
        headers |= {name.replace("_", "-"): value for name, value in more_headers.items()}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("192.0.2.9", 5000),
            "server": ("console", 80),
        }
        await application(scope, self._receive, self._send)
        self.events.put_nowait(None)

    async def started(self) -> None:
        async with asyncio.timeout(BOUND_S):
            await self._started.wait()

    async def next(self, name: str) -> str:
        """Return the data of the next event of this name; those before it are left out."""
        async with asyncio.timeout(BOUND_S):
            while (event := await self.events.get()) is not None:
                if event.name == name:
                    return event.data
        raise AssertionError(f"the stream ended without the event {name}")

    async def end(self) -> list[str]:
        """Wait for the end of the stream; return the names of the events before it."""
        names = []
        async with asyncio.timeout(BOUND_S):
            while (event := await self.events.get()) is not None:
                names.append(event.name)
        return names

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            self._started.set()
            return
        for block in message.get("body", b"").decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            self.comments += "" in fields
            if "event" in fields:
                self.events.put_nowait(Event(fields["event"], fields.get("data", "")))


@asynccontextmanager
async def event_stream(application: Any, browser: Browser, path: str, **headers: str) -> AsyncIterator[EventStream]:
    """Open a stream; it is left on exit."""
    stream = EventStream()
    running = asyncio.create_task(stream.run(application, browser, path, **headers))
    try:
        await stream.started()
        yield stream
    finally:
        stream.leave()
        running.cancel()
        await asyncio.wait([running])
