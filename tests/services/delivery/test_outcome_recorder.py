"""The outcome recorder: columnar batches, back-pressure, and nothing lost at a stop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos.registry.v1.apps_pb2 import Channel
from services.delivery import outcome_recorder
from services.delivery.event_writer import EventWriter
from services.delivery.outcome_recorder import MAX_ROWS, REASON_CHARS, OutcomeRecorder
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import DELIVERIES, TOPICS, decode
from services.errors import BusyError, UnavailableError
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from testkit.delivery.records import APP, FAILED, RECEIVED, SENT, START_MS, NumberedDevice, OutcomeRow, outcome_rows
from testkit.waiting import run_ready_tasks


class FaultyLog:
    """A log whose appends raise the errors in `errors`, the last first, and wait while `open` is not set."""

    def __init__(self, log: SqliteLog) -> None:
        self.log, self.topics = log, log.topics
        self.errors: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()
        self.append_called = asyncio.Event()

    async def append(self, new_records: list[NewRecord]) -> list[int]:
        self.append_called.set()
        if self.errors:
            raise self.errors.pop()
        await self.open.wait()
        return await self.log.append(new_records)

    async def rows(self) -> list[OutcomeRow]:
        partition = Partition(DELIVERIES.name, 0)
        end = (await self.log.ends([partition]))[partition]
        if not end:
            return []
        reader = await self.log.open({partition: 0})
        records = await reader.read()
        while len(records) < end:
            records += await reader.read()
        return [row for record in records for row in outcome_rows(record)]


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[FaultyLog]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    yield FaultyLog(log)
    await log.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def recorder(log: FaultyLog, clock: ManualClock) -> OutcomeRecorder:
    return OutcomeRecorder(EventWriter(log, DeliveryState([0]), clock))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def running(recorder: OutcomeRecorder) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(recorder.run(asyncio.Event()))
    await run_ready_tasks(2)
    yield task
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)


async def test_queued_outcomes_are_in_the_log_after_a_stop(log: FaultyLog, recorder: OutcomeRecorder) -> None:
    async with running(recorder):
        recorder.record(0, APP, 7, 1, SENT, START_MS)
    assert await log.rows() == [OutcomeRow(7, NumberedDevice(0, 1), SENT)]


async def test_outcomes_between_two_regular_writes_are_one_record(
    log: FaultyLog, recorder: OutcomeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_recorder, "_INTERVAL_S", 1_000)
    elsewhere = NewRecord(DELIVERIES.name, 1, b"k", b"")
    async with running(recorder):
        recorder.record(0, APP, 7, 0, SENT, START_MS)
        await recorder.wait_recorded()
        for number in range(1, 50):
            recorder.record(0, APP, 7, number, SENT, START_MS)
            await log.append([elsewhere])
        assert len(await log.rows()) == 1
    assert await log.rows() == [OutcomeRow(7, NumberedDevice(0, number), SENT) for number in range(50)]
    assert (await log.log.ends([Partition(DELIVERIES.name, 0)])) == {Partition(DELIVERIES.name, 0): 2}


async def test_a_stop_waits_for_a_write_in_progress(
    log: FaultyLog, recorder: OutcomeRecorder, clock: ManualClock
) -> None:
    log.errors = [UnavailableError("away"), BusyError("full")]
    async with running(recorder) as task:
        recorder.record(0, APP, 7, 1, SENT, START_MS)
        await log.append_called.wait()
        task.cancel()
        await run_ready_tasks()
        recorder.record(0, APP, 8, 1, SENT, START_MS)
        for _ in range(2):
            clock.move(0.5)
            await run_ready_tasks()
        await asyncio.wait([task], timeout=10)
    assert await log.rows() == [OutcomeRow(7, NumberedDevice(0, 1), SENT), OutcomeRow(8, NumberedDevice(0, 1), SENT)]


async def test_a_flush_waits_for_the_flush_in_progress(log: FaultyLog, recorder: OutcomeRecorder) -> None:
    log.open.clear()
    recorder.record(0, APP, 7, 1, SENT, START_MS)
    first = asyncio.create_task(recorder.flush())
    await log.append_called.wait()
    second = asyncio.create_task(recorder.flush())
    await run_ready_tasks()
    assert not second.done()
    log.open.set()
    await asyncio.wait_for(asyncio.gather(first, second), 60)
    assert len(await log.rows()) == 1


async def test_a_second_final_outcome_of_a_message_on_a_device_is_not_recorded(
    log: FaultyLog, recorder: OutcomeRecorder
) -> None:
    log.open.clear()
    recorder.record_final(0, APP, 7, 1, RECEIVED, START_MS)
    flush = asyncio.create_task(recorder.flush())
    await log.append_called.wait()
    recorder.record_final(0, APP, 7, 1, FAILED, START_MS, "late")
    recorder.record_final(0, APP, 7, 2, FAILED, START_MS, "other device")
    assert recorder.has_unwritten_final(0, 7, 1)
    log.open.set()
    await flush
    await recorder.flush()
    assert await log.rows() == [
        OutcomeRow(7, NumberedDevice(0, 1), RECEIVED),
        OutcomeRow(7, NumberedDevice(0, 2), FAILED, "other device"),
    ]
    assert not recorder.has_unwritten_final(0, 7, 1)


async def test_callers_wait_while_the_queue_is_at_capacity(log: FaultyLog, recorder: OutcomeRecorder) -> None:
    recorder.record_many(0, APP, 7, range(MAX_ROWS - 1), SENT, START_MS)
    await asyncio.wait_for(recorder.wait_capacity(), 60)
    recorder.record(0, APP, 7, MAX_ROWS, SENT, START_MS)
    waiting = asyncio.create_task(recorder.wait_capacity())
    await run_ready_tasks()
    assert not waiting.done()
    await recorder.flush()
    await asyncio.wait_for(waiting, 60)
    assert len(await log.rows()) == MAX_ROWS


async def test_reasons_beyond_the_limit_of_the_column_are_recorded_as_other(
    log: FaultyLog, recorder: OutcomeRecorder
) -> None:
    for number in range(300):
        recorder.record(0, APP, 7, number, FAILED, START_MS, f"reason {number} " + "x" * 500)
    await recorder.flush()
    recorded = await log.rows()
    assert len(recorded) == 300
    assert recorded[0].reason.startswith("reason 0 x")
    assert len(recorded[0].reason) == REASON_CHARS
    assert recorded[299].reason == "other"


async def test_a_batch_names_the_simulators_that_answered(log: FaultyLog, clock: ManualClock) -> None:
    """Once for a batch; what own connections were sent names none."""
    events = EventWriter(log, DeliveryState([0]), clock)  # type: ignore[arg-type]
    recorder = OutcomeRecorder(events, [Channel.CHANNEL_APNS, Channel.CHANNEL_WEBPUSH])
    recorder.record(0, APP, 7, 1, SENT, START_MS)
    await recorder.flush()
    recorder.record_final(0, APP, 8, 1, SENT, START_MS, service=Channel.CHANNEL_APNS)
    await recorder.flush()
    recorder.record_answer(0, APP, 9, 1, FAILED, START_MS, "no", Channel.CHANNEL_FCM)
    recorder.record_answer(0, APP, 9, 2, FAILED, START_MS, "no", Channel.CHANNEL_WEBPUSH)
    await recorder.flush()
    partition = Partition(DELIVERIES.name, 0)
    reader = await log.log.open({partition: 0})
    facts = [decode(record) for record in await reader.read()]
    assert [list(fact.outcomes.apps[0].simulated) for fact in facts] == [
        [],
        [Channel.CHANNEL_APNS],
        [Channel.CHANNEL_WEBPUSH],
    ]
