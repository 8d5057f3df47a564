"""Membership: the records that an instance writes about itself in the log."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from protos.runtime.v1.instances_pb2 import InstanceFact
from services.domain.topics import INSTANCES, TOPICS
from services.log.port import DelegatingLog, Log, Partition, Reader, Record
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.replica.membership import Membership, state_directory_id

BOUND_S = 60


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    yield log
    await log.close()


async def latest_fact(log: SqliteLog) -> InstanceFact:
    record = await log.last(Partition(INSTANCES.name, 0))
    assert record is not None
    return InstanceFact.FromString(record.value)


class LateLog(DelegatingLog):
    """A log whose readers hand out what they have read once `may_hand_out` is set; `read` is the latest offset read."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.may_hand_out = asyncio.Event()
        self.may_hand_out.set()
        self.read = -1

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return LateReader(self, await super().open(starts))

    async def until_read(self, offset: int) -> None:
        while self.read < offset:
            await asyncio.sleep(0)


class LateReader:
    def __init__(self, log: LateLog, reader: Reader) -> None:
        self._log = log
        self._reader = reader

    async def read(self, max_records: int = 5000) -> list[Record]:
        records = await self._reader.read(max_records)
        self._log.read = records[-1].offset
        await self._log.may_hand_out.wait()
        return records

    async def close(self) -> None:
        await self._reader.close()


async def until_stored(log: SqliteLog, *, caught_up: bool) -> int:
    """Wait until the log's last record says this of the instance; return its offset."""
    while True:
        record = await log.last(Partition(INSTANCES.name, 0))
        if record and InstanceFact.FromString(record.value).alive.caught_up == caught_up:
            return record.offset
        await asyncio.sleep(0)


async def test_an_instance_announces_its_leaving_after_other_pending_records(log: SqliteLog) -> None:
    """A follower that stops ends its tenure just before the membership is stopped."""
    membership = Membership(log, ManualClock(0), "r", 0, "a:1", "place", interval_s=BOUND_S)
    ready = asyncio.Event()
    running = asyncio.create_task(membership.run(ready))
    async with asyncio.timeout(BOUND_S):
        await ready.wait()
        membership.note_caught_up()
        await membership.wait_elected()
        await membership.announce(7)
        assert await membership.wait_alone()
        while (await latest_fact(log)).alive.epoch != 7:
            await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    membership.end()
    running.cancel()
    await asyncio.wait([running], timeout=BOUND_S)
    assert running.cancelled()
    assert (await latest_fact(log)).HasField("left")


async def test_a_former_owner_waits_for_its_turn_until_it_has_read_that_it_stands_by(log: SqliteLog) -> None:
    """What it has read before may be old: another one may have taken over since."""
    membership = Membership(log, ManualClock(0), "r", 0, "a:1", "place", interval_s=BOUND_S)
    running = asyncio.create_task(membership.run(ready := asyncio.Event()))
    async with asyncio.timeout(BOUND_S):
        await ready.wait()
        membership.note_caught_up()
        await membership.wait_elected()
        await membership.announce(7)
        membership.end()
        membership.note_caught_up()
        await membership.wait_elected()
    assert membership._directory.instances.owner("r", 0) is None
    running.cancel()
    await asyncio.wait([running], timeout=BOUND_S)


async def test_an_instance_that_caught_up_again_names_no_record_from_before(log: SqliteLog) -> None:
    """Its record of the former time comes back to it late; as a standby it comes after those that caught up earlier."""
    late = LateLog(log)
    membership = Membership(late, ManualClock(0), "r", 0, "a:1", "place", interval_s=BOUND_S)
    running = asyncio.create_task(membership.run(ready := asyncio.Event()))
    async with asyncio.timeout(BOUND_S):
        await ready.wait()
        await late.until_read(await until_stored(log, caught_up=False))
        late.may_hand_out.clear()
        membership.note_caught_up()
        await late.until_read(await until_stored(log, caught_up=True))
        membership.end()
        await until_stored(log, caught_up=False)
        membership.note_caught_up()
        offset = await until_stored(log, caught_up=True)
        late.may_hand_out.set()
        await membership.wait_elected()
        await membership.announce(7)  # has read the records before
        await membership.announce(8)
    assert (await latest_fact(log)).alive.caught_up_offset >= offset  # a later one where compaction was faster
    running.cancel()
    await asyncio.wait([running], timeout=BOUND_S)


def test_a_directory_keeps_its_id(tmp_path: Path) -> None:
    first = state_directory_id(tmp_path / "one")
    assert state_directory_id(tmp_path / "one") == first != state_directory_id(tmp_path / "two")
    (tmp_path / "one" / "place").write_text("")  # what a kill or a full disk leaves
    again = state_directory_id(tmp_path / "one")
    assert again
    assert state_directory_id(tmp_path / "one") == again
