"""The log as of a moment: cut at the first later record of each partition, with compacted topics in another log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos.registry.v1.devices_pb2 import DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from protos.scheduling.v1.scheduling_pb2 import TaskFact
from services.domain.topics import DEVICES, TASKS, TOPICS
from services.errors import ConflictError, UnavailableError
from services.log.point_in_time import PointInTimeLog, ends_at, until_ready
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog

BOUND_S = 60
FIRST, SECOND, EMPTY = (Partition(TASKS.name, number) for number in range(3))
DEVICE = Partition(DEVICES.name, 0)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    yield log
    await log.close()


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    other = SqliteLog(tmp_path / "other.sqlite", TOPICS)
    yield other
    await other.close()


def task(number: int, time_ms: int) -> NewRecord:
    return NewRecord(TASKS.name, number, b"", TaskFact(meta=Meta(time_ms=time_ms)).SerializeToString())


def device(key: bytes, time_ms: int) -> NewRecord:
    return NewRecord(DEVICES.name, 0, key, DeviceFact(meta=Meta(time_ms=time_ms)).SerializeToString())


async def ends(log: SqliteLog, moment_ms: int) -> list[int]:
    counted: list[int] = []
    now = await log.ends([FIRST, SECOND, EMPTY])
    found = await ends_at(log, now, moment_ms, counted.append)
    return [found[partition] for partition in (FIRST, SECOND, EMPTY)]


async def test_a_partition_ends_before_its_first_later_record(log: SqliteLog) -> None:
    """Also where records from before the moment follow it."""
    await log.append([task(0, ms) for ms in (10, 20, 30, 15, 40)])
    await log.append([task(1, ms) for ms in (25, 35)])
    assert await ends(log, 5) == [0, 0, 0]
    assert await ends(log, 20) == [2, 0, 0]
    assert await ends(log, 29) == [2, 1, 0]
    assert await ends(log, 30) == [4, 1, 0]
    assert await ends(log, 50) == [5, 2, 0]


async def test_a_record_that_cannot_be_decoded_does_not_end_a_partition(log: SqliteLog) -> None:
    await log.append([task(0, 10), NewRecord(TASKS.name, 0, b"", b"\xff\xff"), task(0, 20)])
    assert await ends(log, 10) == [2, 0, 0]


async def test_the_past_is_read_up_to_its_ends(log: SqliteLog, other: SqliteLog) -> None:
    await log.append([task(0, ms) for ms in range(10)])
    await log.append([task(1, ms) for ms in range(10)])
    past = PointInTimeLog(log, {FIRST: 4, SECOND: 7}, [DEVICES.name], other)
    assert await past.ends([FIRST, SECOND, EMPTY, DEVICE]) == {FIRST: 4, SECOND: 7, EMPTY: 0, DEVICE: 0}
    reader = await past.open({FIRST: 1, SECOND: 0})
    read: list[tuple[int, int]] = []
    while len(read) < 10:
        read += [(r.partition, r.offset) for r in await asyncio.wait_for(reader.read(6), BOUND_S)]
    assert sorted(read) == [(0, 1), (0, 2), (0, 3)] + [(1, offset) for offset in range(7)]
    more = asyncio.ensure_future(reader.read())
    await asyncio.sleep(0)
    assert not more.done()
    more.cancel()
    await reader.close()
    last = await past.last(FIRST)
    assert last is not None
    assert last.offset == 3
    assert await past.last(EMPTY) is None


async def test_topics_kept_apart_are_written_to_and_read_from_the_other_log(log: SqliteLog, other: SqliteLog) -> None:
    """The log has compacted the first record away."""
    await log.append([device(b"a", 1), device(b"a", 2), task(0, 1)])
    past = PointInTimeLog(log, {FIRST: 1}, [DEVICES.name], other)
    with pytest.raises(ConflictError):
        await past.append([device(b"a", 1), task(0, 1)])
    assert await past.append([device(b"a", 1)]) == [0]
    reader = await past.open({DEVICE: 0, FIRST: 0})
    read = [r.topic for _ in range(2) for r in await asyncio.wait_for(reader.read(), BOUND_S)]
    assert read == [DEVICES.name, TASKS.name]
    await reader.close()
    assert (await log.ends([DEVICE]), await other.ends([DEVICE])) == ({DEVICE: 2}, {DEVICE: 1})


async def test_a_service_is_run_until_it_is_ready() -> None:
    stopped = asyncio.Event()

    async def serve(ready: asyncio.Event) -> None:
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def fail(ready: asyncio.Event) -> None:
        raise UnavailableError("gone")

    await asyncio.wait_for(until_ready(serve), BOUND_S)
    assert stopped.is_set()
    with pytest.raises(UnavailableError, match="gone"):
        await asyncio.wait_for(until_ready(fail), BOUND_S)
