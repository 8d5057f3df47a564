"""Targeting on an embedded log, wired as `build` wires it, and helpers to query it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from pyroaring import BitMap

from protos.push.v1.push_pb2 import Audience, Filter
from protos.runtime.v1.log_pb2 import AwaitRequest, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub
from protos.targeting.v1.targeting_pb2 import ResolveRequest, ResolveResponse
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.domain.apps import AppDirectory
from services.domain.master_key import Keys
from services.domain.role import BuiltRole, RoleContext
from services.domain.topics import TOPICS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.process.clock import ManualClock
from services.replica.peers import Peers
from services.targeting.main import build
from services.targeting.settings import TargetingSettings
from tests.services.targeting.model import APP, NOON_MS, PARTITIONS

BOUND_S = 60.0


class TargetingHarness:
    """Targeting on one data directory, embedded log and clock; it can be started and stopped repeatedly."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock(NOON_MS)
        self.log = SqliteLog(directory / "log.sqlite", TOPICS)
        self.settings = TargetingSettings(data_dir=str(directory), partitions=PARTITIONS)

    def build(self, settings: TargetingSettings | None = None, apps: AppDirectory | None = None) -> BuiltRole:
        context = RoleContext(self.log, self.clock, Peers({}, TOPICS), Keys({}), apps or AppDirectory(self.log))
        return build(settings or self.settings, context)

    @asynccontextmanager
    async def running(
        self, settings: TargetingSettings | None = None, apps: AppDirectory | None = None
    ) -> AsyncIterator[Channel]:
        """Run targeting until the block ends; yields a channel to it once it is ready."""
        role = self.build(settings, apps)
        ready = asyncio.Event()
        tasks = [asyncio.create_task(service.run(ready)) for service in role.services]
        try:
            await asyncio.wait_for(ready.wait(), BOUND_S)
            yield local_channel(role)
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def append(self, new_records: Sequence[NewRecord]) -> list[Position]:
        offsets = await self.log.append(new_records)
        return [
            Position(topic=new_record.topic, partition=new_record.partition, offset=offset)
            for new_record, offset in zip(new_records, offsets, strict=True)
        ]

    async def write(self, channel: Channel, new_records: Sequence[NewRecord]) -> None:
        """Append the records and wait until targeting has applied them."""
        await PositionsServiceStub(channel).Await(
            AwaitRequest(positions=await self.append(new_records)), timeout=BOUND_S
        )


def local_channel(role: BuiltRole) -> Channel:
    """Return a channel to the role inside the process."""
    server = LocalServer()
    for add in role.servicers:
        add(server)  # type: ignore[arg-type]
    return server.channel()


async def resolve(
    channel: Channel, wanted: Filter, partitions: Sequence[int] = range(PARTITIONS)
) -> set[tuple[int, int]]:
    """Return (partition, number) of every matching device, read from the bitmaps of the answer."""
    request = ResolveRequest(appkey=APP, audience=Audience(filter=wanted), partitions=partitions)
    answer = await TargetingServiceStub(channel).Resolve(request)
    assert [part.partition for part in answer.partitions] == list(partitions)
    return members(answer)


def members(answer: ResolveResponse) -> set[tuple[int, int]]:
    """Return (partition, number) of the devices in the bitmaps of an answer, whose counts must be right."""
    bitmaps = {part.partition: BitMap.deserialize(part.bitmap) for part in answer.partitions}
    assert [part.count for part in answer.partitions] == [len(bitmap) for bitmap in bitmaps.values()]
    return {(partition, number) for partition, bitmap in bitmaps.items() for number in bitmap}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TargetingHarness]:
    harness = TargetingHarness(tmp_path)
    yield harness
    await harness.log.close()
