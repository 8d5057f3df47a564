"""Membership: the records that an instance writes about itself in the log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos.runtime.v1.instances_pb2 import InstanceFact
from services.domain.topics import INSTANCES, TOPICS
from services.runtime.log.port import Partition
from services.runtime.log.sqlite.log import SqliteLog
from services.runtime.ownership.membership import Membership, place_of
from services.runtime.process.clock import ManualClock

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


def test_a_directory_keeps_its_place(tmp_path: Path) -> None:
    place = place_of(tmp_path / "one")
    assert place_of(tmp_path / "one") == place != place_of(tmp_path / "two")
    (tmp_path / "one" / "place").write_text("")  # what a kill or a full disk leaves
    again = place_of(tmp_path / "one")
    assert again
    assert place_of(tmp_path / "one") == again
