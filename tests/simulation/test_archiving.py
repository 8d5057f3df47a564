"""Old records leave a simulated log for the archive, whatever kills the process that moves them."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from protos.gateway.v1.sessions_pb2 import SessionFact
from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import SESSIONS, TOPICS
from services.errors import ConflictError
from services.log.port import NewRecord, Partition, Record
from services.process.crashpoint import Point
from tests.simulation.kernel.installation import Installation
from tests.simulation.kernel.latency import Latency
from tests.simulation.kernel.log.archiving import ARCHIVER, Archiving
from tests.simulation.kernel.log.behaviour import Behaviour
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.log.losses import CHANGED, CUT_OFF, MISSING, Losses, is_explained
from tests.simulation.kernel.network.channels import Network
from tests.simulation.kernel.world import LoggedError, World

P0 = Partition(SESSIONS.name, 0)
COUNT = 40


def test_old_records_are_read_from_the_archive_and_none_is_lost(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        broker, network = Broker(TOPICS, 1, Behaviour(world.random("log"))), Network(world, lambda: 0.001)
        installation = Installation(world, broker, network, {}, has_archive=True)
        log = installation.log()
        for number in range(COUNT):
            fact = SessionFact(meta=Meta(event_id=bytes([number]) * 16, time_ms=world.clock().now_ms()))
            await log.append([NewRecord(*P0, b"key", fact.SerializeToString())])
            await asyncio.sleep(1)
        behind = await log.open({P0: 3})
        archiving = Archiving(installation)
        for point in (Point.SEGMENT_WRITTEN, Point.SEGMENT_NAMED, Point.SEGMENT_TRIMMED):
            world.crash_at(point, ARCHIVER)
            archiving.start(COUNT / 2)
            await asyncio.sleep(5)
        assert 0 < broker.first(P0) < COUNT / 2
        archiving.start(1)
        await asyncio.sleep(60)
        assert COUNT / 2 < broker.first(P0) < COUNT
        read: list[Record] = []
        while len(read) < COUNT - 3:
            read += await behind.read()
        assert read == broker.records(P0)[3:]
        assert not world.errors

    World(1, tmp_path).run(scenario)


def test_two_archivers_at_once_lose_no_record(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        broker, network = Broker(TOPICS, 1, Behaviour(world.random("log"))), Network(world, lambda: 0.001)
        world.loop.threads.delay_s = Latency(world.random("slow threads"), 0.5)
        installation = Installation(world, broker, network, {}, has_archive=True)
        log = installation.log()
        for number in range(COUNT):
            fact = SessionFact(meta=Meta(event_id=bytes([number]) * 16, time_ms=world.clock().now_ms()))
            await log.append([NewRecord(*P0, b"key", fact.SerializeToString())])
            await asyncio.sleep(1)
        archivings = [Archiving(installation), Archiving(installation, f"{ARCHIVER}-2", 500)]
        for archiving, older_than_s in zip(archivings, (1, 5), strict=True):
            archiving.start(older_than_s)
        read: list[Record] = []
        reader = await log.open({P0: 0})
        while len(read) < COUNT:
            read += await reader.read()
        assert read == broker.records(P0)
        await asyncio.sleep(600)
        assert broker.first(P0) > COUNT / 2
        assert await log.begins([P0]) == {P0: 0}
        names = installation.archived_log().archive.names(P0)
        overlaps.append(any(later.first < earlier.end for earlier, later in pairwise(names)))
        assert not world.errors

    overlaps: list[bool] = []
    for seed in range(5):
        World(seed, tmp_path / str(seed)).run(scenario)
    assert any(overlaps), "two processes have written the same records"


@pytest.mark.parametrize("lost", [MISSING, CUT_OFF, CHANGED, "trimmed"])
def test_records_that_are_lost_are_not_skipped_and_are_read_again_once_they_are_back(lost: str, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        broker, network = Broker(TOPICS, 1, Behaviour(world.random("log"))), Network(world, lambda: 0.001)
        installation = Installation(world, broker, network, {}, has_archive=lost != "trimmed")
        log = installation.log()
        for number in range(COUNT):
            fact = SessionFact(meta=Meta(event_id=bytes([number]) * 16, time_ms=world.clock().now_ms()))
            await log.append([NewRecord(*P0, b"key", fact.SerializeToString())])
            await asyncio.sleep(1)
        losses = Losses(installation.archive_path, broker, world.random("losses"))
        if lost == "trimmed":
            losses.trim_log()
        else:
            Archiving(installation).start(1)
            await asyncio.sleep(60)
            losses.damage_archive(lost)
        read: list[Record] = []
        with pytest.raises(ConflictError) as raised:
            reader = await log.open({P0: 0})
            while len(read) < COUNT:
                read += await reader.read()
        assert read == broker.records(P0)[: len(read)]
        assert is_explained(LoggedError("reader", "", repr(raised.value)), ["log_trimmed"])
        losses.bring_back()
        reader, read = await log.open({P0: 0}), []
        while len(read) < COUNT:
            read += await reader.read()
        assert read == broker.records(P0)

    World(1, tmp_path).run(scenario)
