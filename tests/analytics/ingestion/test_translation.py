"""A batch is translated while the earlier one is written: the earlier one is committed with its own epochs."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from analytics.ingestion.batch_reader import IngestionLimits
from analytics.ingestion.batch_writer import BatchWriter, TranslatedBatch
from analytics.store.clickhouse import ClickHouse
from protos.scheduling.v1.scheduling_pb2 import TaskFact, TaskSent
from services.domain.topics import TASKS
from services.log.port import NewRecord, Partition, Record
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import T0, meta, new_record
from tests.analytics.service import new_ingestion, running_ingestion

ONE_BY_ONE = IngestionLimits(flush_s=0.01, max_records=1, catch_up_s=20, stop_s=2)


def sent(epoch: int) -> NewRecord:
    fact = TaskFact(meta=meta(str(epoch), T0, "scheduling"), task_key=f"k{epoch}", sent=TaskSent())
    fact.meta.epoch = epoch
    return new_record(TASKS.name, 2, fact)


def announced(epoch: int) -> NewRecord:
    """The record by which an owner announces its epoch, without which no higher epoch counts."""
    fact = TaskFact(meta=meta(str(epoch), T0, "scheduling"))
    fact.meta.epoch = epoch
    return new_record(TASKS.name, 2, fact)


def committed_epochs(directory: Path) -> list[int]:
    with closing(sqlite3.connect(directory / "offsets.db")) as offsets:
        return [epoch for (epoch,) in offsets.execute("SELECT epoch FROM epochs")]


async def test_each_batch_is_committed_with_its_own_epochs(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_insert, translated = asyncio.Semaphore(0), asyncio.Event()
    insert, translate = clickhouse.insert, BatchWriter.translate

    async def insert_later(table: str, rows: pa.Table, token: str) -> None:
        await may_insert.acquire()
        await insert(table, rows, token)

    async def translate_noting(writer: BatchWriter, records: Sequence[Record]) -> TranslatedBatch:
        batch = await translate(writer, records)
        if records[0].offset == 1:
            translated.set()
        return batch

    monkeypatch.setattr(clickhouse, "insert", insert_later)
    monkeypatch.setattr(BatchWriter, "translate", translate_noting)
    async with running_ingestion(new_ingestion(log, clickhouse, tmp_path, ONE_BY_ONE)) as ingestion:
        await log.append([sent(1), announced(2)])
        await translated.wait()
        may_insert.release()
        await ingestion.applied.wait([(Partition(TASKS.name, 2), 0)])
        assert committed_epochs(tmp_path) == [1]
        may_insert.release()
        await ingestion.applied.wait([(Partition(TASKS.name, 2), 1)])
        assert committed_epochs(tmp_path) == [2]


async def test_an_error_ends_the_ingestion_though_no_further_batch_comes(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(table: str, rows: pa.Table, token: str) -> None:
        raise ValueError(table)

    monkeypatch.setattr(clickhouse, "insert", fail)
    running = asyncio.create_task(new_ingestion(log, clickhouse, tmp_path, ONE_BY_ONE).run(asyncio.Event()))
    await log.append([sent(1)])
    with pytest.raises(ValueError, match="tasks"):
        await asyncio.wait_for(running, 30)
