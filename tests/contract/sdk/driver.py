"""Runs one device of the Python SDK for the tests: reads a command a line, and prints an event a line.

The app raises on the content "fail", never returns from "hang", and waits 5 s on "slow".
"""

import asyncio
import json
import ssl
import sys
from collections.abc import Awaitable
from typing import Any, NamedTuple

from carillon_device import DeadlineError, Device, DeviceEndedError, DeviceError, FileStorage, Push, RefusedError

KINDS = {DeviceEndedError: "ended", RefusedError: "refused", DeadlineError: "deadline"}


def emit(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Wait(NamedTuple):
    """A wait of `ms`, until the clock shows `end_ms`."""

    ms: float
    end_ms: float
    ended: asyncio.Future[None]


class Timers:
    """Waits that end when the test orders it, or when the clock that it moves is past their end."""

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._pending: list[Wait] = []
        self._elapsed: list[float] = []

    async def sleep(self, seconds: float) -> None:
        ms = round(seconds * 1000)
        if ms in self._elapsed:
            self._elapsed.remove(ms)
            return
        wait = Wait(ms, self._now_ms + ms, asyncio.get_running_loop().create_future())
        self._pending.append(wait)
        try:
            await wait.ended
        finally:
            self._pending.remove(wait)

    def elapse(self, ms: float) -> None:
        for wait in self._pending:
            if wait.ms == ms and not wait.ended.done():
                wait.ended.set_result(None)
                return
        self._elapsed.append(ms)

    def move(self, ms: float) -> None:
        self._now_ms += ms
        for wait in self._pending:
            if wait.end_ms <= self._now_ms and not wait.ended.done():
                wait.ended.set_result(None)


class Driver:
    def __init__(self) -> None:
        self._timers = Timers()
        self._device: Device
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            command = json.loads(line)
            match command.pop("do"):
                case "start":
                    self._start(**command)
                case "elapse":
                    self._timers.elapse(command["ms"])
                case "move":
                    self._timers.move(command["ms"])
                    emit(moved=True)
                case "call":
                    task = asyncio.create_task(self._call(command["method"], command["arguments"]))
                    self._tasks.add(task)
                case "close":
                    await self._device.close()
                    emit(closed=True)
                    return

    def _start(
        self, url: str, state: str, ca: str | None, attributes: Any = None, heartbeat: Any = None, chance: float = 0.5
    ) -> None:
        self._device = Device(
            url,
            "1000000001",
            storage=FileStorage(state),
            attributes=attributes,
            heartbeat_s=heartbeat,
            ssl=ssl.create_default_context(cafile=ca) if ca else None,
            on_push=self._push,
            on_event=lambda event: emit(event=event),
            sleep=self._timers.sleep,
            random=lambda: chance,
        )
        self._tasks.add(asyncio.create_task(self._connect()))

    async def _connect(self) -> None:
        try:
            await self._device.connect()
            emit(connect="welcomed")
        except DeviceError as error:
            emit(connect=KINDS.get(type(error), "unavailable"))
        except ValueError:
            emit(connect="storage")

    async def _call(self, method: str, arguments: list[Any]) -> None:
        """Call a method; a last argument {"proof": ...} or {"keys": ...} holds its options."""
        try:
            if arguments and isinstance(arguments[-1], dict) and arguments[-1].keys() & {"proof", "keys"}:
                options = arguments.pop()
                emit(returned=await getattr(self._device, method)(*arguments, **_with_function(options)))
                return
            called = getattr(self._device, method)(*arguments)
            emit(returned=await called if called is not None else None)
        except DeviceError as error:
            emit(raised=[KINDS.get(type(error), "unavailable"), getattr(error, "code", None)])

    def _push(self, push: Push) -> Awaitable[Any] | None:
        emit(push=push)
        match push["content"]:
            case "fail":
                raise ValueError("the app's own error")
            case "hang":
                return asyncio.Event().wait()
            case "slow":
                return self._timers.sleep(5)
        return None


def _with_function(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call; a list of proofs becomes the function that fetches one after the other."""
    proofs = options.get("proof", "")
    if isinstance(proofs, str):
        return options

    async def fetch() -> str:
        return str(proofs.pop(0))

    return {"proof": fetch}


if __name__ == "__main__":
    asyncio.run(Driver().run())
