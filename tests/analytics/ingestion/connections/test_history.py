"""Changes of the number of connections: each counts once, with the attributes that its device had then."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from analytics.ingestion.attributes import CountedAttributes
from analytics.ingestion.connections.history import load
from analytics.ingestion.connections.spans import LatestConnections, NumberedDevice
from analytics.ingestion.ingestion import Ingestion
from analytics.store.clickhouse import ClickHouse
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from services.domain.topics import DEVICES
from services.log.port import Log, NewRecord, Partition, Reader, Record
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import APP, T0, app_outcomes, connection_counts, device, outcomes, session, started
from tests.analytics.service import ingest, new_ingestion, running_ingestion, value

OPENED, CLOSED = Session.SESSION_EVENT_KIND_OPENED, Session.SESSION_EVENT_KIND_CLOSED
MINUTE_MS = 60_000
DAY_MS = 86_400_000
START_MS = T0 // DAY_MS * DAY_MS
COLUMNS = {
    "connection_changes": "dateDiff('minute', toDateTime({start_s:UInt32}, 'UTC'), minute)",
    "connection_days": "0",
}

Sums = dict[tuple[str, int, str], int]


def opened(number: int, minute: int, connection: int, gateway: str = "g1", partition: int = 1) -> NewRecord:
    return session(number, OPENED, START_MS + minute * MINUTE_MS, partition, "", connection, gateway)


def closed(number: int, minute: int, connection: int, gateway: str = "g1", partition: int = 1) -> NewRecord:
    return session(number, CLOSED, START_MS + minute * MINUTE_MS, partition, "", connection, gateway)


def device_in_region(number: int, region: str, partition: int = 1, time_ms: int = T0) -> NewRecord:
    return device(number, partition, time_ms=time_ms, attributes={"region": region})


async def sums(clickhouse: ClickHouse, category: str = "region") -> Sums:
    """Return the sums by gateway, minute after START_MS and value; check that those by hours and by days agree."""
    of_table = {table: await _sums(clickhouse, table, category) for table in COLUMNS}
    of_days = Counter[tuple[str, int, str]]()
    for (gateway, _, info), change in of_table["connection_changes"].items():
        of_days[gateway, 0, info] += change
    assert of_table["connection_days"] == {key: change for key, change in of_days.items() if change}
    assert await _sums_by_hours(clickhouse, category) == of_table["connection_changes"]
    return of_table["connection_changes"]


async def _sums_by_hours(clickhouse: ClickHouse, category: str) -> Sums:
    rows = await clickhouse.rows(
        """SELECT gateway, dateDiff('minute', toDateTime({start_s:UInt32}, 'UTC'), hour) + minute - 1, info, change
        FROM (
          SELECT gateway, hour, info, sumWithOverflowForEachMerge(changes) AS by_minute FROM connection_hours
          WHERE category = {category:String} AND ingester IN (SELECT identity FROM ingesters FINAL)
          GROUP BY gateway, hour, info)
        ARRAY JOIN by_minute AS change, arrayEnumerate(by_minute) AS minute WHERE change != 0""",
        {"category": category, "start_s": START_MS // 1000},
    )
    return {(gateway, minute, info): change for gateway, minute, info, change in rows}


async def _sums(clickhouse: ClickHouse, table: str, category: str) -> Sums:
    rows = await clickhouse.rows(
        f"""SELECT gateway, {COLUMNS[table]} AS minute, info, sum(change) FROM {table}
        WHERE category = {{category:String}} AND ingester IN (SELECT identity FROM ingesters FINAL)
        GROUP BY gateway, minute, info HAVING sum(change) != 0""",
        {"category": category, "start_s": START_MS // 1000},
    )
    return {(gateway, minute, info): change for gateway, minute, info, change in rows}


async def test_changes_are_added_up(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """Sums exist for each attribute; a connection keeps the attributes of its opening over a restart."""
    await ingest(
        log,
        clickhouse,
        tmp_path,
        [
            device_in_region(1, "north"),
            device_in_region(2, "north"),
            opened(1, 5, 1),
            opened(2, 5, 2),
            opened(3, 6, 3),
            closed(2, 9, 2),
        ],
    )
    start = {("g1", 5, "north"): 2, ("g1", 9, "north"): -1, ("g1", 6, ""): 1}
    assert await sums(clickhouse) == start
    assert await sums(clickhouse, "brand") == {("g1", 5, ""): 2, ("g1", 9, ""): -1, ("g1", 6, ""): 1}

    await ingest(log, clickhouse, tmp_path, [device_in_region(1, "south", time_ms=T0 + 1)])
    await ingest(log, clickhouse, tmp_path, [opened(1, 20, 4, "g2"), closed(3, 25, 3)])
    assert await sums(clickhouse) == {
        **start,
        ("g1", 20, "north"): -1,
        ("g2", 20, "south"): 1,
        ("g1", 25, ""): -1,
    }


async def test_repeated_records_change_nothing(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    new_records = [opened(1, 5, 1), closed(1, 9, 1), opened(1, 20, 2, "g2")]
    await ingest(log, clickhouse, tmp_path, new_records)
    once = await sums(clickhouse)
    assert once == {("g1", 5, ""): 1, ("g1", 9, ""): -1, ("g2", 20, ""): 1}
    await ingest(log, clickhouse, tmp_path, new_records)
    assert await sums(clickhouse) == once


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_late_end_corrects_the_sums(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, restarts: bool
) -> None:
    counts = [connection_counts(START_MS + minute * MINUTE_MS, {APP: 1}, "g2") for minute in (3, 21)]
    first, late = [*counts, opened(1, 5, 1), opened(1, 20, 2, "g2")], [closed(1, 9, 1)]
    for new_records in (first, late) if restarts else ([*first, *late],):
        await ingest(log, clickhouse, tmp_path, new_records)
    assert await sums(clickhouse) == {("g1", 5, ""): 1, ("g1", 9, ""): -1, ("g2", 20, ""): 1}


async def test_an_ingester_without_offsets_doubles_nothing(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """Connections then count with the current attributes, and the rows of the replaced ingester are dropped."""
    await ingest(log, clickhouse, tmp_path, [device_in_region(1, "north"), opened(1, 5, 1)])
    await ingest(log, clickhouse, tmp_path, [device_in_region(1, "south", time_ms=T0 + 1)])
    assert await sums(clickhouse) == {("g1", 5, "north"): 1}

    await ingest(log, clickhouse, tmp_path / "other", [])
    assert await sums(clickhouse) == {("g1", 5, "south"): 1}
    assert await value(clickhouse, "SELECT uniqExact(ingester) FROM connection_changes") == 1

    await ingest(log, clickhouse, tmp_path / "other", [device_in_region(1, "west", time_ms=T0 + 2), closed(1, 9, 1)])
    assert await sums(clickhouse) == {("g1", 5, "south"): 1, ("g1", 9, "south"): -1}, "as the new ingester stored it"


async def test_a_store_without_ingesters_is_filled_again(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    new_records = [device_in_region(1, "north"), opened(1, 5, 1), closed(1, 9, 1)]
    await ingest(log, clickhouse, tmp_path, new_records)
    for table in (*COLUMNS, "ingesters"):
        await clickhouse.command(f"TRUNCATE TABLE {table}")
    await ingest(log, clickhouse, tmp_path, [])
    assert await sums(clickhouse) == {("g1", 5, "north"): 1, ("g1", 9, "north"): -1}


async def test_several_ingesters_add_up(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """First one of two ingesters starts from nothing, then a single one takes over all partitions."""
    expected = {("g1", 5, ""): 4, ("g1", 9, ""): -4}
    new_records = [
        new_record for p in range(4) for new_record in (opened(1, 5, 1, partition=p), closed(1, 9, 1, partition=p))
    ]
    await log.append(new_records)
    await read(log, clickhouse, {0: tmp_path / "a", 1: tmp_path / "b"})
    assert await sums(clickhouse) == expected
    await read(log, clickhouse, {0: tmp_path / "a", 1: tmp_path / "b-lost"})
    assert await sums(clickhouse) == expected
    await read(log, clickhouse, {0: tmp_path / "c"})
    assert await sums(clickhouse) == expected
    assert await value(clickhouse, "SELECT count() FROM ingesters FINAL") == 1


async def read(log: Log, clickhouse: ClickHouse, directories: Mapping[int, Path]) -> None:
    """Ingest everything with this number of instances."""
    async with AsyncExitStack() as stack:
        for shard, directory in directories.items():
            made = new_ingestion(log, clickhouse, directory, shard=shard, shards=len(directories))
            ingestion: Ingestion = await stack.enter_async_context(running_ingestion(made))
            assert await ingestion.catch_up() == 0


class HoldingLog:
    """A log that holds back records of `devices` from readers of several topics until they are released."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.lets_go = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        reader = await self._log.open(starts)
        is_devices_only = all(partition.topic == DEVICES.name for partition in starts)
        return reader if is_devices_only else HoldingReader(reader, self)


class HoldingReader:
    def __init__(self, reader: Reader, log: HoldingLog) -> None:
        self._reader = reader
        self._log = log
        self._held: list[Record] = []

    async def read(self, max_records: int = 5000) -> list[Record]:
        while True:
            records = await self._reader.read(max_records)
            if self._log.lets_go:
                held, self._held = self._held, []
                return held + records
            self._held += [record for record in records if record.topic == DEVICES.name]
            if others := [record for record in records if record.topic != DEVICES.name]:
                return others

    async def close(self) -> None:
        await self._reader.close()


def naming(number: int, msgid: int) -> Sequence[NewRecord]:
    """Return records of each kind that refers to a device."""
    return [
        opened(number, 5, msgid),
        outcomes(1, app_outcomes(msgid, [number], Outcome.OUTCOME_KIND_SENT), seed=str(msgid)),
        started(msgid, 1, [number]),
    ]


async def test_devices_are_ingested_before_records_that_refer_to_them(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """Their records are ingested first, even if read later. A device without any record stays unknown."""
    holding = HoldingLog(log)
    async with running_ingestion(new_ingestion(holding, clickhouse, tmp_path)) as ingestion:
        for number in (1, 2, 3):
            await log.append([device_in_region(number, "north")])
            await log.append([naming(number, number)[number - 1]])
            assert await ingestion.catch_up() == 0
        await log.append(naming(9, 9))
        assert await ingestion.catch_up() == 0
        ends = ingestion.ends(DEVICES)
        holding.lets_go = True
        await log.append([closed(1, 9, 1)])
        assert await ingestion.catch_up() == 0
        assert ingestion.ends(DEVICES) == ends
    assert await sums(clickhouse) == {("g1", 5, "north"): 1, ("g1", 9, "north"): -1, ("g1", 5, ""): 1}
    assert await value(clickhouse, "SELECT groupArray(region) FROM deliveries WHERE number = 2") == ["north"]
    assert await value(clickhouse, "SELECT groupArray(mapKeys(region)) FROM push_values WHERE msgid = 3") == [["north"]]
    assert await value(clickhouse, "SELECT count() FROM devices") == 3


async def test_ended_connections_are_not_loaded(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """Not loaded: connections of gateways without counts for two days, and records behind the offsets."""
    minutes = {"gone": range(0, 10), "there": range(10, 3 * 1440, 60)}
    counts = [
        connection_counts(START_MS + minute * MINUTE_MS, {APP: 1}, gateway)
        for gateway, of_gateway in minutes.items()
        for minute in of_gateway
    ]
    new_records = [opened(1, 1, 1, "gone"), opened(2, 10, 2, "there"), opened(3, 3 * 1440, 3, "there")]
    await ingest(log, clickhouse, tmp_path, [*counts, *new_records])

    async def known(end: int) -> list[int]:
        spans = LatestConnections()
        await load(spans, CountedAttributes(), clickhouse, {0: end, 1: end})
        return [number for number in (1, 2, 3) if spans.closed(NumberedDevice(APP, 1, number), number, 5000)]

    assert await known(0) == []
    assert await known(2) == [2]
    assert await known(3) == [2, 3]
