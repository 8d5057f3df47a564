"""Drives a device of an SDK in a process of its own; commands and events are JSON lines, the same for all."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from testkit.gateway.scripted_gateway import ScriptedConnection, ScriptedGateway
from testkit.kotlin_sdk import kotlin_sdk, okhttp_sdk
from testkit.programs import needed
from testkit.repository import ROOT
from testkit.swift_sdk import swift_sdk

HERE = Path(__file__).parent
PROGRAMS: Mapping[str, Callable[[str | None], list[str]]] = {
    "python": lambda _: [sys.executable, str(HERE / "driver.py")],
    "javascript": lambda _: [needed("node"), "--no-warnings", "--experimental-websocket", str(HERE / "driver.mjs")],
    "kotlin": lambda _: kotlin_sdk().command("dev.carillon.device.DriverKt"),
    "okhttp": lambda _: okhttp_sdk().command("dev.carillon.okhttp.DriverKt"),
    "swift": lambda ca: swift_sdk().driver(ca),
    "webpush": lambda _: [needed("node"), "--no-warnings", str(HERE / "driver_webpush.mjs")],
}
"""By SDK, its driver's command line, given a file of authorities. It skips the test where a program is missing."""

BOUND_S = 60.0
Json = dict[str, Any]


class DrivenDevice:
    """The process of one device. Every wait has a bound."""

    def __init__(self, sdk: str, process: asyncio.subprocess.Process) -> None:
        self.sdk = sdk
        self._process = process

    @classmethod
    async def start(
        cls, sdk: str, url: str, state: str, ca: str | None, options: Mapping[str, object]
    ) -> "DrivenDevice":
        """Start a device; `options` are attributes, heartbeat and chance."""
        process = await asyncio.create_subprocess_exec(
            *PROGRAMS[sdk](ca),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **({"NODE_EXTRA_CA_CERTS": ca} if ca else {})},
        )
        device = cls(sdk, process)
        device.command(do="start", url=url, state=state, ca=ca, **options)
        return device

    def command(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def line(self) -> Json:
        """Return the next line; its one key is event, push, connect, moved, returned, raised or closed."""
        assert self._process.stdout is not None
        async with asyncio.timeout(BOUND_S):
            line: Json = json.loads(await self._process.stdout.readline())
        return line

    async def next(self, kind: str) -> Any:
        """Return the value of the next line, which must be of this kind."""
        line = await self.line()
        assert list(line) == [kind], line
        return line[kind]

    async def event(self, kind: str) -> Json:
        """Return the next line, which must be an event of this type."""
        event: Json = await self.next("event")
        assert event["type"] == kind, event
        return event

    async def retry_ms(self) -> int:
        """Return how long the device waits before it reconnects."""
        return int((await self.event("disconnected"))["retry_ms"])

    async def shown(self) -> str:
        """Return the content of the push that the next line must hold."""
        return str((await self.next("push"))["content"])

    async def welcomed(self) -> None:
        await self.event("welcome")
        assert await self.next("connect") == "welcomed"

    def elapse(self, milliseconds: float) -> None:
        """End a wait of that length, at once or when it begins."""
        self.command(do="elapse", ms=milliseconds)

    async def move(self, milliseconds: float) -> None:
        """Move the device's clock; return once the waits that end by then have ended."""
        self.command(do="move", ms=milliseconds)
        await self.next("moved")

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method by its Python name; a line `returned` or `raised` follows."""
        self.command(do="call", method=method, arguments=arguments)

    async def close(self) -> None:
        """Close the device and end the process."""
        self.command(do="close")
        await self.next("closed")
        async with asyncio.timeout(BOUND_S):
            assert await self._process.wait() == 0

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


def vectors(name: str) -> Any:
    """Return what all SDKs compute alike, from a file of `sdk/conformance/vectors`."""
    return json.loads((ROOT / f"sdk/conformance/vectors/{name}.json").read_text())


StartDevice = Callable[..., Awaitable[DrivenDevice]]


async def connected(
    start_device: StartDevice, gateway: ScriptedGateway, **welcome: Any
) -> tuple[DrivenDevice, ScriptedConnection]:
    """Start a device, welcome it with these fields, and return it with its connection."""
    device = await start_device()
    connection = await gateway.welcome_next(**welcome)
    await device.welcomed()
    return device, connection
