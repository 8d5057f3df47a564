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

KINDS = ("broadcasts", "filters", "statistics", "refused")
Body = tuple[str, bytes]


class _Device(WSListener):
    """A device that acknowledges its pushes; `frames` counts those of all devices."""

    frames = 0

    def __init__(self, appkey: str) -> None:
        self.welcomed = asyncio.get_running_loop().create_future()
        self._appkey = appkey

    def on_ws_connected(self, transport: WSTransport) -> None:
        hello = {"type": "hello", "appkey": self._appkey, "attributes": {"region": "CN-11"}}
        transport.send(WSMsgType.TEXT, json.dumps(hello).encode())

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        event = json.loads(frame.get_payload_as_bytes())
        if event["type"] == "welcome":
            self.welcomed.set_result(None)
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
            if answer["result"]:
                self.sent["refused"] += 1
                await asyncio.sleep(_BUSY_PAUSE_S)
            else:
                self.sent[kind] += 1
                number += 1


def push_body(appkey: str, send_to: dict[str, Any], content: str) -> dict[str, Any]:
    return {
        "sendTo": {"appkey": {"android": appkey}, **send_to},
        "msgStyle": {"basic": {"content": content, "is_notif": 1}, "android": {"title": "noise"}},
        "option": {"period": 600},
    }


def senders(options: dict[str, Any]) -> list[tuple[str, list[Body]]]:
    """Return the kind and the signed requests of each sender."""
    appkey, secret = options["appkey"], options["secret"]
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
    ]


async def main(options: dict[str, Any]) -> None:
    devices = [_Device(options["appkey"]) for _ in range(options["devices"])]
    for device in devices:
        await ws_connect(lambda device=device: device, options["gateway_url"], use_aiofastnet=False)
        await device.welcomed
    mine = senders(options)
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
