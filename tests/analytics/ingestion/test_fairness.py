"""Statistics of one app are answered although many outcomes of another app have not been ingested."""

import asyncio
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from analytics.digest import counts
from analytics.ingestion.batch_reader import PIECE_BYTES, IngestionLimits, ReadersInTurn
from analytics.ingestion.batch_writer import BatchWriter
from analytics.ingestion.look_ahead import LookAhead
from analytics.server import AnalyticsServicer
from analytics.statistics.logins import count_days
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditPushRequest, StatisticsKind, StatisticsRequest, TimeScope
from protos.delivery.v1.delivery_pb2 import DeliveryFact, OutcomeKind
from protos.gateway.v1.sessions_pb2 import SessionEventKind
from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import DELIVERIES, SESSIONS
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.replica.dead_letters import DeadLetters
from services.replica.fencing import ANNOUNCEMENT_KEY
from tests.analytics.records import APP, PARTITIONS, T0, app_outcomes, device, outcomes, send, session, started
from tests.analytics.service import new_ingestion, running_ingestion, value

NOISY = "2000000000"
RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED
_BATCHES_BEFORE_STANDSTILL = 6
_BACKLOG = 200


class SlowStore:
    """Stores some batches with outcomes of the noisy app, and the next one only after `go_on`."""

    def __init__(self, clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = asyncio.Event()
        self._noisy_batches = 0
        self._insert = clickhouse.insert
        monkeypatch.setattr(clickhouse, "insert", self.insert)

    async def insert(self, table: str, rows: pa.Table, token: str) -> None:
        if table == "deliveries" and NOISY in rows.column("appkey").to_pylist():
            self._noisy_batches += 1
            if self._noisy_batches > _BATCHES_BEFORE_STANDSTILL:
                await self.go_on.wait()
        await self._insert(table, rows, token)


def backlog() -> list[NewRecord]:
    return [outcomes(1, app_outcomes(n, range(5), RECEIVED, appkey=NOISY), seed=str(n)) for n in range(_BACKLOG)]


async def test_a_quiet_apps_questions_do_not_wait_for_a_noisy_apps_backlog(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowStore(clickhouse, monkeypatch)
    await count_days(clickhouse, ZoneInfo("UTC"))
    small = IngestionLimits(flush_s=0.01, max_records=10, catch_up_s=20, stop_s=2)
    async with running_ingestion(new_ingestion(log, clickhouse, tmp_path, small)) as ingestion:
        servicer: Any = AnalyticsServicer(
            ingestion, clickhouse, ManualClock(T0), ZoneInfo("UTC"), partitions=PARTITIONS, ack_delay_ms=0
        )

        async def statistics(kind: StatisticsKind.ValueType, **question: Any) -> Any:
            return await servicer.Statistics(StatisticsRequest(appkey=APP, kind=kind, **question), None)

        quiet = app_outcomes(1000, [3], RECEIVED)
        mixed = outcomes(1, app_outcomes(_BACKLOG, [1], RECEIVED, appkey=NOISY), quiet, seed="mixed")
        login = session(3, SessionEventKind.SESSION_EVENT_KIND_LOGGED_IN, T0)
        await log.append([*backlog(), device(3), send(1000), started(1000, 1, [3, 4]), login, mixed])

        today = await statistics(StatisticsKind.STATISTICS_KIND_LOGINS, scope=TimeScope.TIME_SCOPE_TODAY)
        assert today.logins[0].counts[1] == 1
        for _ in range(2):
            push = await statistics(StatisticsKind.STATISTICS_KIND_BROADCASTS, msgid=1000)
            assert (push.broadcasts[0].target, push.broadcasts[0].received) == (2, 1)
        audit = await servicer.AuditPush(AuditPushRequest(msgid=1000), None)
        assert {entry.event: entry.count for entry in audit.timeline}["received"] == 1
        assert ingestion.ends(DELIVERIES)[1] < _BACKLOG

        store.go_on.set()
        assert await ingestion.catch_up() == 0
        assert (await counts(clickhouse))["deliveries"] == 5 * _BACKLOG + 2
        assert (await statistics(StatisticsKind.STATISTICS_KIND_BROADCASTS, msgid=1000)).broadcasts == push.broadcasts


async def test_outcomes_are_looked_for_only_of_an_app_that_has_few(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    await log.append(backlog())
    dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "analytics")
    writer = BatchWriter(clickhouse, tmp_path / "offsets.db", dead_letters, instance="0/1", stores_commands=True)
    await writer.open()
    await writer.load()
    outcomes_1 = Partition(DELIVERIES.name, 1)

    assert not await LookAhead(log, writer, max_rows=50).ingest(NOISY, {outcomes_1: 0}, {outcomes_1: _BACKLOG})
    assert await value(clickhouse, "SELECT count() FROM deliveries") == 0
    look_ahead = LookAhead(log, writer, max_rows=50, max_apps=1)
    for appkey in (NOISY, APP, NOISY):  # The second makes the first forgotten, which is then read once more.
        assert await look_ahead.ingest(appkey, {outcomes_1: 0}, {outcomes_1: 10})
        assert await value(clickhouse, "SELECT count() FROM deliveries FINAL") == 50
    await writer.close()


async def test_outcomes_of_a_former_process_are_not_ingested_ahead(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    await log.append([epoch(1), *(of_epoch(1, 3, n) for n in range(5)), epoch(2), of_epoch(2, 4), of_epoch(1, 5)])
    await log.append([of_epoch(1, 6), of_epoch(2, 7)])
    dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "analytics")
    writer = BatchWriter(clickhouse, tmp_path / "offsets.db", dead_letters, instance="0/1", stores_commands=True)
    await writer.open()
    await writer.load()
    look_ahead = LookAhead(log, writer)
    for end in (9, 11):
        assert await look_ahead.ingest(APP, {Partition(DELIVERIES.name, 1): 0}, {Partition(DELIVERIES.name, 1): end})
    assert await value(clickhouse, "SELECT arraySort(groupUniqArray(number)) FROM deliveries") == [3, 4, 7]
    await writer.close()


def epoch(number: int) -> NewRecord:
    """Return the announcement of an epoch."""
    fact = DeliveryFact(meta=Meta(epoch=number))
    return NewRecord(DELIVERIES.name, 1, ANNOUNCEMENT_KEY + b"%d" % number, fact.SerializeToString())


def of_epoch(number: int, device_number: int, nth: int = 0) -> NewRecord:
    new_record = outcomes(1, app_outcomes(1000 + nth, [device_number], RECEIVED), seed=f"{number} {device_number}")
    fact = DeliveryFact.FromString(new_record.value)
    fact.meta.epoch = number
    return new_record._replace(value=fact.SerializeToString())


async def test_a_reader_with_a_backlog_leaves_each_second_piece_to_the_other(log: SqliteLog) -> None:
    large, few = Partition(DELIVERIES.name, 0), Partition(SESSIONS.name, 0)
    await log.append([NewRecord(*large, b"", bytes(PIECE_BYTES // 4)) for _ in range(40)])
    await log.append([NewRecord(*few, b"", b"") for _ in range(3)])
    readers = ReadersInTurn([await log.open({large: 0}), await log.open({few: 0})])
    pieces = [await readers.read()]
    await asyncio.gather(*readers._reading.values())
    pieces += [await readers.read() for _ in range(2)]
    assert [len(piece) for piece in pieces if piece[0].topic == large.topic][:2] == [4, 4]
    assert [len(piece) for piece in pieces if piece[0].topic == few.topic] == [3]
    while sum(map(len, pieces)) < 43:
        pieces.append(await readers.read())
    await log.append([NewRecord(*few, b"", b"")])
    pieces.append(await readers.read())
    for partition, count in {large: 40, few: 4}.items():
        assert [r.offset for piece in pieces for r in piece if r.topic == partition.topic] == list(range(count))
    await readers.close()
