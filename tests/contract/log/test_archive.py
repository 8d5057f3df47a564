"""The archive of the embedded log: records go there when they are old, and are read on as if the log had them."""

import asyncio
import signal
import sqlite3
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protos.gateway.v1.sessions_pb2 import SessionBatch, SessionEvent, SessionFact
from services.domain.topics import SESSIONS, TOPICS
from services.errors import ConflictError, UnavailableError
from services.log.archive.archiver import DAY_MS, EVERY_MS, Archiver
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.log import ArchivedLog
from services.log.archive.store import ArchiveStore, decode_segment, parse_name
from services.log.port import NewRecord, Partition, Record, TrimmedError
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.process.crashpoint import Point
from tests.contract.log.reading import P0, P1, P2, read_count, read_to_end

NOW_MS = 1_790_000_000_000
OLD_MS = NOW_MS - 40 * DAY_MS
YOUNG_MS = NOW_MS - 10 * DAY_MS
SEGMENT_BYTES = 20_000


def fact(number: int, time_ms: int, partition: Partition = P0) -> NewRecord:
    message = SessionFact(batch=SessionBatch(events=[SessionEvent(appkey="1234567890", number=number)]))
    message.meta.time_ms = time_ms
    return NewRecord(*partition, str(number).encode(), message.SerializeToString())


_ARCHIVER = """
import asyncio, os, signal, sys
from pathlib import Path
from services.process import crashpoint
from tests.contract.log.test_archive import Disk

async def main():
    disk = Disk(Path(sys.argv[1]))
    crashpoint.arm(sys.argv[2], int(sys.argv[3]), lambda: os.kill(os.getpid(), signal.SIGKILL))
    await disk.archiver(disk.open()).archive_old()

asyncio.run(main())
"""


class Disk:
    """A log and its archive in one directory, which can be opened again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(NOW_MS)
        self.archive: ArchiveStore = ArchiveDirectory(path / "archive")
        self.opened: list[ArchivedLog] = []

    def open(self, *, read_only: bool = False) -> ArchivedLog:
        log = SqliteLog(self.path / "log.db", TOPICS, read_only=read_only)
        self.opened.append(ArchivedLog(log, self.archive))
        return self.opened[-1]

    def archiver(self, log: ArchivedLog, partitions: tuple[Partition, ...] = (P0, P1, P2), **more: object) -> Archiver:
        settings: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, **more}
        return Archiver(log, self.clock, partitions, 35 * DAY_MS, **settings)

    def files(self) -> list[Path]:
        return sorted(path for path in (self.path / "archive").rglob("*") if path.is_file())


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    for log in disk.opened:
        await log.close()


async def filled(disk: Disk, old: int = 2000, young: int = 300) -> tuple[ArchivedLog, list[Record]]:
    """Return a log with so many old and young records in a partition, and these records."""
    log = disk.open()
    await log.append([fact(number, OLD_MS) for number in range(old)])
    await log.append([fact(number, YOUNG_MS) for number in range(old, old + young)])
    return log, await read_to_end(log, {P0: 0})


async def test_old_records_leave_the_log_and_are_read_from_the_archive(disk: Disk) -> None:
    log, all_records = await filled(disk)
    behind = await log.open({P0: 0})
    assert await read_count(behind, 10, 10) == all_records[:10]
    await disk.archiver(log).archive_old()
    assert await log.live.begins([P0, P1]) == {P0: 2000, P1: 0}
    assert await log.begins([P0, P1]) == {P0: 0, P1: 0}
    assert len(disk.files()) > 2
    for start in (0, 1, 1234, 1999, 2000, 2299):
        assert await read_to_end(log, {P0: start}) == all_records[start:]
    assert await read_count(behind, 2290) == all_records[10:]
    with pytest.raises(TrimmedError, match="from offset 2000 on"):
        await log.live.open({P0: 1999})
    with pytest.raises(ConflictError, match="another log"):
        await log.open({P0: 2301})
    await log.append([fact(2300, NOW_MS)])
    assert (await read_count(behind, 1))[0].offset == 2300
    beside = disk.open(read_only=True)
    assert await read_to_end(beside, {P0: 0}) == await read_to_end(log, {P0: 0})
    assert await beside.ends([P0]) == {P0: 2301}


async def test_readers_that_wait_see_what_comes_after_a_trim(disk: Disk) -> None:
    log, all_records = await filled(disk)
    reader = await log.open({P0: 2300, P1: 0})
    waiting = asyncio.create_task(reader.read())
    await disk.archiver(log).archive_old()
    await log.append([fact(7, NOW_MS, P1)])
    assert [record.partition for record in await waiting] == [1]
    both = await log.open({P0: 0, P1: 0})
    found = await read_count(both, 2301)
    assert [record for record in found if record.partition == 0] == all_records
    await both.close()
    with pytest.raises(UnavailableError):
        await both.read()


async def test_the_file_stops_growing(disk: Disk) -> None:
    log = disk.open()
    archiver = disk.archiver(log)
    sizes = []
    for _ in range(5):
        await log.append([fact(number, disk.clock.now_ms()) for number in range(1000)])
        disk.clock.move(40 * DAY_MS / 1000)
        await archiver.archive_old()
        with sqlite3.connect(disk.path / "log.db") as file:
            sizes.append(file.execute("PRAGMA page_count").fetchone()[0])
    file.close()
    assert sizes[-1] <= sizes[1]
    assert len(await read_to_end(log, {P0: 0})) == 5_000


async def test_young_records_needed_records_and_the_last_one_stay(disk: Disk) -> None:
    log, _ = await filled(disk, young=0)
    await disk.archiver(log, needed=lambda: [{P0: 700, P1: 5}, {P0: 800}]).archive_old()
    assert await log.live.begins([P0]) == {P0: 700}
    await disk.archiver(log).archive_old()
    assert await log.live.begins([P0]) == {P0: 1999}
    assert (await log.last(P0)) is not None


async def test_a_day_of_few_records_is_one_segment(disk: Disk) -> None:
    log = disk.open()
    start_ms = disk.clock.now_ms()
    archiver = disk.archiver(log, (P0,))
    for hour in range(30):
        await log.append([fact(hour, start_ms + hour * EVERY_MS)])
    disk.clock.move(35 * DAY_MS / 1000)
    for _ in range(24):
        await archiver.archive_old()
        assert disk.files() == []
        disk.clock.move(EVERY_MS / 1000)
    await archiver.archive_old()
    assert len(disk.files()) == 1
    assert await log.live.begins([P0]) == {P0: 25}


async def test_an_archive_that_does_not_work_loses_nothing(disk: Disk) -> None:
    log, all_records = await filled(disk)
    (disk.path / "archive").mkdir()
    (disk.path / "archive" / SESSIONS.name).write_text("in the way")
    running = asyncio.create_task(disk.archiver(log).run(ready := asyncio.Event()))
    await ready.wait()
    while not disk.clock._sleepers:
        await asyncio.sleep(0)
    assert await log.live.begins([P0]) == {P0: 0}
    (disk.path / "archive" / SESSIONS.name).unlink()
    disk.clock.move(EVERY_MS / 1000)
    while (await log.live.begins([P0]))[P0] < 2000:
        await asyncio.sleep(0)
    running.cancel()
    assert await read_to_end(log, {P0: 0}) == all_records


@pytest.mark.parametrize(
    ("point", "times"),
    [
        (Point.SEGMENT_READ, 1),
        (Point.SEGMENT_WRITTEN, 2),
        (Point.SEGMENT_NAMED, 2),
        (Point.SEGMENT_PARTLY_TRIMMED, 2),
        (Point.SEGMENT_TRIMMED, 1),
    ],
)
async def test_a_kill_at_any_step_neither_loses_nor_doubles_a_record(disk: Disk, point: Point, times: int) -> None:
    log, all_records = await filled(disk)
    await log.close()
    command = [sys.executable, "-c", _ARCHIVER, str(disk.path), point, str(times)]
    assert await (await asyncio.create_subprocess_exec(*command)).wait() == -signal.SIGKILL
    after = disk.open()
    assert await read_to_end(after, {P0: 0}) == all_records
    before = {path.name for path in disk.files()}
    await disk.archiver(after).archive_old()
    assert await after.live.begins([P0]) == {P0: 2000}
    assert await read_to_end(after, {P0: 0}) == all_records
    names = ArchiveDirectory(disk.path / "archive").names(P0)
    assert [name.end for name in names[:-1]] == [name.first for name in names[1:]]
    assert {path.name for path in disk.files() if path.suffix == ".zst"} == {str(name) for name in names}
    assert {name for name in before if not name.endswith("unfinished")} <= {str(name) for name in names}


async def test_a_damaged_or_foreign_archive_is_told_apart(disk: Disk) -> None:
    log, all_records = await filled(disk)
    await disk.archiver(log).archive_old()
    first, second, *_ = disk.files()
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    with pytest.raises(ConflictError, match="is damaged: put a copy"):
        await log.open({P0: 0})
    first.write_bytes(whole)
    away = second.rename(disk.path / "away")
    reader = await log.open({P0: 0})
    with pytest.raises(ConflictError, match="lacks them too"):
        await read_count(reader, len(all_records))
    away.rename(second)
    whole_archive = (disk.path / "archive").rename(disk.path / "unmounted")
    with pytest.raises(UnavailableError, match="is it mounted"):
        await disk.archiver(log).archive_old()
    whole_archive.rename(disk.path / "archive")
    other = disk.path / "other"
    other.mkdir()
    (disk.path / "archive").rename(other / "archive")
    with pytest.raises(ConflictError, match="lacks them too"):
        await log.open({P0: 0})
    foreign = Disk(other)
    strange = foreign.open()
    with pytest.raises(ConflictError, match="belongs to another log"):
        await foreign.archiver(strange).archive_old()
    await strange.append([fact(number, OLD_MS) for number in range(2500)])
    with pytest.raises(ConflictError, match="it was written from"):
        await foreign.archiver(strange).archive_old()
    running = asyncio.create_task(foreign.archiver(strange).run(asyncio.Event()))
    while not running.done() and not foreign.clock._sleepers:
        await asyncio.sleep(0)
    assert not running.done()  # it tries again, and ends no process that sends pushes
    running.cancel()
    assert await strange.live.begins([P0]) == {P0: 0}
    await strange.close()


async def test_appends_are_committed_between_the_steps_of_a_trim(disk: Disk) -> None:
    """A step deletes 500 records, or fewer that have 256 KiB together; four such steps are ahead of the append."""
    log, _ = await filled(disk)
    trimming = asyncio.create_task(log.live.trim(P0, 2000))
    await asyncio.sleep(0)
    await log.append([fact(1, NOW_MS, P1)])
    assert (await log.live.begins([P0]))[P0] <= 1500
    await trimming
    assert await log.live.begins([P0]) == {P0: 2000}
    large = [NewRecord(*P2, b"", bytes(200_000)) for _ in range(5)]
    await log.append(large)
    trimming = asyncio.create_task(log.live.trim(P2, 5))
    await asyncio.sleep(0)
    await log.append([fact(2, NOW_MS, P1)])
    assert (await log.live.begins([P2]))[P2] <= 3
    await trimming
    assert await log.live.begins([P2]) == {P2: 5}


def test_a_segment_of_the_first_version_is_read() -> None:
    """Its name and its bytes were written once, and are not written again: archives are kept for ever."""
    name = parse_name("00000000000000000010-00000000000000000012-cf05c2878e4d7a76f23f42d6b834bffe.pb.zst")
    data = "KLUv/SBMHQIAxAMKIDAxMjM0NTY3ODlhYmNkZWYSCHNlc3Npb25zGAMgCigMMgwIChIBaxoFZmlyc3QyCggLGgZzZWNvbmQBAAaZYQ=="
    assert name is not None
    sessions = Partition(SESSIONS.name, 3)
    assert decode_segment("0123456789abcdef" * 2, sessions, name, b64decode(data)) == [
        Record(*sessions, 10, b"k", b"first"),
        Record(*sessions, 11, b"", b"second"),
    ]
