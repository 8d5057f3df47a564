"""Exact totals, wherever the ingestion crashes."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from analytics.digest import counts, digest
from analytics.ingestion.batch_reader import IngestionLimits
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from analytics.store.offsets import Offsets
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.registry.v1.devices_pb2 import AddTags
from protos.scheduling.v1.scheduling_pb2 import TaskFellDue
from services.domain.topics import TOPICS
from services.errors import UnavailableError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.metrics import LAG
from testkit.faults.full_disk import full_disk
from testkit.repository import ROOT
from testkit.waiting import until_holds
from tests.analytics.ingestion.connections.test_history import MINUTE_MS, OPENED, START_MS, sums
from tests.analytics.ingestion.test_ingestion import task
from tests.analytics.records import (
    T0,
    app_changed,
    app_outcomes,
    device,
    device_command,
    outcomes,
    send,
    session,
    started,
)
from tests.analytics.service import ingest, new_ingestion, running_ingestion, value

MONTH_MS = 31 * 86_400_000


class CrashError(Exception):
    """Stands for the death of the process."""


class CrashingStore:
    """A store with a crash before or after the n-th insert."""

    def __init__(self, clickhouse: ClickHouse, at: int, after: bool) -> None:
        self._clickhouse = clickhouse
        self._left = at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clickhouse, name)

    async def insert(self, table: str, rows: pa.Table, token: str) -> None:
        self._left -= 1
        dies = self._left == 0
        if dies and not self._after:
            raise CrashError
        await self._clickhouse.insert(table, rows, token)
        if dies:
            raise CrashError


def new_records(round_: int) -> list[NewRecord]:
    """Return records for twelve tables, with deliveries over three months and two partitions of the log."""
    numbers = np.arange(50)
    return [
        send(1000 + round_),
        started(1000 + round_, 1, [1, 2, 3]),
        device(round_, time_ms=T0 + round_),
        device_command(round_, time_ms=T0 + round_, add_tags=AddTags(tags=[round_])),
        app_changed("set", "ack_info on", time_ms=T0 + round_),
        task(f"key {round_}", T0 + round_, fell_due=TaskFellDue()),
        session(0, OPENED, START_MS + round_ * MINUTE_MS, connection=round_ + 1, gateway=f"g{round_ % 2}"),
        *(
            outcomes(
                partition,
                *(
                    app_outcomes(1000 + round_, numbers, Outcome.OUTCOME_KIND_SENT, T0 + month * MONTH_MS)
                    for month in range(3)
                ),
                seed=f"{round_} {partition}",
            )
            for partition in (1, 2)
        ),
    ]


async def crash(log: SqliteLog, clickhouse: Any, directory: Path) -> None:
    """Run until the crash."""
    ingestion = new_ingestion(log, clickhouse, directory)
    with pytest.raises(CrashError):
        async with asyncio.timeout(60):
            await ingestion.run(asyncio.Event())


async def assert_exact(log: SqliteLog, clickhouse: ClickHouse, directory: Path, rounds: int) -> None:
    """Check that a new ingestion with the same offsets file stores each row exactly once, before any merge."""
    await ingest(log, clickhouse, directory, [])
    assert await value(clickhouse, "SELECT count() FROM deliveries") == rounds * 300
    assert await value(clickhouse, "SELECT count() FROM pushes") == rounds
    assert await value(clickhouse, "SELECT count() FROM push_partitions") == rounds
    assert await value(clickhouse, "SELECT count() FROM devices") == rounds
    assert await value(clickhouse, "SELECT count() FROM registrations") == rounds
    assert await value(clickhouse, "SELECT count() FROM push_values") == rounds
    assert await value(clickhouse, "SELECT count() FROM push_records") == 2 * rounds
    assert await value(clickhouse, "SELECT count() FROM device_commands") == rounds
    assert await value(clickhouse, "SELECT count() FROM app_changes") == rounds
    assert await value(clickhouse, "SELECT count() FROM tasks") == rounds
    moves = {(f"g{round_ % 2}", round_, ""): 1 for round_ in range(rounds)}
    moves |= {(f"g{round_ % 2}", round_ + 1, ""): -1 for round_ in range(rounds - 1)}
    assert await sums(clickhouse) == moves


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 5, 9, 12])
async def test_crash_around_an_insert(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, at: int, after: bool
) -> None:
    await log.append(new_records(0))
    await crash(log, CrashingStore(clickhouse, at, after), tmp_path)
    await log.append(new_records(1))

    await assert_exact(log, clickhouse, tmp_path, 2)


def failing(method: str, after: bool) -> Callable[..., Any]:
    """Return the method of Offsets with a crash before or after it."""
    original = getattr(Offsets, method)

    def crashing(*arguments: Any) -> Any:
        if after:
            original(*arguments)
        raise CrashError

    return crashing


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["begin", "end"])
async def test_crash_around_the_offsets_file(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, after: bool
) -> None:
    await log.append(new_records(0))
    with monkeypatch.context() as patch:
        patch.setattr(Offsets, method, failing(method, after))
        await crash(log, clickhouse, tmp_path)
    await log.append(new_records(1))

    await assert_exact(log, clickhouse, tmp_path, 2)


async def test_crash_while_recovering(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    await log.append(new_records(0))
    for at in (1, 2, 3):
        await crash(log, CrashingStore(clickhouse, at, after=True), tmp_path)

    await assert_exact(log, clickhouse, tmp_path, 1)


class UnreliableStore(CrashingStore):
    """A store that refuses every third insert, and loses the answer of another third after making the insert."""

    async def insert(self, table: str, rows: pa.Table, token: str) -> None:
        self._left += 1
        turn = self._left % 3
        if turn == 1:
            raise UnavailableError("no answer")
        await self._clickhouse.insert(table, rows, token)
        if turn == 2:
            raise UnavailableError("the answer was lost")


async def test_inserts_are_retried_until_they_work(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.process.retries._FIRST_RETRY_S", 0.001)
    await log.append(new_records(0))
    async with running_ingestion(new_ingestion(log, UnreliableStore(clickhouse, 0, True), tmp_path)) as ingestion:  # type: ignore[arg-type]
        assert await ingestion.catch_up() == 0

    assert await value(clickhouse, "SELECT count() FROM deliveries") == 300
    await assert_exact(log, clickhouse, tmp_path, 1)


class RefusingStore(CrashingStore):
    """A store that refuses inserts until `is_back`."""

    is_back = False

    async def insert(self, table: str, rows: pa.Table, token: str) -> None:
        if not self.is_back:
            raise UnavailableError("no answer")
        await self._clickhouse.insert(table, rows, token)


async def test_the_lag_grows_while_the_store_refuses_inserts(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lag falls to 0 again, and every row is stored once."""
    monkeypatch.setattr("analytics.ingestion.ingestion._LAG_S", 0.01)
    monkeypatch.setattr("services.process.retries._LAST_RETRY_S", 0.1)
    down = RefusingStore(clickhouse, 0, after=False)
    lag = LAG.labels("analytics", "push-commands")
    limits = IngestionLimits(flush_s=0.01, ready_s=0.01, max_records=3)
    async with running_ingestion(new_ingestion(log, down, tmp_path, limits)) as ingestion:  # type: ignore[arg-type]
        await log.append([send(1000 + n) for n in range(50)])
        await until_holds(lambda: lag._value.get() >= 50)
        down.is_back = True
        assert await ingestion.catch_up() == 0
        await until_holds(lambda: not lag._value.get())
    assert await value(clickhouse, "SELECT count() FROM pushes") == 50


INGESTING = "tests.analytics.ingestion.ingesting_process"


@pytest.mark.long
async def test_repeated_sigkill(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    records = [record for round_ in range(40) for record in new_records(round_)]
    await log.append(records)
    await log.close()
    for kill in range(4):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", INGESTING, str(tmp_path), stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        assert child.stdout
        taken = 0
        while taken < (kill + 1) * len(records) // 8:
            line = await asyncio.wait_for(child.stdout.readline(), 60)
            assert line, "the child ended by itself"
            taken = int(line) if line.strip().isdigit() else taken
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()

    log = SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    clickhouse = ClickHouse(None, tmp_path / "chdb", low_priority=False)
    await clickhouse.open()
    await migrate(clickhouse)
    try:
        before = (await counts(clickhouse))["deliveries"]
        assert 0 < before < 40 * 300
        await assert_exact(log, clickhouse, tmp_path, 40)
        assert await digest(clickhouse)
    finally:
        await clickhouse.close()
        await log.close()


async def test_ingestion_continues_after_a_full_disk(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_ingestion(new_ingestion(log, clickhouse, tmp_path, IngestionLimits(catch_up_s=20))) as ingestion:
        await log.append([send(1000)])
        assert await ingestion.catch_up() == 0
        await log.append([send(1001)])
        with full_disk((tmp_path / "offsets.db-wal").stat().st_size), capture_logs() as logs:
            await until_holds(
                lambda: any(line["event"] == "the offsets of analytics cannot be written" for line in logs)
            )
        assert await ingestion.catch_up() == 0
    assert await value(clickhouse, "SELECT arraySort(groupArray(msgid)) FROM pushes") == [1000, 1001]
