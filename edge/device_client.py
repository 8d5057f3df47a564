"""A virtual device: what an app's client library does, over the real gateway."""

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Mapping
from random import Random, SystemRandom
from typing import Any

import msgspec
from picows import WSCloseCode, WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from services.runtime.device_protocol import HEARTBEAT_S, SUBPROTOCOL
from services.runtime.errors import CarillonError, DeadlineError, UnavailableError

REMEMBERED = 1000
"""Message ids a device remembers, so that it shows nothing twice."""

FINAL = {
    "unauthorized": "the gateway does not accept this appkey, or this token with this key",
    "replaced": "another connection of the same device took this one's place",
    "protocol": "the gateway did not understand this device",
}
"""Goodbyes that end a device, and what they mean."""

_FIRST_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 30.0
_ANSWER_S = 10.0
_CLOSE_S = 2.0
_encoder = msgspec.json.Encoder()

Event = dict[str, Any]


class DeviceEndedError(CarillonError):
    """The gateway sent this device away for good; `reason` is the goodbye's."""

    def __init__(self, reason: str) -> None:
        super().__init__(FINAL[reason])
        self.reason = reason


class VirtualDevice:
    """One device. It stays connected until `close` or a final goodbye, and keeps its token and key.

    `events` gets every frame of the gateway but the answers to requests, each push once, and the device's own
    {"type": "disconnected", "reason", "retry_ms"} and {"type": "ended", "reason"}.
    """

    def __init__(
        self,
        url: str,
        appkey: str,
        *,
        token: str | None = None,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        acknowledge: bool = True,
        random: Random | None = None,
    ) -> None:
        self.url = url
        self.appkey = appkey
        self.token = token
        self.key = key
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._attributes = dict(attributes or {})
        self._acknowledge = acknowledge
        self._random = random or SystemRandom()
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Event]] = {}
        self._heartbeat_s = HEARTBEAT_S
        self._transport: WSTransport | None = None
        self._goodbye: Event | None = None
        self._welcomed = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    async def connect(self, seconds: float = 30) -> None:
        """Return once welcomed. DeviceEndedError: sent away for good; DeadlineError: not welcomed in time;
        UnavailableError: closed meanwhile."""
        self._keeping = self._keeping or asyncio.create_task(self._keep())
        welcomed = asyncio.create_task(self._welcomed.wait())
        await asyncio.wait([welcomed, self._keeping], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        welcomed.cancel()
        if self._keeping.cancelled():
            raise UnavailableError("the device was closed")
        if self._keeping.done():
            self._keeping.result()
        if not self._welcomed.is_set():
            raise DeadlineError(f"no welcome from {self.url} within {seconds:.0f} s")

    async def ended(self) -> None:
        """Return when the device was closed; DeviceEndedError when it was sent away for good."""
        if self._keeping is not None:
            await asyncio.wait([self._keeping])
            if not self._keeping.cancelled():
                self._keeping.result()

    async def request(self, frame: Mapping[str, Any], seconds: float = _ANSWER_S) -> Event:
        """Send a frame with an id of its own; the answer, ok or error. UnavailableError: the connection is gone."""
        number = next(self._ids)
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        try:
            self.send({**frame, "id": number})
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise DeadlineError(f"no answer to {frame['type']} within {seconds:.0f} s") from None
        finally:
            del self._answers[number]

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send a frame that is not answered, such as a report or an activity."""
        if self._transport is None:
            raise UnavailableError("the device is not connected")
        self._transport.send(WSMsgType.TEXT, _encoder.encode(frame))

    async def close(self) -> None:
        """Disconnect for good."""
        if self._keeping is None:
            return
        if self._transport is not None:
            self._transport.send_close(WSCloseCode.OK)
            await asyncio.wait([asyncio.ensure_future(self._transport.wait_disconnected())], timeout=_CLOSE_S)
        self._keeping.cancel()
        await asyncio.wait([self._keeping])

    async def _keep(self) -> None:
        failures = 0
        while True:
            self._goodbye = None
            try:
                reason = await self._once()
            except (OSError, WSError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            failures = 0 if self._welcomed.is_set() else failures + 1
            self._welcomed.clear()
            goodbye: Event = self._goodbye or {}
            if goodbye.get("reason") in FINAL:
                self.events.put_nowait({"type": "ended", "reason": goodbye["reason"]})
                raise DeviceEndedError(goodbye["reason"])
            jitter_s = self._random.uniform(0, min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2**failures))
            delay_s = goodbye.get("retry_after_ms", 0) / 1000 or jitter_s
            self.events.put_nowait({"type": "disconnected", "reason": reason, "retry_ms": round(delay_s * 1000)})
            await asyncio.sleep(delay_s)

    async def _once(self) -> str:
        """One connection, from hello to its end; says why it ended."""
        transport, _ = await ws_connect(
            lambda: _Listener(self),
            self.url,
            use_aiofastnet=False,
            read_buffer_init_size=2048,
            extra_headers={"Sec-WebSocket-Protocol": SUBPROTOCOL},
        )
        self._transport = transport
        beating = asyncio.create_task(self._beat(transport))
        try:
            self._hello()
            await transport.wait_disconnected()
        finally:
            beating.cancel()
            self._transport = None
            transport.disconnect(graceful=False)
            for future in self._answers.values():
                if not future.done():
                    future.set_exception(UnavailableError("the connection was lost"))
        return str((self._goodbye or {}).get("reason", "connection lost"))

    def _hello(self) -> None:
        hello: Event = {"type": "hello", "appkey": self.appkey}
        if self.token is not None and self.key is not None:
            hello |= {"token": self.token, "key": self.key}
        if self._attributes:
            hello["device"] = self._attributes
        self.send(hello)

    async def _beat(self, transport: WSTransport) -> None:
        """Ping in the gateway's rhythm, the first time at a random moment, so that devices do not beat together."""
        await self._welcomed.wait()
        await asyncio.sleep(self._heartbeat_s * self._random.random())
        while True:
            transport.send_ping()
            await asyncio.sleep(self._heartbeat_s)

    def received(self, payload: bytes) -> None:
        """What the gateway sent."""
        frame: Event = msgspec.json.decode(payload)
        match frame["type"]:
            case "ok" | "error" if (future := self._answers.get(frame.get("id", 0))) is not None:
                if not future.done():
                    future.set_result(frame)
                return
            case "welcome":
                self.token, self.key = frame["token"], frame["key"]
                self._heartbeat_s = frame["heartbeat"]
                self._welcomed.set()
            case "goodbye":
                self._goodbye = frame
            case "push" if not self._is_new(frame):
                return
        self.events.put_nowait(frame)

    def _is_new(self, push: Event) -> bool:
        """Acknowledge, every time; True the first time."""
        msgid = push["msgid"]
        if self._acknowledge:
            self.send({"type": "ack", "msgids": [msgid]})
        if msgid in self._seen:
            return False
        self._seen[msgid] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        if self._acknowledge and push["is_notif"]:
            self.send({"type": "report", "event": "shown", "msgid": msgid})
        return True


class _Listener(WSListener):
    def __init__(self, device: VirtualDevice) -> None:
        self._device = device

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            self._device.received(frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()
