"""A device: it stores its identity, stays connected, gives pushes to the app, and sends the app's requests."""

import asyncio
import contextlib
import itertools
import random as _random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ssl import SSLContext, create_default_context
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from carillon_device.connection import GatewayConnection, open_connection
from carillon_device.deadlines import ANSWER_S, CALLBACK_S, CLOSE_S, Sleep, retry_s, within
from carillon_device.errors import FINAL, DeadlineError, DeviceEndedError, RefusedError, UnavailableError
from carillon_device.frames import ActivityEvent, Frame, Known, ReportEvent
from carillon_device.inbox import Inbox, OnEvent, OnPush
from carillon_device.storage import DeviceState, MemoryStorage, Storage

MAX_REPORTS = 200
"""Reports that a device keeps until the service confirms them; beyond that, the oldest is given up."""

PROOF_ATTEMPTS = 3
PROOF_RETRY_S = 3.0
"""Shortest delay before a proof is fetched again; it doubles, and chance doubles it at most."""

_PROOF_REFUSED = (401, 429)
"""The codes of answers after which another proof may be accepted: it was wrong, or the device handed in too many."""

Proof: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A JWT of the app's server, or a function that fetches one and may be async."""


class Device:
    """A device, which stays connected from `connect` until `close` or a final goodbye.

    `on_push` gets each push once; when it has returned, the push is saved as handled and acknowledged. A push on which
    it raises an error or takes over 30 s is not acknowledged, and the gateway sends it again later. `on_event` gets the
    frames welcome, goodbye, and error where it answers no request, and the device's own events {"type": "disconnected",
    "reason", "retry_ms"} and {"type": "ended", "reason"}. Both may be async; they are called one at a time, in the
    order of the frames.

    `heartbeat_s` is a request; the gateway decides. `ssl` is for wss://; by default the system's authorities are
    trusted. `sleep` gets seconds, `random` returns floats in [0, 1).
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
        self._hello_options = {"device": attributes, "heartbeat": heartbeat_s}
        self._sleep = sleep
        self._random = random
        self._state = DeviceState(storage or MemoryStorage())
        self._inbox = Inbox(self._state, on_push, on_event, self._acknowledge, sleep)
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._reports: dict[int, Frame] = {}
        self._connection: GatewayConnection | None = None
        self._welcomed = asyncio.Event()
        self._closing = False
        self._running: asyncio.Task[None] | None = None
        self._handling: asyncio.Task[None] | None = None

    @property
    def token(self) -> str | None:
        """The token that names the device; None before the first welcome."""
        return self._state.token

    @property
    def key(self) -> str | None:
        """The key that proves that the device owns its token."""
        return self._state.key

    async def connect(self, seconds: float = 30) -> None:
        """Return once the device is welcomed.

        DeviceEndedError: a final goodbye came. DeadlineError: no welcome came in time; the device goes on trying.
        UnavailableError: the device was closed meanwhile. ValueError: the stored state is damaged, or has the form of a
        later version of the SDK.
        """
        if self._running is None:
            self._handling = asyncio.create_task(self._inbox.run())
            self._running = asyncio.create_task(self._stay_connected())
        limit = asyncio.ensure_future(self._sleep(seconds))
        while not (self._welcomed.is_set() or limit.done() or self._running.done()):
            welcomed = asyncio.create_task(self._welcomed.wait())
            await asyncio.wait([welcomed, limit, self._running], return_when=asyncio.FIRST_COMPLETED)
            welcomed.cancel()
        limit.cancel()
        if self._running.done():
            await self.ended()
            raise UnavailableError("the device was closed")
        if not self._welcomed.is_set():
            raise DeadlineError(f"no welcome from {self.url} within {seconds:.0f} s")

    async def ended(self) -> None:
        """Return once the device was closed. DeviceEndedError: a final goodbye ended it."""
        if self._running is not None:
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.result()

    async def close(self) -> None:
        """Acknowledge the handled pushes, then disconnect and do not reconnect."""
        self._closing = True
        if self._running is None or self._handling is None:
            return
        with contextlib.suppress(TimeoutError):
            await within(CLOSE_S, self._inbox.empty(), self._sleep)
        if self._connection is not None:
            with contextlib.suppress(TimeoutError):
                await within(CLOSE_S, self._connection.close(), self._sleep)
        self._running.cancel()
        await asyncio.wait([self._running])
        with contextlib.suppress(TimeoutError):  # pushes that came meanwhile were shown, so save them
            await within(CLOSE_S, self._inbox.empty(), self._sleep)
        self._handling.cancel()

    async def set_alias(self, alias: str, *, proof: Proof | None = None) -> None:
        """Set the alias. All requests raise RefusedError, UnavailableError or DeadlineError.

        `proof` shows that the alias is the user's: a JWT of the app's server, or a function that fetches one. The
        function is called for each attempt; after a proof that is refused, as one that has expired is, it is called
        again with growing delays, PROOF_ATTEMPTS times in all. An error that it raises ends the request.
        """
        await self._prove({"type": "set_alias", "alias": alias}, proof)

    async def clear_alias(self) -> None:
        await self.request({"type": "clear_alias"})

    async def add_tags(self, tags: Sequence[int], *, proof: Proof | None = None) -> None:
        """Add tags; `proof`, as for `set_alias`, for those that address one person."""
        await self._prove({"type": "add_tags", "tags": tags}, proof)

    async def remove_tags(self, tags: Sequence[int]) -> None:
        await self.request({"type": "remove_tags", "tags": tags})

    async def add_stags(self, stags: Sequence[str], *, proof: Proof | None = None) -> None:
        """Add string tags; `proof`, as for `set_alias`, for those that address one person."""
        await self._prove({"type": "add_stags", "stags": stags}, proof)

    async def remove_stags(self, stags: Sequence[str]) -> None:
        await self.request({"type": "remove_stags", "stags": stags})

    async def set_attributes(self, attributes: Mapping[str, str]) -> None:
        await self.request({"type": "set_attributes", "device": attributes})

    async def set_address(self, channel: str, address: str, *, keys: Mapping[str, str] | None = None) -> None:
        """Set where a channel, such as "fcm" or "webpush", reaches the device while it has no connection.

        Call it at each start with what the vendor's SDK returns: one that is known already changes nothing. `keys`: the
        p256dh and auth of a push subscription, for "webpush" alone.
        """
        frame: Frame = {"type": "set_address", "channel": channel, "address": address}
        await self.request(frame if keys is None else {**frame, "keys": keys})

    async def clear_address(self, channel: str) -> None:
        """Remove the address, as when the user turns notifications off."""
        await self.request({"type": "clear_address", "channel": channel})

    async def get_device(self) -> Known:
        return cast(Known, await self.request({"type": "get_device"}))

    def report(self, event: ReportEvent, msgid: int) -> None:
        """Report what the user did with a notification.

        It is sent at once, and over each later connection until the service confirms that it will not be lost.
        """
        self._report({"type": "report", "event": event, "msgid": msgid})

    def activity(self, event: ActivityEvent) -> None:
        """Report how the app is used, as `report` does."""
        self._report({"type": "activity", "event": event})

    async def request(self, frame: Mapping[str, Any], seconds: float = ANSWER_S) -> Frame:
        """Send a frame with a new id; return the ok frame that answers it."""
        number = next(self._ids)
        answered: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.send({**frame, "id": number})
        self._pending[number] = answered
        try:
            answer = await within(seconds, answered, self._sleep)
        except TimeoutError:
            raise DeadlineError(f"no answer to {frame['type']} within {seconds:.0f} s") from None
        finally:
            del self._pending[number]
        if answer["type"] == "error":
            raise RefusedError(answer.get("code", 500), answer.get("desc", ""))
        return answer

    async def _prove(self, frame: Frame, proof: Proof | None) -> None:
        """Send a request with a proof, which is fetched again where the gateway refuses it."""
        if not callable(proof):
            await self.request(frame if proof is None else {**frame, "proof": proof})
            return
        for failures in range(1, PROOF_ATTEMPTS + 1):
            fetched = await self._fetched(proof)
            try:
                await self.request({**frame, "proof": fetched})
            except RefusedError as error:
                if error.code not in _PROOF_REFUSED or failures == PROOF_ATTEMPTS:
                    raise
            else:
                return
            await self._sleep(PROOF_RETRY_S * 2.0 ** (failures - 1) * (1 + self._random()))

    async def _fetched(self, fetch: Callable[[], str | Awaitable[str]]) -> str:
        found = fetch()
        if isinstance(found, str):
            return found
        try:
            return await within(CALLBACK_S, found, self._sleep)
        except TimeoutError:
            raise DeadlineError(f"no proof was fetched within {CALLBACK_S:.0f} s") from None

    def _report(self, frame: Frame) -> None:
        number = next(self._ids)
        self._reports[number] = {**frame, "id": number}
        if len(self._reports) > MAX_REPORTS:
            del self._reports[next(iter(self._reports))]
        with contextlib.suppress(UnavailableError):
            self.send(self._reports[number])

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send a frame unchanged. UnavailableError: no connection."""
        if self._connection is None:
            raise UnavailableError("the device is not connected")
        self._connection.send(frame)

    async def _stay_connected(self) -> None:
        await self._state.load()
        failures = 0
        while True:
            goodbye = await self._connect_once()
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

    async def _connect_once(self) -> Frame:
        """Run one connection from hello to its end; return the goodbye, or {"type": "lost", "reason"}."""
        connection = None
        try:
            connection = await within(ANSWER_S, self._open_connection(), self._sleep)
            return await self._run_connection(connection)
        except UnavailableError as error:
            return {"type": "lost", "reason": str(error)}
        except TimeoutError:
            return {"type": "lost", "reason": f"no answer within {ANSWER_S:.0f} s"}
        finally:
            self._connection = None
            if connection is not None:
                connection.drop()
            for answered in self._pending.values():
                if not answered.done():
                    answered.set_exception(UnavailableError("the connection was lost"))

    async def _open_connection(self) -> GatewayConnection:
        return await open_connection(self.url, self._ssl)

    async def _run_connection(self, connection: GatewayConnection) -> Frame:
        with contextlib.suppress(UnavailableError):  # a full gateway says goodbye before any hello
            connection.send(self._hello())
        first = await within(ANSWER_S, self._first_frame(connection), self._sleep)
        if first["type"] == "goodbye":
            self._inbox.put(first)
            return first
        self._state.token, self._state.key = first["token"], first["key"]
        await self._state.save()
        self._connection = connection
        for report in self._reports.values():
            connection.send(report)
        self._inbox.put(first)
        self._welcomed.set()
        heartbeats = asyncio.create_task(self._send_heartbeats(connection, first["heartbeat"]))
        try:
            while (frame := await connection.next()) is not None:
                if frame["type"] == "goodbye":
                    self._inbox.put(frame)
                    return frame
                self._dispatch(frame)
        finally:
            heartbeats.cancel()
        if heartbeats.done() and not heartbeats.cancelled():
            heartbeats.result()
        raise UnavailableError("connection lost")

    async def _first_frame(self, connection: GatewayConnection) -> Frame:
        while (frame := await connection.next()) is not None:
            if frame["type"] in ("welcome", "goodbye"):
                return frame
            if frame["type"] == "error":
                self._inbox.put(frame)
        raise UnavailableError("connection lost")

    def _hello(self) -> Frame:
        hello: Frame = {"type": "hello", "appkey": self.appkey}
        if self.token is not None and self.key is not None:
            hello |= {"token": self.token, "key": self.key}
        return hello | {name: value for name, value in self._hello_options.items() if value}

    async def _send_heartbeats(self, connection: GatewayConnection, heartbeat_s: float) -> None:
        """Ping at the agreed interval; the first time at a random moment in it, so that devices spread their pings."""
        await self._sleep(heartbeat_s * self._random())
        try:
            while True:
                await within(ANSWER_S, connection.ping(), self._sleep)
                await self._sleep(heartbeat_s)
        finally:
            connection.drop()

    def _dispatch(self, frame: Frame) -> None:
        number = frame.get("id", 0)
        self._reports.pop(number, None)
        answered = self._pending.get(number)
        match frame["type"]:
            case "ok" | "error" if answered is not None:
                if not answered.done():
                    answered.set_result(frame)
            case "push" | "error":
                if not self._inbox.put(frame):
                    self._welcomed.clear()  # this counts as a failed attempt, so that the waits grow
                    raise UnavailableError("too many pushes are waiting")

    def _acknowledge(self, msgids: list[int]) -> None:
        """Acknowledge pushes; without a connection they are sent again and acknowledged then."""
        with contextlib.suppress(UnavailableError):
            self.send({"type": "ack", "msgids": msgids})
