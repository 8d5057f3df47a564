"""A device: keeps its identity, stays connected, gives the app its pushes, asks the service for what the app wishes."""

import asyncio
import contextlib
import itertools
import random as _random
from collections.abc import Callable, Mapping, Sequence
from ssl import SSLContext, create_default_context
from typing import Any, cast
from urllib.parse import urlsplit

from carillon_device.connection import Connection, connected
from carillon_device.errors import FINAL, DeadlineError, DeviceEndedError, RefusedError, UnavailableError
from carillon_device.frames import ActivityEvent, Frame, Known, ReportEvent
from carillon_device.inbox import Inbox, OnEvent, OnPush
from carillon_device.storage import Memory, MemoryStorage, Storage
from carillon_device.waits import ANSWER_S, CALLBACK_S, CLOSE_S, Sleep, retry_s, within


class Device:
    """It stays connected from `connect` until `close` or a final goodbye.

    `on_push` gets each push once; when it has returned, the push is saved as handled and acknowledged. A push on which
    it fails, or takes over 30 s, is not acknowledged and comes again. `on_event` gets the frames welcome, goodbye, and
    error where it answers no request, and the device's own {"type": "disconnected", "reason", "retry_ms"} and
    {"type": "ended", "reason"}. Both may be async; they are called one at a time, in the order of the frames.

    `heartbeat_s` is a wish, the gateway decides. `ssl` is for wss://, default: the system's authorities. `sleep` gets
    seconds, `random` gives floats in [0, 1).
    """

    def __init__(
        self,
        url: str,
        appkey: str,
        *,
        storage: Storage | None = None,
        on_push: OnPush | None = None,
        on_event: OnEvent | None = None,
        attributes: Mapping[str, str] | None = None,
        heartbeat_s: int | None = None,
        ssl: SSLContext | None = None,
        sleep: Sleep = asyncio.sleep,
        random: Callable[[], float] = _random.random,
    ) -> None:
        scheme = urlsplit(url).scheme
        if scheme not in ("ws", "wss"):
            raise ValueError(f"{url!r} is no ws:// or wss:// URL")
        self.url = url
        self.appkey = appkey
        self._ssl = ssl or create_default_context() if scheme == "wss" else None
        self._wishes = {"device": attributes, "heartbeat": heartbeat_s}
        self._sleep = sleep
        self._random = random
        self._memory = Memory(storage or MemoryStorage())
        self._inbox = Inbox(self._memory, on_push, on_event, self._acknowledge, sleep)
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Frame]] = {}
        self._connection: Connection | None = None
        self._welcomed = asyncio.Event()
        self._closing = False
        self._keeping: asyncio.Task[None] | None = None
        self._handling: asyncio.Task[None] | None = None

    @property
    def token(self) -> str | None:
        """The device's name; None before the first welcome."""
        return self._memory.token

    @property
    def key(self) -> str | None:
        """The proof that goes with the token."""
        return self._memory.key

    async def connect(self, seconds: float = 30) -> None:
        """Return once welcomed. DeviceEndedError: sent away for good; DeadlineError: not welcomed in time, still
        trying; UnavailableError: closed meanwhile; ValueError: what was stored is damaged."""
        if self._keeping is None:
            self._handling = asyncio.create_task(self._inbox.run())
            self._keeping = asyncio.create_task(self._keep())
        welcomed = asyncio.create_task(self._welcomed.wait())
        limit = asyncio.ensure_future(self._sleep(seconds))
        await asyncio.wait([welcomed, limit, self._keeping], return_when=asyncio.FIRST_COMPLETED)
        welcomed.cancel()
        limit.cancel()
        if self._keeping.done():
            await self.ended()
            raise UnavailableError("the device was closed")
        if not self._welcomed.is_set():
            raise DeadlineError(f"no welcome from {self.url} within {seconds:.0f} s")

    async def ended(self) -> None:
        """Return when the device was closed; DeviceEndedError when it was sent away for good."""
        if self._keeping is not None:
            await asyncio.wait([self._keeping])
            if not self._keeping.cancelled():
                self._keeping.result()

    async def close(self) -> None:
        """Acknowledge what is handled, then disconnect for good."""
        self._closing = True
        if self._keeping is None or self._handling is None:
            return
        with contextlib.suppress(TimeoutError):
            await within(CLOSE_S, self._inbox.empty(), self._sleep)
        if self._connection is not None:
            with contextlib.suppress(TimeoutError):
                await within(CLOSE_S, self._connection.close(), self._sleep)
        self._keeping.cancel()
        await asyncio.wait([self._keeping])
        with contextlib.suppress(TimeoutError):  # what came while it was closing: shown, so it must be saved
            await within(CLOSE_S, self._inbox.empty(), self._sleep)
        self._handling.cancel()

    async def set_alias(self, alias: str) -> None:
        """This and the other requests raise RefusedError, UnavailableError or DeadlineError."""
        await self.request({"type": "set_alias", "alias": alias})

    async def clear_alias(self) -> None:
        await self.request({"type": "clear_alias"})

    async def add_tags(self, tags: Sequence[int]) -> None:
        await self.request({"type": "add_tags", "tags": tags})

    async def remove_tags(self, tags: Sequence[int]) -> None:
        await self.request({"type": "remove_tags", "tags": tags})

    async def add_stags(self, stags: Sequence[str]) -> None:
        await self.request({"type": "add_stags", "stags": stags})

    async def remove_stags(self, stags: Sequence[str]) -> None:
        await self.request({"type": "remove_stags", "stags": stags})

    async def set_attributes(self, attributes: Mapping[str, str]) -> None:
        await self.request({"type": "set_attributes", "device": attributes})

    async def get_device(self) -> Known:
        return cast(Known, await self.request({"type": "get_device"}))

    def report(self, event: ReportEvent, msgid: int) -> None:
        """Tell what the user did with a notification. UnavailableError: no connection."""
        self.send({"type": "report", "event": event, "msgid": msgid})

    def activity(self, event: ActivityEvent) -> None:
        """Tell how the app is used. UnavailableError: no connection."""
        self.send({"type": "activity", "event": event})

    async def request(self, frame: Mapping[str, Any], seconds: float = ANSWER_S) -> Frame:
        """Send a frame with an id of its own; the ok that answers it."""
        number = next(self._ids)
        answered: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.send({**frame, "id": number})
        self._answers[number] = answered
        try:
            answer = await within(seconds, answered, self._sleep)
        except TimeoutError:
            raise DeadlineError(f"no answer to {frame['type']} within {seconds:.0f} s") from None
        finally:
            del self._answers[number]
        if answer["type"] == "error":
            raise RefusedError(answer.get("code", 500), answer.get("desc", ""))
        return answer

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send a frame as it is. UnavailableError: no connection."""
        if self._connection is None:
            raise UnavailableError("the device is not connected")
        self._connection.send(frame)

    async def _keep(self) -> None:
        await self._memory.load()
        failures = 0
        while True:
            goodbye = await self._once()
            if self._closing:
                return
            failures = 0 if self._welcomed.is_set() else failures + 1
            self._welcomed.clear()
            reason = goodbye["reason"]
            if goodbye["type"] == "goodbye" and reason in FINAL:
                self._inbox.put({"type": "ended", "reason": reason})
                with contextlib.suppress(TimeoutError):
                    await within(CALLBACK_S, self._inbox.empty(), self._sleep)
                raise DeviceEndedError(reason)
            delay_s = retry_s(goodbye.get("retry_after_ms"), failures, self._random())
            self._inbox.put({"type": "disconnected", "reason": reason, "retry_ms": round(delay_s * 1000)})
            await self._sleep(delay_s)

    async def _once(self) -> Frame:
        """One connection, from hello to its end; the goodbye, or {"type": "lost", "reason"}."""
        connection = None
        try:
            connection = await within(ANSWER_S, connected(self.url, self._ssl), self._sleep)
            return await self._converse(connection)
        except UnavailableError as error:
            return {"type": "lost", "reason": str(error)}
        except TimeoutError:
            return {"type": "lost", "reason": f"no answer within {ANSWER_S:.0f} s"}
        finally:
            self._connection = None
            if connection is not None:
                connection.drop()
            for answered in self._answers.values():
                if not answered.done():
                    answered.set_exception(UnavailableError("the connection was lost"))

    async def _converse(self, connection: Connection) -> Frame:
        with contextlib.suppress(UnavailableError):  # a full gateway says goodbye before any hello
            connection.send(self._hello())
        first = await within(ANSWER_S, self._first(connection), self._sleep)
        if first["type"] == "goodbye":
            self._inbox.put(first)
            return first
        self._memory.token, self._memory.key = first["token"], first["key"]
        await self._memory.save()
        self._connection = connection
        self._inbox.put(first)
        self._welcomed.set()
        beating = asyncio.create_task(self._beat(connection, first["heartbeat"]))
        try:
            while (frame := await connection.next()) is not None:
                if frame["type"] == "goodbye":
                    self._inbox.put(frame)
                    return frame
                self._received(connection, frame)
        finally:
            beating.cancel()
        if beating.done() and not beating.cancelled():
            beating.result()
        raise UnavailableError("connection lost")

    async def _first(self, connection: Connection) -> Frame:
        while (frame := await connection.next()) is not None:
            if frame["type"] in ("welcome", "goodbye"):
                return frame
        raise UnavailableError("connection lost")

    def _hello(self) -> Frame:
        hello: Frame = {"type": "hello", "appkey": self.appkey}
        if self.token is not None and self.key is not None:
            hello |= {"token": self.token, "key": self.key}
        return hello | {name: wish for name, wish in self._wishes.items() if wish}

    async def _beat(self, connection: Connection, heartbeat_s: float) -> None:
        """Ping in the agreed rhythm, first at a random moment, so that devices do not beat together."""
        await self._sleep(heartbeat_s * self._random())
        try:
            while True:
                await within(ANSWER_S, connection.ping(), self._sleep)
                await self._sleep(heartbeat_s)
        finally:
            connection.drop()

    def _received(self, connection: Connection, frame: Frame) -> None:
        answered = self._answers.get(frame.get("id", 0))
        match frame["type"]:
            case "ok" | "error" if answered is not None:
                if not answered.done():
                    answered.set_result(frame)
            case "push" | "error":
                if not self._inbox.put(frame):
                    connection.drop()

    def _acknowledge(self, msgids: list[int]) -> None:
        """Without a connection they come again, and are acknowledged then."""
        with contextlib.suppress(UnavailableError):
            self.send({"type": "ack", "msgids": msgids})
