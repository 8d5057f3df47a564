"""The iOS devices of a run, behind an APNs simulator in the process of the clients."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from services.apns_simulator.server import ApnsSimulator
from services.process.clock import Clock, SystemClock
from services.push_simulator.connection import HttpRequest, ScriptedReply
from tests.soak.android_device import RETRY_S, SERVER_ERROR
from tests.soak.ledger import Change, Ledger, Shown, State


class DeviceServer(Protocol):
    """The HTTP interface of the device protocol, for devices without a connection."""

    async def device_request(self, frame: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a frame of the device protocol over HTTP; return the answer frame."""
        ...


class IosDevices(ApnsSimulator):
    """An APNs simulator that records the pushes to each token of one app."""

    def __init__(self, ledger: Ledger, clock: Clock | None = None) -> None:
        super().__init__(clock or SystemClock())
        self.appkey = ""
        self.histories: dict[str, list[Change]] = {}
        self.shown: dict[str, dict[int, Shown]] = {}
        self.frames: Counter[tuple[str, int]] = Counter()
        self._codes: dict[str, str] = {}
        self._ledger = ledger

    def reply_to(self, request: HttpRequest) -> ScriptedReply:
        before = self.received[-1] if self.received else None
        answer = super().reply_to(request)
        if self.received and self.received[-1] is not before:
            received = self.received[-1]
            payload = msgspec.json.decode(received.payload)
            if "carillon" in payload:
                self._codes[received.token] = payload["carillon"]["code"]
                return answer
            msgid = int(received.headers["apns-collapse-id"])
            self.frames[received.token, msgid] += 1
            shown = Shown(msgid, _text(payload), self._ledger.now_ms())
            self.shown[received.token].setdefault(msgid, shown)
            self._ledger.write("sent to APNs", token=received.token, msgid=msgid)
        return answer

    async def register(self, server: DeviceServer, token: str, stags: frozenset[str]) -> None:
        """Register a token over HTTP, and repeat the request until it is answered.

        A repeated hello, whose first answer was lost, needs the code that is pushed to the token.
        """
        self.shown[token] = {}
        asked_ms = self._ledger.now_ms()
        hello = {"type": "hello", "appkey": self.appkey, "token": token}
        welcome = await _request_until_answered(server, hello)
        while welcome["type"] == "error":
            await asyncio.sleep(RETRY_S)
            code = {"code": self._codes[token]} if token in self._codes else {}
            welcome = await _request_until_answered(server, hello | code)
        if stags:
            who = {"appkey": self.appkey, "token": token, "key": welcome["key"]}
            await _request_until_answered(server, {"type": "add_stags", "stags": sorted(stags), **who})
        self.histories[token] = [Change(asked_ms, self._ledger.now_ms(), State(token, stags=stags))]


async def _request_until_answered(server: DeviceServer, frame: Mapping[str, Any]) -> Mapping[str, Any]:
    while True:
        answer = await server.device_request(frame)
        if answer["type"] != "error" or answer.get("reason") == "possession":
            return answer
        assert answer["code"] >= SERVER_ERROR, answer
        await asyncio.sleep(RETRY_S)


def _text(payload: Mapping[str, Any]) -> str:
    shown = payload["aps"].get("alert") or payload["content"]
    return str(shown["body"] if isinstance(shown, Mapping) else shown)
