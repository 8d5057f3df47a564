"""Sends what is pending to the devices that are connected: a push as it starts, a device's backlog as it comes."""

import asyncio
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import Connected, OutcomeKind
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.delivery.parts import BitmapPart
from services.delivery.presence import Link, Presence
from services.delivery.recorder import Recorder
from services.delivery.state import DeliveryState, Push
from services.delivery.stream import GatewayStream
from services.runtime.clock import Clock

_TICK_MS = 20


class Fanout:
    """Writes to gateways and records what it sent. Within one connection a message is sent once."""

    def __init__(self, state: DeliveryState, presence: Presence, recorder: Recorder, clock: Clock, shards: int) -> None:
        self._state = state
        self._presence = presence
        self._recorder = recorder
        self._clock = clock
        self._shards = shards
        self._pacing: dict[int, tuple[asyncio.Task[None], dict[int, BitMap]]] = {}

    def start(self, push: Push) -> None:
        """Send a push that has just started to whoever is connected; at its speed, if it has one."""
        if push.send.platform == PLATFORM_IOS:
            return
        if push.send.qps == 0:
            for partition in list(push.parts):
                self._send(push, partition, self._ready(push, partition))
        elif push.msgid not in self._pacing:
            task = asyncio.create_task(self._pace(push))
            self._pacing[push.msgid] = (task, {})
            task.add_done_callback(lambda _: self._pacing.pop(push.msgid, None))

    def connected(self, stream: GatewayStream, devices: Iterable[Connected]) -> None:
        """Devices came: send each what it has still to get, pushes that several of them get as one message."""
        together: dict[int, tuple[Push, array[int], array[int]]] = {}
        now_ms = self._clock.now_ms()
        for device in devices:
            if not self._presence.connect(stream, device):
                continue
            for msgid, push in self._state.pending(device.appkey, device.partition, device.number):
                if push.expires_ms <= now_ms:
                    continue
                _, connections, msgids = together.setdefault(push.msgid, (push, array("Q"), array("Q")))
                connections.append(device.connection)
                msgids.append(msgid)
                self._note_paced(push, device.partition, device.number)
                self._recorder.add(
                    device.partition, device.appkey, msgid, device.number, OutcomeKind.OUTCOME_KIND_SENT, now_ms
                )
        for push, connections, msgids in sorted(together.values(), key=lambda item: item[0].order):
            stream.send(push.send.message, push.expires_ms, connections, msgids)

    async def close(self) -> None:
        """Stop pacing; what was not sent is sent after the next start."""
        tasks = [task for task, _ in self._pacing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ready(self, push: Push, partition: int) -> BitMap:
        part = push.parts.get(partition)
        return part.pending_numbers() & self._presence.online(push.send.appkey, partition) if part else BitMap()

    def _send(self, push: Push, partition: int, numbers: BitMap) -> None:
        part = push.parts[partition]
        links = [(number, link) for number in numbers if (link := self._link(push, partition, number))]
        if not links:
            return
        now_ms = self._clock.now_ms()
        appkey = push.send.appkey
        if isinstance(part, BitmapPart):
            for stream, group in _by_stream(links):
                stream.send(push.send.message, push.expires_ms, group, array("Q", [push.msgid]))
            sent = numpy.fromiter((number for number, _ in links), numpy.uint32, len(links))
            self._recorder.add_many(partition, appkey, push.msgid, sent, OutcomeKind.OUTCOME_KIND_SENT, now_ms)
            return
        for number, link in links:
            for msgid in part.pending_ids(number):
                one = array("Q", [link.connection])
                link.stream.send(push.send.message, push.expires_ms, one, array("Q", [msgid]))
                self._recorder.add(partition, appkey, msgid, number, OutcomeKind.OUTCOME_KIND_SENT, now_ms)

    def _link(self, push: Push, partition: int, number: int) -> Link | None:
        return self._presence.link(push.send.appkey, partition, number)

    def _note_paced(self, push: Push, partition: int, number: int) -> None:
        if push.msgid in self._pacing:
            self._pacing[push.msgid][1].setdefault(partition, BitMap()).add(number)

    async def _pace(self, push: Push) -> None:
        """Send at qps / shards, in slices of a tick; devices that connect meanwhile were served as they came."""
        await asyncio.sleep(0)
        per_ms = push.send.qps / self._shards / 1000
        sent = self._pacing[push.msgid][1]
        started_ms = self._clock.now_ms()
        done = 0
        for partition, number in self._paced_targets(push, sent):
            while done >= 1 + (self._clock.now_ms() - started_ms) * per_ms:
                await self._clock.sleep_until(self._clock.now_ms() + _TICK_MS)
            if push.expires_ms <= self._clock.now_ms():
                return
            part = push.parts.get(partition)
            if part and part.pending_ids(number) and number not in sent.get(partition, ()):
                self._send(push, partition, BitMap([number]))
                done += 1

    @staticmethod
    def _paced_targets(push: Push, sent: dict[int, BitMap]) -> Iterator[tuple[int, int]]:
        for partition in sorted(push.parts):
            part = push.parts.get(partition)
            if part is not None:
                for number in part.pending_numbers() - sent.get(partition, BitMap()):
                    yield partition, number


def _by_stream(links: Sequence[tuple[int, Link]]) -> Iterator[tuple[GatewayStream, "array[int]"]]:
    groups: dict[GatewayStream, array[int]] = {}
    for _, link in links:
        groups.setdefault(link.stream, array("Q")).append(link.connection)
    yield from groups.items()
