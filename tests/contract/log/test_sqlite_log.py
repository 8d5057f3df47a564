"""Guarantees of the embedded log alone."""

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest

from services.domain.topics import DEVICES, TOPICS
from services.errors import ConflictError, UnavailableError
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from testkit.waiting import run_ready_tasks
from tests.contract.log.reading import P0, P1, P2, new_record, read_count, read_to_end, values

_WRITER = """
import asyncio, pathlib, sys
from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog
from testkit.waiting import run_ready_tasks
from tests.contract.log.reading import new_record

async def main():
    log = SqliteLog(pathlib.Path(sys.argv[1]), TOPICS)
    async def call(caller):
        for turn in range(1_000_000):
            [offset] = await log.append([new_record(f"{caller}/{turn}")])
            print(offset, f"{caller}/{turn}", flush=True)
    await asyncio.gather(*(call(caller) for caller in range(8)))

asyncio.run(main())
"""


async def test_a_second_opening_for_writing_is_refused(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    with pytest.raises(ConflictError):
        SqliteLog(tmp_path / "log.db", TOPICS)
    await log.close()
    await SqliteLog(tmp_path / "log.db", TOPICS).close()


async def test_a_read_only_log_sees_what_the_writer_appends(tmp_path: Path) -> None:
    writer = SqliteLog(tmp_path / "log.db", TOPICS)
    await writer.append([new_record("a"), new_record("b", P1)])
    beside = SqliteLog(tmp_path / "log.db", TOPICS, read_only=True)
    reader = await beside.open({P0: 0})
    assert values(await read_count(reader, 1)) == ["a"]
    await writer.append([new_record("c")])
    assert values(await read_count(reader, 1)) == ["c"]
    assert await beside.ends([P0, P1]) == {P0: 2, P1: 1}
    with pytest.raises(ConflictError):
        await beside.append([new_record("d")])
    await beside.close()
    await writer.close()


async def test_a_question_for_the_ends_wakes_the_readers_of_a_read_only_log(tmp_path: Path) -> None:
    writer = SqliteLog(tmp_path / "log.db", TOPICS)
    beside = SqliteLog(tmp_path / "log.db", TOPICS, read_only=True, poll_s=3600)
    reading = asyncio.create_task((await beside.open({P0: 0})).read())
    await run_ready_tasks()
    await writer.append([new_record("a")])
    assert not reading.done()
    assert await beside.ends([P0]) == {P0: 1}
    assert values(await asyncio.wait_for(reading, 60)) == ["a"]
    await writer.append([new_record("b")])
    answers = await asyncio.gather(*(beside.ends([P0]) for _ in range(5)))
    assert answers == [{P0: 2}] * 5
    await beside.close()
    await writer.close()


async def test_a_read_only_log_reads_no_table_while_nothing_is_new(tmp_path: Path) -> None:
    writer = SqliteLog(tmp_path / "log.db", TOPICS)
    beside = SqliteLog(tmp_path / "log.db", TOPICS, read_only=True)
    await writer.append([new_record("a")])
    assert await beside.ends([P0]) == {P0: 1}
    asked: list[str] = []
    beside._reads.set_trace_callback(asked.append)
    for _ in range(3):
        assert await beside.ends([P0]) == {P0: 1}
    assert asked == ["PRAGMA data_version"] * 3
    await beside.close()
    await writer.close()


async def test_a_read_only_log_works_after_the_writer_has_closed(tmp_path: Path) -> None:
    writer = SqliteLog(tmp_path / "log.db", TOPICS)
    await writer.append([new_record("a")])
    await writer.close()
    beside = SqliteLog(tmp_path / "log.db", TOPICS, read_only=True)
    assert values(await read_to_end(beside, {P0: 0})) == ["a"]
    await beside.close()


async def test_a_read_only_log_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        SqliteLog(tmp_path / "none.db", TOPICS, read_only=True)
    assert not (tmp_path / "none.db").exists()


async def test_appended_records_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    command = [sys.executable, "-c", _WRITER, str(path)]
    writer = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert writer.stdout is not None
    answered = [(await writer.stdout.readline()).decode().split() for _ in range(400)]
    writer.kill()
    answered += [line.decode().split() async for line in writer.stdout if line.endswith(b"\n")]
    await writer.wait()
    log = SqliteLog(path, TOPICS)
    stored = {record.offset: record.value.decode() for record in await read_to_end(log, {P0: 0})}
    assert list(stored) == list(range(len(stored)))
    assert {int(offset): value for offset, value in answered}.items() <= stored.items()
    await log.close()


async def test_a_failed_write_is_reported_and_leaves_no_gap(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    await log.append([new_record("a")])
    with sqlite3.connect(tmp_path / "log.db", isolation_level=None) as other:
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON records WHEN NEW.value = x'62'"
            " BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
    other.close()
    with pytest.raises(UnavailableError, match="disk full"):
        await log.append([new_record("b")])
    assert await log.append([new_record("c")]) == [1]
    assert values(await read_to_end(log, {P0: 0})) == ["a", "c"]
    await log.close()


async def test_a_partition_with_much_to_read_does_not_starve_the_others(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    await log.append([*[new_record("many")] * 100, new_record("one", P1), new_record("two", P2)])
    reader = await log.open({P0: 0, P1: 0, P2: 0})
    first = [*await reader.read(10), *await reader.read(10), *await reader.read(10)]
    assert {"one", "two"} <= set(values(first))
    await log.close()


async def test_a_partition_that_grows_does_not_keep_the_reader_from_a_compacted_one(tmp_path: Path) -> None:
    """The records of compacted topics are never cached, those of the others are."""
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    reader = await log.open({Partition(DEVICES.name, 0): 0, P0: 0})
    await log.append([NewRecord(DEVICES.name, 0, b"key", b"compacted")])
    for value in ("first", "second"):
        await log.append([new_record(value)])
        assert value in values(page := await reader.read(10))
        assert ("compacted" in values(page)) == (value == "first")
    await log.close()


async def test_nothing_is_left_of_what_an_empty_value_removes(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    devices = Partition(DEVICES.name, 0)
    kept = [new_record("kept", devices, f"~name {number}") for number in range(100)]
    await log.append([new_record("secret value", devices, f"secret key {number}") for number in range(100)])
    for record in kept:
        await log.append([record])
    await log.append([new_record("", devices, f"secret key {number}") for number in range(100)])
    records = await read_to_end(log, {devices: 0})
    assert [(record.offset, record.key) for record in records[-2:]] == [(199, b"~name 99"), (299, b"")]
    await log.close()
    content = b"".join(file.read_bytes() for file in [*tmp_path.iterdir()])  # noqa: ASYNC240
    assert content.count(b"secret") == 0
    assert content.count(b"~name 99") > 0


async def test_a_page_of_cached_records_has_place_for_those_of_the_file(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    reader = await log.open({Partition(DEVICES.name, 0): 0, P0: 0})
    await log.append(
        [*[NewRecord(DEVICES.name, 0, b"key %d" % n, b"compacted") for n in range(9)], *[new_record("cached")] * 9]
    )
    assert sorted(values(await reader.read(10))) == ["cached"] * 5 + ["compacted"] * 5
    assert sorted(values(await reader.read(10))) == ["cached"] * 4 + ["compacted"] * 4
    await log.close()


async def test_a_page_is_bounded_in_bytes(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    big = new_record("x" * 800_000)
    await asyncio.gather(*(log.append([big] * 10) for _ in range(5)))
    reader = await log.open({P0: 0})
    page = await reader.read()
    assert sum(len(record.value) for record in page) < 17 * 1024 * 1024
    assert [r.offset for r in [*page, *await read_count(reader, 50 - len(page))]] == list(range(50))
    await log.close()


async def test_the_number_of_partitions_never_changes(tmp_path: Path) -> None:
    await SqliteLog(tmp_path / "events.db", TOPICS, partitions=8).close()
    with pytest.raises(ConflictError, match="CARILLON_PARTITIONS=8"):
        SqliteLog(tmp_path / "events.db", TOPICS, partitions=32)
    await SqliteLog(tmp_path / "events.db", TOPICS, partitions=8).close()
