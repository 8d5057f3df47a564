"""The noisy app of bench.fairness: senders in closed loops, and devices, in a process of low priority.

Reads the commands `start`, `stop` and `frames`, one a line. Each is answered by the number of requests of each kind
since the latest start, and the number of frames that the devices have received in all.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from bench.end_to_end.requests import Requests
from testkit.signing import signed

_NICENESS = 10
_BUSY_PAUSE_S = 0.05
"""Pause after a refusal: a client that is told to come back later does not spin."""

KINDS = ("broadcasts", "filters", "statistics", "token lists", "wrong bodies", "too many string tags", "refused")
_REFUSED_AS = {"wrong bodies": 400, "too many string tags": 400}
"""The results of the kinds that are meant to be refused."""

_LATER = (429, 503)
"""Results that tell the client to come back later."""

_TOKENS = 1000
_WRONG_TAGS = 200_000
_STAG_GROUPS, _GROUP_STAGS = 1000, 100
Body = tuple[str, bytes]


class _Device(WSListener):
    """A device that acknowledges its pushes; `frames` counts those of all devices."""

    frames = 0

    def __init__(self, appkey: str) -> None:
        self.welcomed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._appkey = appkey

    def on_ws_connected(self, transport: WSTransport) -> None:
        hello = {"type": "hello", "appkey": self._appkey, "attributes": {"region": "CN-11"}}
        transport.send(WSMsgType.TEXT, json.dumps(hello).encode())

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        event = json.loads(frame.get_payload_as_bytes())
        if event["type"] == "welcome":
            self.welcomed.set_result(event["token"])
        elif event["type"] == "push":
            _Device.frames += 1
            transport.send(WSMsgType.TEXT, json.dumps({"type": "ack", "msgids": [event["msgid"]]}).encode())


class Noise:
    """The senders of the noisy app, each in a closed loop: its kind, and the requests that it posts in turn."""

    def __init__(self, requests: Requests, senders: Sequence[tuple[str, Sequence[Body]]]) -> None:
        self._requests = requests
        self._senders = senders
        self._tasks: list[asyncio.Task[None]] = []
        self.sent: Counter[str] = Counter()

    def start(self) -> None:
        self.sent.clear()
        self._tasks = [asyncio.create_task(self._send(kind, bodies)) for kind, bodies in self._senders]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _send(self, kind: str, bodies: Sequence[Body]) -> None:
        number = 0
        while True:
            path, body = bodies[number % len(bodies)]
            answer = await asyncio.shield(self._requests.post(path, body))
            if answer["result"] == _REFUSED_AS.get(kind, 0):
                self.sent[kind] += 1
                number += 1
            else:
                self.sent["refused"] += 1
                await asyncio.sleep(_BUSY_PAUSE_S if answer["result"] in _LATER else 0)


def push_body(appkey: str, send_to: dict[str, Any], content: str) -> dict[str, Any]:
    return {
        "sendTo": {"appkey": {"android": appkey}, **send_to},
        "msgStyle": {"basic": {"content": content, "is_notif": 1}, "android": {"title": "noise"}},
        "option": {"period": 600},
    }


def senders(options: dict[str, Any], tokens: Sequence[str]) -> list[tuple[str, list[Body]]]:
    """Return the kind and the signed requests of each sender. `tokens`: those of the noisy app's devices."""
    appkey, secret = options["appkey"], options["secret"]

    def push(send_to: dict[str, Any], content: str) -> list[Body]:
        body = json.loads(signed(push_body(appkey, send_to, content), secret))
        return [("/v2/push", json.dumps(body, separators=(",", ":")).encode())]

    listed = {"android": [tokens[number % len(tokens)] for number in range(_TOKENS)]} if tokens else {}
    stags = [
        [f"t{(group * _GROUP_STAGS + place) % 10_000}" for place in range(_GROUP_STAGS)]
        for group in range(_STAG_GROUPS)
    ]
    broadcast = push_body(appkey, {"userScope": 1}, "a broadcast")
    groups, tags = options["groups"], options["tags"]
    filters = {
        name: [[(group * tags + place) % 32_000 + 1 for place in range(tags)] for group in range(groups)]
        for name in ("tag", "not_tag")
    }
    to_tags = push_body(appkey, {"userScope": 6, **filters}, "a filter")
    days = {"timeScope": 2}
    questions: list[tuple[int, dict[str, Any]]] = [
        (2, {"dur": days, "usertype": 0}),
        (3, {"dur": days}),
        (0, {"dur": days}),
        (1, {"msgid": -1}),
    ]
    statistics = [
        ("/v2/statistics", signed({"appkey": appkey, "type": kind, "param": param}, secret))
        for kind, param in questions
    ]
    return [
        *[("broadcasts", [("/v2/push", signed(broadcast, secret))])] * options["broadcasters"],
        *[("filters", [("/v2/push", signed(to_tags, secret))])] * options["filter_senders"],
        *[("statistics", statistics)] * options["readers"],
        *[("token lists", push({"userScope": 5, "token": listed}, "a list"))] * options["token_lists"],
        *[("wrong bodies", push({"userScope": 6, "tag": [[1]] * _WRONG_TAGS}, "wrong"))] * options["wrong_bodies"],
        *[("too many string tags", push({"userScope": 6, "stag": stags}, "tags"))] * options["string_tags"],
    ]


async def main(options: dict[str, Any]) -> None:
    devices = [_Device(options["appkey"]) for _ in range(options["devices"])]
    for device in devices:
        await ws_connect(lambda device=device: device, options["gateway_url"], use_aiofastnet=False)
    mine = senders(options, [await device.welcomed for device in devices])
    requests = Requests(options["port"], len(mine))
    await requests.open()
    noise = Noise(requests, mine)
    loop = asyncio.get_running_loop()
    print(0, flush=True)
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        match line:
            case "start":
                noise.start()
            case "stop":
                await noise.stop()
        print(*(noise.sent[kind] for kind in KINDS), _Device.frames, flush=True)


if __name__ == "__main__":
    os.nice(_NICENESS)
    uvloop.run(main(json.loads(sys.argv[1])))
