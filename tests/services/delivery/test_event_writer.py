"""Facts are written to the log first and then applied to the state, without gaps."""

import asyncio
from collections.abc import Sequence

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import PushFact, PushStarted
from protos.push.v1.push_pb2 import Audience, Everyone, PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.event_writer import EventWriter, NewFact
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import PUSHES, TOPICS
from services.log.port import NewRecord, Partition, Record
from services.process.clock import ManualClock
from testkit.delivery.records import APP, START_MS
from testkit.waiting import run_ready_tasks


class ManualLog:
    """A log that answers each append when the test says so, in any order."""

    def __init__(self) -> None:
        self.topics = TOPICS
        self.waiting: list[tuple[Sequence[int], asyncio.Future[Sequence[int]]]] = []
        self.end = 0

    async def append(self, new_records: Sequence[NewRecord]) -> Sequence[int]:
        offsets = range(self.end, self.end + len(new_records))
        self.end += len(new_records)
        future: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        self.waiting.append((offsets, future))
        return await future

    def answer(self, which: int) -> None:
        offsets, future = self.waiting.pop(which)
        future.set_result(offsets)


def requested(msgid: int) -> tuple[Record, PushCommand]:
    send = SendPush(msgid=msgid, appkey=APP, audience=Audience(everyone=Everyone()), period_s=60)
    return Record("push-commands", 0, msgid, b"", b""), PushCommand(meta=Meta(time_ms=START_MS), send=send)


def start(msgid: int) -> NewFact:
    started = PushStarted(audience=BitMap().serialize(), expires_ms=START_MS)
    return NewFact(0, b"", PushFact(msgid=msgid, appkey=APP, partition=0, started=started))


async def test_offsets_never_skip_a_fact_whose_append_is_answered_late() -> None:
    log, state = ManualLog(), DeliveryState([0])
    events = EventWriter(log, state, ManualClock(START_MS))  # type: ignore[arg-type]
    for msgid in (1, 2):
        events.apply(*requested(msgid))
    writes = [asyncio.create_task(events.write(PUSHES, [start(msgid)])) for msgid in (1, 2)]
    await run_ready_tasks()
    while log.waiting:
        log.answer(-1)
        await run_ready_tasks()
        offset = events.offsets.get(Partition(PUSHES.name, 0), 0)
        assert offset == 2 - len(state.requested)
    await asyncio.gather(*writes)
    assert (offset, state.requested) == (2, {})
