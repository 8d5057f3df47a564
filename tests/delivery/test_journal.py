"""Writing facts: in the log first, then in the state, and the state has no gaps."""

import asyncio
from collections.abc import Sequence

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import PushFact, PushStarted
from protos.push.v1.push_pb2 import Audience, Everyone, PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.journal import Entry, Journal
from services.delivery.state import DeliveryState
from services.runtime.clock import ManualClock
from services.runtime.log import Draft, Partition, Record
from services.runtime.topics import PUSHES
from tests.delivery.conftest import APP, START_MS, idle


class SlowLog:
    """Answers an append when it is told to, in whatever order."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Sequence[int], asyncio.Future[Sequence[int]]]] = []
        self.end = 0

    async def append(self, drafts: Sequence[Draft]) -> Sequence[int]:
        offsets = range(self.end, self.end + len(drafts))
        self.end += len(drafts)
        future: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        self.waiting.append((offsets, future))
        return await future

    def answer(self, which: int) -> None:
        offsets, future = self.waiting.pop(which)
        future.set_result(offsets)


def asked(msgid: int) -> tuple[Record, PushCommand]:
    send = SendPush(msgid=msgid, appkey=APP, audience=Audience(everyone=Everyone()), period_s=60)
    return Record("push-commands", 0, msgid, b"", b""), PushCommand(meta=Meta(time_ms=START_MS), send=send)


def start(msgid: int) -> Entry:
    started = PushStarted(audience=BitMap().serialize(), expires_ms=START_MS)
    return Entry(0, b"", PushFact(msgid=msgid, appkey=APP, partition=0, started=started))


async def test_what_the_log_answers_late_is_never_passed_over() -> None:
    log, state = SlowLog(), DeliveryState([0])
    journal = Journal(log, state, ManualClock(START_MS))  # type: ignore[arg-type]
    for msgid in (1, 2):
        journal.fold(*asked(msgid))
    writes = [asyncio.create_task(journal.write(PUSHES, [start(msgid)])) for msgid in (1, 2)]
    await idle()
    while log.waiting:
        log.answer(-1)
        await idle()
        held = journal.offsets.get(Partition(PUSHES.name, 0), 0)
        assert held == 2 - len(state.waiting)
    await asyncio.gather(*writes)
    assert (held, state.waiting) == (2, {})
