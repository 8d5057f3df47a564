"""Fills the event log of an installation that is not running: devices, and a month of pushes with their outcomes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pyroaring import BitMap

from bench.analytics.history import DAY_MS, DAYS, OUTCOMES_A_RECORD, outcomes
from bench.growth.fill import register
from bench.growth.records import DeviceColumns
from bench.programs import note
from carillon.progress_bar import ProgressBar, progress_bar
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import AndroidStyle, Audience, Everyone, Filter, Kind, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from services.delivery.decide import start
from services.delivery.state.pushes import requested_push
from services.domain.ids import RecordStamp
from services.domain.role import RoleContext
from services.domain.role_context import role_context
from services.domain.settings import Settings, load
from services.domain.topics import PUSH_COMMANDS, PUSHES, TOPICS
from services.log.port import NewRecord
from services.replica.peers import Peers
from testkit.delivery.message_ids import SoleWriterIds

_EDGE, _DELIVERY = RecordStamp("edge"), RecordStamp("delivery")
_STEPS = {
    OutcomeKind.OUTCOME_KIND_SENT: 1.0,
    OutcomeKind.OUTCOME_KIND_RECEIVED: 0.9,
    OutcomeKind.OUTCOME_KIND_SHOWN: 0.5,
    OutcomeKind.OUTCOME_KIND_CLICKED: 0.1,
}
_OUTCOMES_OF_A_DEVICE = sum(_STEPS.values())
_BROADCAST_SHARE = 0.7
_MULTICAST_PART = 100
"""A multicast goes to one device of so many."""
_BYTES_AT_ONCE = 8 * 1024 * 1024


async def fill(env: Mapping[str, str], appkeys: Sequence[str], devices: int, outcome_count: int) -> int:
    """Register the devices of the first app, and write pushes of the last month to them: broadcasts with most of the
    outcomes, and multicasts with the rest. Each other app has ten multicasts without devices. Return the message id
    of a broadcast."""
    settings = load(Settings, env)
    async with role_context(settings, Peers({}, TOPICS)) as context:
        app = context.apps.get(appkeys[0])
        assert app is not None
        columns = await register(context.log, context.clock, app, settings.partitions, {}, devices)
        broadcasts = max(1, round(outcome_count * _BROADCAST_SHARE / _OUTCOMES_OF_A_DEVICE / devices))
        rest = outcome_count * (1 - _BROADCAST_SHARE) / _OUTCOMES_OF_A_DEVICE
        multicasts = max(1, round(rest / max(1, devices // _MULTICAST_PART)))
        note(f"{broadcasts} broadcasts and {multicasts} multicasts are sent")
        with progress_bar(shown=True) as bar:
            bar.begin("pushes and outcomes", None)
            pushes = _Pushes(context, settings.partitions, columns, bar)
            for number in range(multicasts):
                await pushes.send(appkeys[0], Kind.KIND_MULTICAST, number / multicasts, every=_MULTICAST_PART)
            for appkey in appkeys[1:]:
                for number in range(10):
                    await pushes.send(appkey, Kind.KIND_MULTICAST, number / 10, every=0)
            for number in range(broadcasts):
                msgid = await pushes.send(appkeys[0], Kind.KIND_BROADCAST, number / broadcasts)
        return msgid


class _Pushes:
    """Writes pushes as the edge and delivery would have, each with its outcomes."""

    def __init__(self, context: RoleContext, partitions: int, columns: DeviceColumns, bar: ProgressBar) -> None:
        self._context = context
        self._bar = bar
        self._partitions = partitions
        self._ids = SoleWriterIds(context.clock)
        self._random = np.random.default_rng(0)
        counts = np.bincount(columns.partitions, minlength=partitions)
        self._numbers = [np.arange(count) for count in counts]

    async def send(self, appkey: str, kind: Any, part: float, every: int = 1) -> int:
        """Write a push and its outcomes; return its message id.

        `part`: its time as a share of the month, from 0 to 1. `every`: it goes to one device of so many; 0: to none.
        """
        at_ms = self._context.clock.now_ms() - int((DAYS - part * (DAYS - 1)) * DAY_MS)
        is_broadcast = kind == Kind.KIND_BROADCAST
        audience = Audience(everyone=Everyone()) if is_broadcast else Audience(filter=Filter())
        push = SendPush(
            msgid=self._ids.take(1),
            id_count=1,
            appkey=appkey,
            platform=PLATFORM_ANDROID,
            kind=kind,
            audience=audience,
            message=Message(is_notif=True, content="x" * 60, android=AndroidStyle(title="A title", sound=True)),
            period_s=3600,
        )
        command = PushCommand(send=push)
        _EDGE.complete(command.meta, at_ms)
        record = NewRecord(PUSH_COMMANDS.name, 0, str(push.msgid).encode(), command.SerializeToString())
        (offset,) = await self._append([record])
        targets = [
            numbers[self._random.integers(every) :: every] if every else numbers[:0] for numbers in self._numbers
        ]
        requested = requested_push(command, offset, frozenset(range(self._partitions)))
        audiences = {partition: BitMap(numbers.tolist()) for partition, numbers in enumerate(targets)}
        facts = []
        for fact in start(requested, audiences):
            _DELIVERY.complete(fact.meta, at_ms)
            facts.append(NewRecord(PUSHES.name, fact.partition, record.key, fact.SerializeToString()))
        for partition, numbers in enumerate(targets):
            facts += self._outcomes(appkey, push.msgid, partition, numbers, at_ms)
            if sum(len(fact.value) for fact in facts) > _BYTES_AT_ONCE:
                await self._append(facts)
                facts = []
        await self._append(facts)
        return push.msgid

    async def _append(self, new_records: Sequence[NewRecord]) -> list[int]:
        self._bar.advance(len(new_records))
        return await self._context.log.append(new_records)

    def _outcomes(self, appkey: str, msgid: int, partition: int, numbers: Any, at_ms: int) -> Iterator[NewRecord]:
        chance = self._random.random(len(numbers))
        for kind, share in _STEPS.items():
            reached = numbers[chance < share]
            for at in range(0, len(reached), OUTCOMES_A_RECORD):
                some = reached[at : at + OUTCOMES_A_RECORD]
                times_ms = at_ms + kind * 1000 + self._random.integers(0, 600_000, len(some))
                yield outcomes(partition, np.full(len(some), msgid), some, kind, times_ms, appkey)
