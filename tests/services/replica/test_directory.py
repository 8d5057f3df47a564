"""InstanceDirectory: records of instances are read together, and at once where somebody waits for them."""

import asyncio
from pathlib import Path

from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact
from services.domain.topics import TOPICS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.replica.instances import INSTANCES_TOPIC, InstanceDirectory

BOUND_S = 60
HOUR_S = 3600


async def append(log: SqliteLog, instance: str, epoch: int) -> None:
    fact = InstanceFact(instance=instance, alive=InstanceAlive(role="r", address=instance, epoch=epoch))
    await log.append([NewRecord(INSTANCES_TOPIC, 0, instance.encode(), fact.SerializeToString())])


async def test_records_that_come_in_a_pause_are_read_together_or_once_somebody_waits_urgently(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    directory = InstanceDirectory(pause_s=HOUR_S)
    reads = 0

    def count() -> None:
        nonlocal reads
        reads += 1

    directory.on_change(count)
    await append(log, "first", 1)
    following = asyncio.create_task(directory.run(log))
    async with asyncio.timeout(BOUND_S):
        while directory.address("r", 0) != "first":
            await directory.change.wait()
        before = reads
        for epoch in (2, 3, 4):
            await append(log, f"owner {epoch}", epoch)
        assert (reads, directory.address("r", 0)) == (before, "first")
        await directory.wait_urgently(directory.change)
    assert (reads, directory.address("r", 0)) == (before + 1, "owner 4")
    following.cancel()
    await asyncio.wait([following])
    await log.close()
