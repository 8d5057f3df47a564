"""Checkpoints of the embedded log: they bound the write-ahead log, and no append waits for one."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog
from services.log.sqlite.writer import Checkpoints
from testkit.waiting import until_holds
from tests.contract.log.reading import P0, new_record, read_count, read_to_end, values

CHECKPOINT_BYTES = 1024 * 1024


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.db", TOPICS, checkpoint_bytes=CHECKPOINT_BYTES)
    yield log
    await log.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def append_checkpoint_bytes(log: SqliteLog) -> None:
    await log.append([new_record("x" * (CHECKPOINT_BYTES // 2))] * 2)


async def test_a_reader_in_another_process_does_not_let_the_write_ahead_log_grow(
    log: SqliteLog, tmp_path: Path
) -> None:
    """A reader keeps no transaction open between two reads, so checkpoints go through and the file is used again."""
    beside = SqliteLog(tmp_path / "log.db", TOPICS, read_only=True, poll_s=0.001)
    reader = await beside.open({P0: 0})
    assert log._writer is not None
    for _ in range(60):
        await log.append([new_record("x" * 3000) for _ in range(100)])
        await log._writer._checkpoints.wait()
        await read_count(reader, 100)
    assert (tmp_path / "log.db-wal").stat().st_size < 4 * CHECKPOINT_BYTES
    await log.close()
    assert (tmp_path / "log.db").stat().st_size > 16 * CHECKPOINT_BYTES
    await beside.close()


async def test_appends_go_on_during_a_checkpoint(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    checkpoint: Callable[[Checkpoints], None] = Checkpoints._checkpoint
    passes: list[str] = []

    def slow(checkpoints: Checkpoints) -> None:
        passes.append(threading.current_thread().name)
        begun.set()
        assert may_go_on.wait(60)
        checkpoint(checkpoints)

    monkeypatch.setattr(Checkpoints, "_checkpoint", slow)
    await append_checkpoint_bytes(log)
    await asyncio.to_thread(begun.wait, 60)
    await append_checkpoint_bytes(log)
    assert passes == ["log-checkpoints"]
    may_go_on.set()
    await until_holds(lambda: passes == ["log-checkpoints", "log-write"])
    assert len(await read_to_end(log, {P0: 0})) == 4


async def test_a_checkpoint_that_fails_loses_nothing_and_is_tried_again(
    log: SqliteLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(checkpoints: Checkpoints) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with capture_logs() as logged, monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "_checkpoint", fail)
        await append_checkpoint_bytes(log)
        await until_holds(lambda: bool(logged))
    assert [(entry["log_level"], entry["error"]) for entry in logged] == [("warning", "disk I/O error")]
    assert (tmp_path / "log.db").stat().st_size < CHECKPOINT_BYTES
    await append_checkpoint_bytes(log)
    await until_holds(lambda: (tmp_path / "log.db").stat().st_size > 2 * CHECKPOINT_BYTES)


async def test_a_log_that_is_closed_leaves_no_write_ahead_log(log: SqliteLog, tmp_path: Path) -> None:
    await log.append([new_record("a")])
    await log.close()
    assert names(tmp_path) == ["log.db", "log.db.lock"]


async def test_what_a_kill_left_in_the_write_ahead_log_is_read_and_moved_into_the_file(
    log: SqliteLog, tmp_path: Path
) -> None:
    await log.append([new_record("a")])
    for suffix in ("", "-wal"):
        (tmp_path / f"copy.db{suffix}").write_bytes((tmp_path / f"log.db{suffix}").read_bytes())
    copy = SqliteLog(tmp_path / "copy.db", TOPICS, checkpoint_bytes=CHECKPOINT_BYTES)
    assert values(await read_to_end(copy, {P0: 0})) == ["a"]
    await append_checkpoint_bytes(copy)
    await until_holds(lambda: (tmp_path / "copy.db").stat().st_size > CHECKPOINT_BYTES)
    await copy.close()
