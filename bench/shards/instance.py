"""One instance of a role, in a process of its own, that reads a log from its first record to its end.

    python -m bench.shards.instance ROLE SHARD SHARDS LOG DIRECTORY

The role is registry, targeting or delivery. `reading` in its place only reads and decodes what delivery reads: the
floor. Prints the records, their bytes and the milliseconds of CPU time that the process took for them.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from services.delivery.main import open_state as open_delivery
from services.delivery.settings import DeliverySettings
from services.domain.settings import load
from services.domain.topics import TOPICS, decode
from services.log.port import DelegatingLog, Log, Partition, Reader, Record
from services.log.sqlite.log import SqliteLog
from services.registry.main import open_state as open_registry
from services.registry.settings import RegistrySettings
from services.replica.replay import State
from services.targeting.main import open_state as open_targeting
from services.targeting.settings import TargetingSettings

READING = "reading"


class Read(NamedTuple):
    """The number of records that an instance has read, and their bytes."""

    records: int
    size: int


class CountingLog(DelegatingLog):
    """Counts the records and bytes that are read."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.read = Read(0, 0)

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return _CountingReader(await super().open(starts), self._count)

    def _count(self, records: Sequence[Record]) -> None:
        size = sum(len(record.key) + len(record.value) for record in records)
        self.read = Read(self.read.records + len(records), self.read.size + size)


class _CountingReader:
    def __init__(self, reader: Reader, count: Callable[[Sequence[Record]], None]) -> None:
        self._reader = reader
        self._count = count

    async def read(self, max_records: int = 5000) -> list[Record]:
        records = await self._reader.read(max_records)
        self._count(records)
        return records

    async def close(self) -> None:
        await self._reader.close()


def opened(role: str, env: Mapping[str, str], directory: Path, log: Log) -> State:
    """Open the empty state of an instance."""
    match role:
        case "registry":
            return open_registry(load(RegistrySettings, env), directory, log)
        case "targeting":
            return open_targeting(load(TargetingSettings, env), directory, log)
        case "delivery" | "reading":
            return open_delivery(load(DeliverySettings, env), directory, log)
        case _:
            raise SystemExit(f"no role {role}")


async def fold(role: str, shard: str, shards: str, path: Path, directory: Path) -> tuple[Read, float]:
    """Read the log as an instance; return the records and bytes read, and the milliseconds of CPU time."""
    log = CountingLog(SqliteLog(path, TOPICS, read_only=True))
    env = {"CARILLON_DATA_DIR": str(directory), "CARILLON_SHARD": shard, "CARILLON_SHARDS": shards}
    state = opened(role, env, directory, log)
    try:
        begun_s = time.process_time()
        for follower in state.followers:
            ends = await log.ends(follower.sources)
            if role == READING:
                await _decode(log, ends)
            else:
                await follower.apply_until(ends, lambda count: None)
        return log.read, (time.process_time() - begun_s) * 1000
    finally:
        state.close()
        await log.close()


async def _decode(log: Log, ends: Mapping[Partition, int]) -> None:
    left = {partition: end for partition, end in ends.items() if end}
    if not left:
        return
    reader = await log.open(dict.fromkeys(left, 0))
    while left:
        for record in await reader.read():
            decode(record)
            partition = Partition(record.topic, record.partition)
            if record.offset + 1 == ends[partition]:
                del left[partition]
    await reader.close()


if __name__ == "__main__":
    named, number, count, *places = sys.argv[1:]
    read, cpu_ms = asyncio.run(fold(named, number, count, *map(Path, places)))
    print(read.records, read.size, round(cpu_ms))
