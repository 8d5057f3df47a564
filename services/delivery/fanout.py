"""Sends what is pending to the devices that are connected: a push as it starts, a device's backlog as it comes."""

import asyncio
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from protos.delivery.v1.delivery_pb2 import Connected, OutcomeKind
from services.delivery import decide
from services.delivery.pace import Pace
from services.delivery.parts import BitmapPart, ListedPart
from services.delivery.presence import Presence
from services.delivery.recorder import Recorder
from services.delivery.state import DeliveryState, Push
from services.delivery.stream import GatewayStream
from services.runtime.clock import Clock
from services.runtime.logs import logger

Started = tuple[Push, Sequence[int]]
"""A push, and the partitions in which it has just started and is not over."""

_SENT = OutcomeKind.OUTCOME_KIND_SENT
_DROPPED = OutcomeKind.OUTCOME_KIND_DROPPED
_SLICE = 1000


@dataclass(slots=True)
class _Pacing:
    """A push on its way; `served` are (partition, number) of devices that connected meanwhile."""

    task: "asyncio.Task[None]"
    served: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True)
class _Batch:
    """One push for some connections of one gateway."""

    connections: "array[int]" = field(default_factory=lambda: array("Q"))
    msgids: "array[int]" = field(default_factory=lambda: array("Q"))

    def send(self, stream: GatewayStream, push: Push) -> None:
        shared = len(push.ids) == 1
        stream.send(push.send.message, push.expires_ms, self.connections, self.msgids[:1] if shared else self.msgids)


class Fanout:
    """Writes to gateways and records what it sent. Within one connection a message is sent once.

    That holds because a push starts, and a device connects, without anything else running in between.
    """

    def __init__(self, state: DeliveryState, presence: Presence, recorder: Recorder, clock: Clock, shards: int) -> None:
        self._state = state
        self._presence = presence
        self._recorder = recorder
        self._clock = clock
        self._shards = shards
        self._pacing: dict[int, _Pacing] = {}

    def start(self, started: Sequence[Started]) -> None:
        """Send pushes that have just started to whoever is connected; at their speed, if they have one."""
        self._make_place(started)
        for push, partitions in started:
            if push.send.qps:
                task = asyncio.create_task(self._send_paced(push, partitions))
                self._pacing[push.msgid] = _Pacing(task)
                task.add_done_callback(partial(self._paced, push.msgid))
            else:
                for partition in partitions:
                    self._send(push, partition, self._ready(push, partition))

    def connected(self, stream: GatewayStream, devices: Iterable[Connected]) -> None:
        """Devices came: send each what it has still to get, pushes that several of them get as one message."""
        together: dict[int, tuple[Push, _Batch]] = {}
        for device in devices:
            if self._presence.connect(stream, device):
                self._gather(device, together)
        for push, batch in sorted(together.values(), key=lambda item: item[0].order):
            batch.send(stream, push)

    async def close(self) -> None:
        """Stop pacing; what was not sent is sent after the next start."""
        tasks = [pacing.task for pacing in self._pacing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _gather(self, device: Connected, together: dict[int, tuple[Push, _Batch]]) -> None:
        now_ms = self._clock.now_ms()
        for msgid, push in self._state.pending(device.appkey, device.partition, device.number):
            settling = self._recorder.is_settling(device.partition, msgid, device.number)
            if settling or push.expires_ms <= now_ms:
                continue
            if push.msgid not in together:
                together[push.msgid] = push, _Batch()
            batch = together[push.msgid][1]
            batch.connections.append(device.connection)
            batch.msgids.append(msgid)
            if push.msgid in self._pacing:
                self._pacing[push.msgid].served.add((device.partition, device.number))
            self._recorder.add(device.partition, device.appkey, msgid, device.number, _SENT, now_ms)

    def _make_place(self, started: Sequence[Started]) -> None:
        """Give up the oldest unicast pushes of devices whose mailbox is full."""
        devices = {
            (push.send.appkey, partition, number)
            for push, partitions in started
            for partition in partitions
            if isinstance(part := push.parts[partition], ListedPart)
            for number in part.targets
        }
        for appkey, partition, number in devices:
            is_online = number in self._presence.links(appkey, partition)
            for msgid in decide.overflow(self._state, appkey, partition, number, is_online):
                now_ms = self._clock.now_ms()
                self._recorder.settle(partition, appkey, msgid, number, _DROPPED, now_ms, "mailbox full")

    def _ready(self, push: Push, partition: int) -> Iterable[int]:
        """Devices that may have to be sent the push now."""
        part = push.parts.get(partition)
        if isinstance(part, BitmapPart):
            return part.pending_numbers() & self._presence.online(push.send.appkey, partition)
        return list(part.targets) if part else ()

    def _send(self, push: Push, partition: int, numbers: Iterable[int]) -> int:
        """Send to those of the devices that are connected and have not got it; returns how many there were."""
        part = push.parts.get(partition)
        if part is None:
            return 0
        links = self._presence.links(push.send.appkey, partition)
        batches: dict[GatewayStream, _Batch] = {}
        sent: list[tuple[int, int]] = []
        for number in numbers:
            link = links.get(number)
            for msgid in part.pending_ids(number) if link else ():
                assert link is not None
                if not self._recorder.is_settling(partition, msgid, number):
                    batch = batches.setdefault(link.stream, _Batch())
                    batch.connections.append(link.connection)
                    batch.msgids.append(msgid)
                    sent.append((msgid, number))
        for stream, batch in batches.items():
            batch.send(stream, push)
        self._record(push, partition, sent)
        return len(sent)

    def _record(self, push: Push, partition: int, sent: Sequence[tuple[int, int]]) -> None:
        appkey, now_ms = push.send.appkey, self._clock.now_ms()
        if isinstance(push.parts[partition], BitmapPart):
            self._recorder.add_many(partition, appkey, push.msgid, [number for _, number in sent], _SENT, now_ms)
        else:
            for msgid, number in sent:
                self._recorder.add(partition, appkey, msgid, number, _SENT, now_ms)

    async def _send_paced(self, push: Push, partitions: Sequence[int]) -> None:
        """Send at qps / shards; devices that connect meanwhile are served as they come."""
        pace = Pace(self._clock, push.send.qps / self._shards)
        served = self._pacing[push.msgid].served
        for partition in partitions:
            ready = list(self._ready(push, partition))
            at = 0
            while at < len(ready):
                count = await pace.free(_SLICE)
                await self._recorder.room()
                if push.expires_ms <= self._clock.now_ms():
                    return
                these = ready[at : at + count]
                pace.went(self._send(push, partition, [n for n in these if (partition, n) not in served]))
                at += count

    def _paced(self, msgid: int, task: "asyncio.Task[None]") -> None:
        if self._pacing[msgid].task is task:
            del self._pacing[msgid]
        if not task.cancelled() and (error := task.exception()):
            logger.error("a push stopped on its way; who missed it gets it with the next connection", exc_info=error)
