"""Benchmark of the archive: moving records there out of the embedded log, and reading them from either.

    python -m bench.log_size.archive --records 200000

Fills one partition with outcomes of a push, archives them, and reads all of them in the log before and in the archive
afterwards, the same records in the same process. The table has the CPU time of the process for each record, and the
bytes on the disk. The log's file is the comparison: it is not compressed, and can be appended to.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from protos.delivery.v1.delivery_pb2 import DeliveryFact
from services.domain.topics import DELIVERIES, TOPICS
from services.log.archive.archiver import DAY_MS, Archiver
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.log import ArchivedLog
from services.log.port import Log, NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock

_NOW_MS = 1_790_000_000_000
_OLD_MS = _NOW_MS - 40 * DAY_MS
_BATCH = 2000
_EVENT_IDS = Random(1)
_PARTITION = Partition(DELIVERIES.name, 0)


def _outcome(number: int) -> NewRecord:
    fact = DeliveryFact()
    fact.meta.time_ms = _OLD_MS + number
    fact.meta.event_id = _EVENT_IDS.randbytes(16)
    fact.meta.writer = "delivery"
    return NewRecord(*_PARTITION, b"1234567890", fact.SerializeToString())


def _size(directory: Path, files: str) -> int:
    return sum(path.stat().st_size for path in directory.glob(files))


async def _read_all(log: Log, end: int) -> None:
    reader = await log.open({_PARTITION: 0})
    while (await reader.read())[-1].offset + 1 < end:
        """Each batch is dropped."""
    await reader.close()


async def _measure(directory: Path, count: int) -> Table:
    live = SqliteLog(directory / "events.db", TOPICS)
    log = ArchivedLog(live, ArchiveDirectory(directory / "archive"))
    for start in range(0, count, _BATCH):
        await log.append([_outcome(number) for number in range(start, min(start + _BATCH, count))])
    table = Table("step", "CPU us a record", "bytes a record")
    (end,) = (await live.ends([_PARTITION])).values()
    archiver = Archiver(log, ManualClock(_NOW_MS), [_PARTITION], 35 * DAY_MS)
    steps: list[tuple[str, Callable[[], Awaitable[object]], str]] = [
        ("read in the log", lambda: _read_all(log, end), "events.db*"),
        ("archive and trim", archiver.archive_old, "archive/**/*.zst"),
        ("read in the archive", lambda: _read_all(log, end), "archive/**/*.zst"),
    ]
    for name, work, files in steps:
        began = time.process_time()
        await work()
        cpu_s = time.process_time() - began
        size = _size(directory, files)
        table.add_row(name, f"{cpu_s / count * 1e6:.1f}", f"{size / count:.0f}")
    await log.close()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    count = parser.parse_args().records
    with tempfile.TemporaryDirectory() as directory:
        Console().print(asyncio.run(_measure(Path(directory), count)))


if __name__ == "__main__":
    main()
