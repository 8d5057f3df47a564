"""Writes logs of one kind of work each, such as broadcasts or registrations, as the roles would have written them."""

import json
from array import array
from collections.abc import Iterator

import numpy as np
from pyroaring import BitMap

from bench.growth.records import DeviceColumns, push, push_record, starts
from protos.delivery.v1.delivery_pb2 import DeliveryFact, OutcomeKind, Outcomes, PushFact, PushStarted
from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_OPENED, SessionBatch, SessionEvent, SessionFact
from protos.push.v1.push_pb2 import Audience, Everyone, Filter, Kind, PushCommand, StagGroup
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import Attributes, Device, DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.outcome_recorder import OutcomeColumns
from services.domain.ids import RecordStamp
from services.domain.topics import DELIVERIES, DEVICES, PUSHES, SESSIONS, device_key
from services.log.port import Log, NewRecord
from services.process.clock import SystemClock
from testkit.delivery.message_ids import SoleWriterIds

PARTITIONS = 32
APP = "1000000001"
LISTED = 1000
"""Targets of a token list, the most of a request."""

_BATCH_EVENTS = 10
_ALIASED = 2
_FANNED_OUT = 200
_AT_ONCE = 200
_RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED


def request_of(targets: int) -> str:
    """Return a request as it is stored with its push."""
    basic = {"content": "x" * 60, "is_notif": 1}
    request = {
        "sendTo": {"appkey": {"android": APP}, "userScope": 3, "regId": ["x" * 32] * targets},
        "msgStyle": {"basic": basic, "android": {"title": "A title", "sound": True, "click_action": 1}},
        "option": {"period": 604_800},
        "requestId": "x" * 32,
    }
    return json.dumps(request)


class Work:
    """Appends one kind of work to the log of an installation with `devices` devices; each public method is a kind."""

    def __init__(self, log: Log, devices: int) -> None:
        self._log = log
        self._each = devices // PARTITIONS
        self._clock = SystemClock()
        self._stamp = RecordStamp("bench")
        self._ids = SoleWriterIds(self._clock)
        self._random = np.random.default_rng(1)

    async def broadcasts(self) -> int:
        """Append broadcasts that every device has received, and return their number."""
        return await self._fanned_out(Kind.KIND_BROADCAST, Audience(everyone=Everyone()), 1)

    async def multicasts(self) -> int:
        """Append pushes by a tag that every second device has, and that these have received."""
        tagged = Audience(filter=Filter(stags=[StagGroup(stags=["a tag"])]))
        return await self._fanned_out(Kind.KIND_MULTICAST, tagged, 2)

    async def lists(self) -> int:
        """Append pushes to lists of LISTED tokens, with the requests as they are stored."""
        return await self._listed(max(20, self._each // 8), LISTED)

    async def unicasts(self) -> int:
        """Append pushes to one device each."""
        return await self._listed(self._each * PARTITIONS // 4, 1)

    async def devices(self) -> int:
        """Append the registrations of all devices, of which each second one has an alias of its own."""
        await self._append(self._devices())
        return self._each * PARTITIONS

    async def sessions(self) -> int:
        """Append the registrations of all devices and one connection of each; return the number of connections."""
        count = await self.devices()
        await self._append(self._sessions())
        return count

    async def _append(self, new_records: Iterator[NewRecord]) -> None:
        batch: list[NewRecord] = []
        for new_record in new_records:
            batch.append(new_record)
            if len(batch) == 10 * _AT_ONCE:
                await self._log.append(batch)
                batch = []
        await self._log.append(batch)

    def _devices(self) -> Iterator[NewRecord]:
        now_ms = self._clock.now_ms()
        attributes = Attributes(region="广东省", brand="Acme", os_version="14", app_version="2.1")
        for number in range(self._each):
            for partition in range(PARTITIONS):
                token = f"{number:08x}{partition:04x}{'0' * 20}"
                device = Device(
                    appkey=APP,
                    token=token,
                    platform=PLATFORM_ANDROID,
                    partition=partition,
                    number=number,
                    registered_ms=now_ms,
                    stags=["a tag"],
                    attributes=attributes,
                )
                if number % _ALIASED == 0:
                    device.alias, device.alias_set_ms = f"user {token}", now_ms
                fact = DeviceFact(meta=self._meta(), device=device)
                yield NewRecord(DEVICES.name, partition, device_key(APP, token), fact.SerializeToString())

    def _sessions(self) -> Iterator[NewRecord]:
        now_ms = self._clock.now_ms()
        for first in range(0, self._each, _BATCH_EVENTS):
            for partition in range(PARTITIONS):
                events = [
                    SessionEvent(
                        appkey=APP,
                        number=number,
                        kind=SESSION_EVENT_KIND_OPENED,
                        time_ms=now_ms,
                        connection=number + 1,
                    )
                    for number in range(first, min(first + _BATCH_EVENTS, self._each))
                ]
                fact = SessionFact(meta=self._meta(), batch=SessionBatch(events=events))
                yield NewRecord(SESSIONS.name, partition, str(partition).encode(), fact.SerializeToString())

    async def _listed(self, count: int, targets: int) -> int:
        for at in range(0, count, _AT_ONCE):
            commands = []
            for _ in range(min(_AT_ONCE, count - at)):
                numbers = self._random.integers(0, self._each, targets).astype(np.uint32)
                partitions = self._random.integers(0, PARTITIONS, targets).astype(np.uint16)
                command = push(self._ids, APP, DeviceColumns(partitions, numbers), self._clock.now_ms())
                command.send.request_json = request_of(targets)
                commands.append(command)
            offsets = await self._log.append([push_record(command) for command in commands])
            for command, offset in zip(commands, offsets, strict=True):
                await self._log.append(starts(command, offset, PARTITIONS))
        return count

    async def _fanned_out(self, kind: "Kind.ValueType", audience: Audience, every: int) -> int:
        for _ in range(_FANNED_OUT):
            command = push(self._ids, APP, DeviceColumns(np.zeros(0, np.uint16), np.zeros(0, np.uint32)), 0)
            command.meta.time_ms = self._clock.now_ms()
            command.send.kind, command.send.id_count = kind, 1
            command.send.audience.CopyFrom(audience)
            await self._log.append([push_record(command)])
            bitmap = BitMap(range(0, self._each, every))
            await self._log.append([self._started(command, partition, bitmap) for partition in range(PARTITIONS)])
            await self._log.append([self._received(command, partition, bitmap) for partition in range(PARTITIONS)])
        return _FANNED_OUT

    def _started(self, command: PushCommand, partition: int, audience: BitMap) -> NewRecord:
        started = PushStarted(
            audience=audience.serialize(), count=len(audience), expires_ms=command.meta.time_ms + 3_600_000
        )
        fact = PushFact(meta=self._meta(), msgid=command.send.msgid, appkey=APP, partition=partition, started=started)
        return NewRecord(PUSHES.name, partition, str(command.send.msgid).encode(), fact.SerializeToString())

    def _received(self, command: PushCommand, partition: int, audience: BitMap) -> NewRecord:
        columns = OutcomeColumns()
        columns.add_many(command.send.msgid, array("I", audience), _RECEIVED, command.meta.time_ms)
        fact = DeliveryFact(meta=self._meta(), outcomes=Outcomes(apps=columns.batches(APP)))
        return NewRecord(DELIVERIES.name, partition, str(partition).encode(), fact.SerializeToString())

    def _meta(self) -> Meta:
        meta = Meta()
        self._stamp.complete(meta, self._clock.now_ms())
        return meta
