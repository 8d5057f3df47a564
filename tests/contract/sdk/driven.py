"""A device of one of the SDKs as a process: JSON lines go in and out, the same for both."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = {
    "python": [sys.executable, str(HERE / "driver.py")],
    "javascript": ["node", "--no-warnings", "--experimental-websocket", str(HERE / "driver.mjs")],
}
BOUND_S = 10.0
Json = dict[str, Any]


class Driven:
    """What the device told is read line by line."""

    def __init__(self, sdk: str, process: asyncio.subprocess.Process) -> None:
        self.sdk = sdk
        self._process = process

    @classmethod
    async def start(cls, sdk: str, url: str, state: str, ca: str | None, options: Mapping[str, object]) -> "Driven":
        """`options`: attributes, heartbeat."""
        process = await asyncio.create_subprocess_exec(
            *PROGRAMS[sdk],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **({"NODE_EXTRA_CA_CERTS": ca} if ca else {})},
        )
        driven = cls(sdk, process)
        driven.tell(do="start", url=url, state=state, ca=ca, **options)
        return driven

    def tell(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def line(self) -> Json:
        """What the device told next: event, push, connect, returned, raised or closed."""
        assert self._process.stdout is not None
        async with asyncio.timeout(BOUND_S):
            told: Json = json.loads(await self._process.stdout.readline())
        return told

    async def next(self, kind: str) -> Any:
        """What it told next, which must be of that kind."""
        told = await self.line()
        assert list(told) == [kind], told
        return told[kind]

    async def event(self, kind: str) -> Json:
        event: Json = await self.next("event")
        assert event["type"] == kind, event
        return event

    async def shown(self) -> str:
        """The next push's content."""
        return str((await self.next("push"))["content"])

    async def welcomed(self) -> None:
        await self.event("welcome")
        assert await self.next("connect") == "welcomed"

    def elapse(self, milliseconds: float) -> None:
        """A wait of that length ends, now or when it begins."""
        self.tell(do="elapse", ms=milliseconds)

    def call(self, method: str, *arguments: Any) -> None:
        """A method by its Python name; `returned` or `raised` follows."""
        self.tell(do="call", method=method, arguments=arguments)

    async def close(self) -> None:
        """Close the device, end the process."""
        self.tell(do="close")
        await self.next("closed")
        async with asyncio.timeout(BOUND_S):
            assert await self._process.wait() == 0

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
