"""The push service of browsers in a world: the Web Push simulator behind a transport without sockets, and its trouble.

Each device of the app has a subscription. What the service brings to its browser is shown by the system, which replaces
what it shows of the same message; the app cannot see it.
"""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH
from protos.registry.v1.registry_pb2 import ChannelChange, UpdateAppRequest
from services.push_simulator.http1 import CUT, LOST_ANSWER, SILENCE, Http1Connection, SimulatorReply
from services.webpush_simulator.requests import AcceptedMessage
from services.webpush_simulator.server import WebPushSimulator
from tests.simulation.kernel.network.ends import connected
from tests.simulation.kernel.process import CURRENT
from tests.simulation.kernel.world import World
from tests.soak.ledger import Ledger

TROUBLE = ("postpones", "loses", "fails", "away")
"""Kinds of trouble: it refuses until later; loses answers, or does not answer; fails, with errors or by closing the
connection; cannot be reached."""

GRACE_S = 5
"""The setting CARILLON_CHANNEL_GRACE_S, as short as it may be; a frame to a device may be on its way for up to 3 s."""

_HOST, _PORT = "10.9.8.7", 8080
_NO_ANSWER_S = 600.0
_POSTPONED = ((503, "2"), (503, "5"), (429, "1"), (429, ""))
_TROUBLED = 0.7
"""Share of the requests that meet the trouble."""


class SimulatedPushService(WebPushSimulator):
    """The push service, which is outside of the installation and outlives its faults. `trouble`: its kind, or ""."""

    def __init__(self, world: World, ledger: Ledger, delay_s: Callable[[], float]) -> None:
        super().__init__(world.clock(), _HOST, _PORT)
        self.trouble = ""
        self.on_shown: Callable[[str, int, str], None] = lambda token, msgid, content: None
        """Called with the token, the message id and the content of each message that a browser gets."""

        self._loop = world.loop
        self._ledger = ledger
        self._delay_s = delay_s
        self._random = world.random("push service")
        self._others = world.loop.dial
        self._application_key = ""
        world.loop.dial = self._dial

    def change_of(self, appkey: str) -> UpdateAppRequest:
        """Return the change of the app that gives it a key, and lets it call this service."""
        fields = {"key": "new", "contact": "mailto:push@example.org", "hosts": self.authority}
        change = ChannelChange(channel=CHANNEL_WEBPUSH, fields=fields)
        return UpdateAppRequest(appkey=appkey, channels=[change])

    def note_key(self, public_key: str) -> None:
        self._application_key = public_key

    def address_frame(self, token: str) -> Mapping[str, Any]:
        """Return the request by which the device tells its subscription."""
        made = self.subscribe(token, self._application_key)
        keys = {"p256dh": _text(made.p256dh), "auth": _text(made.auth)}
        return {"type": "set_address", "channel": "webpush", "address": self.endpoint(made), "keys": keys}

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        trouble = self.trouble if self._random.random() < _TROUBLED else ""
        token = dict(fields).get(":path", "").rpartition("/")[2]
        reply = self._troubled(self._random, trouble) or super().reply_to(fields, body)
        if trouble == "loses" and reply.status < 300 and not reply.fault:
            reply = reply._replace(fault=LOST_ANSWER)
        self._ledger.write("Web Push", token=token[:8], status=reply.status, fault=reply.fault)
        return reply

    def _troubled(self, random: Random, trouble: str) -> SimulatorReply | None:
        """Return what the service does in place of taking the message, if it does not take it."""
        if trouble == "postpones":
            status, after = random.choice(_POSTPONED)
            return SimulatorReply(status, [("retry-after", after)] if after else [])
        if trouble == "fails":
            return random.choice((SimulatorReply(500, []), SimulatorReply(502, []), SimulatorReply(0, [], fault=CUT)))
        return SimulatorReply(0, [], fault=SILENCE) if trouble == "loses" and random.random() < 1 / 3 else None

    def _bring(self, message: AcceptedMessage) -> None:
        super()._bring(message)
        plaintext = self.received[-1].plaintext
        assert plaintext is not None, "a browser cannot decrypt its message"
        content = json.loads(plaintext)
        self.on_shown(message.token, content["msgid"], content["content"])

    async def _dial(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        if (host, port) != (_HOST, _PORT):
            assert self._others is not None
            return await self._others(factory, host, port)
        process = CURRENT.get()
        assert process is not None
        await asyncio.sleep(_NO_ANSWER_S if self.trouble == "away" else self._delay_s())
        near, _ = connected(self._loop, process, self._delay_s, protocol := factory(), Http1Connection(self))
        return near, protocol


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
