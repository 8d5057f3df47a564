"""ClickHouse is down, hangs, or refuses: memory stays bounded, every row is stored once, the cause is logged."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from analytics.ingestion.batch_reader import IngestionLimits
from analytics.store.clickhouse import ClickHouse
from services.domain.topics import PUSH_COMMANDS
from services.errors import UnavailableError
from services.log.port import DelegatingLog, Log, NewRecord, Partition, Reader, Record
from services.log.sqlite.log import SqliteLog
from services.process.metrics import LAG
from testkit.clickhouse.databases import EmptyDatabases
from testkit.clickhouse.server import ClickHouseServer, LossyNetwork
from testkit.waiting import run_ready_tasks, until_holds
from tests.analytics.records import send
from tests.analytics.service import new_ingestion, running_ingestion, value

A_BATCH = 10
SMALL = IngestionLimits(flush_s=0.01, max_records=A_BATCH, catch_up_s=60, stop_s=2)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseServer]:
    server = ClickHouseServer(tmp_path_factory.mktemp("server") / "data")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server(shared_server: ClickHouseServer) -> Iterator[ClickHouseServer]:
    """A server that tests may kill, pause, and let refuse."""
    yield shared_server
    shared_server.refuse_inserts("")
    if shared_server.running:
        shared_server.resume()
    else:
        shared_server.start()


@pytest.fixture(scope="module")
def databases(shared_server: ClickHouseServer) -> Iterator[EmptyDatabases]:
    engine = ClickHouse(shared_server.url, Path(), "unused")
    asyncio.run(engine.open())
    yield EmptyDatabases(engine, (f"history{number}" for number in itertools.count()))
    asyncio.run(engine.close())


@pytest.fixture
async def store(server: ClickHouseServer, databases: EmptyDatabases) -> AsyncIterator[ClickHouse]:
    name = await databases.take()
    clickhouse = ClickHouse(server.url, Path(), name)
    await clickhouse.open()
    yield clickhouse
    await clickhouse.close()
    await databases.give_back(name)


class CountingLog(DelegatingLog):
    """A log that counts the records and bytes its readers have returned."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.records = 0
        self.bytes = 0

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return CountingReader(await super().open(starts), self)


class CountingReader:
    def __init__(self, reader: Reader, log: CountingLog) -> None:
        self._reader = reader
        self._log = log

    async def read(self, max_records: int = 5000) -> list[Record]:
        records = await self._reader.read(max_records)
        self._log.records += len(records)
        self._log.bytes += sum(len(record.value) for record in records)
        return records

    async def close(self) -> None:
        await self._reader.close()


class RecordingStore:
    """A store that notes the table and rows of every insert."""

    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self.came: list[tuple[str, pa.Table]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clickhouse, name)

    async def insert(self, table: str, rows: pa.Table, token: str) -> None:
        await self._clickhouse.insert(table, rows, token)
        self.came.append((table, rows))


def refusals(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["event"] == "rows for pushes cannot be inserted"]


async def sent(store: ClickHouse) -> list[int]:
    """Return the message ids of all stored rows, merged or not."""
    ids: list[int] = await value(store, "SELECT arraySort(groupArray(msgid)) FROM pushes")
    return ids


@pytest.fixture
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.process.retries._LAST_RETRY_S", 0.1)


async def assert_callers_can_leave(store: ClickHouse) -> None:
    """The threads of their queries stay occupied until the server answers; more callers than threads ask."""
    leaving = [asyncio.create_task(store.rows("SELECT 1")) for _ in range(6)]
    await run_ready_tasks()
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    assert all(task.cancelled() for task in leaving)


@pytest.mark.usefixtures("short_retries")
@pytest.mark.parametrize("hangs", [False, pytest.param(True, marks=pytest.mark.long)], ids=["down", "hanging"])
async def test_memory_does_not_grow_with_the_log(
    server: ClickHouseServer, store: ClickHouse, log: SqliteLog, tmp_path: Path, hangs: bool
) -> None:
    """At most a batch being inserted, the next one and one read are in memory, while the log grows fifty times."""
    counting = CountingLog(log)
    async with running_ingestion(new_ingestion(counting, store, tmp_path, SMALL)) as ingestion:
        await log.append([send(1)])
        assert await ingestion.catch_up() == 0
        server.pause() if hangs else server.kill()
        with capture_logs() as logs:
            for first in range(2, 502, 100):
                await log.append([send(msgid) for msgid in range(first, first + 100)])
                before = len(refusals(logs))
                await until_holds(lambda: counting.records >= 1 + 2 * A_BATCH)
                await until_holds(lambda: hangs or len(refusals(logs)) > before)  # noqa: B023
                assert counting.records <= 1 + 3 * A_BATCH
        assert ingestion.ends(PUSH_COMMANDS) == {0: 1}
        if hangs:
            await assert_callers_can_leave(store)
        server.resume() if hangs else await asyncio.to_thread(server.start)
        assert await ingestion.catch_up() == 0
    assert counting.records == 501
    assert await sent(store) == list(range(1, 502))


@pytest.mark.usefixtures("short_retries")
async def test_memory_is_bounded_by_bytes_too(
    server: ClickHouseServer, store: ClickHouse, log: SqliteLog, tmp_path: Path
) -> None:
    """One read returns everything; it is written in batches of a few records before anything else is read."""
    counting, noting = CountingLog(log), RecordingStore(store)
    size = len(send(1000).value)
    pace = IngestionLimits(flush_s=0.01, max_bytes=5 * size, catch_up_s=60, stop_s=2)
    async with running_ingestion(new_ingestion(counting, noting, tmp_path, pace)) as ingestion:  # type: ignore[arg-type]
        await asyncio.to_thread(server.kill)
        with capture_logs() as logs:
            await log.append([send(msgid) for msgid in range(1000, 1100)])
            await until_holds(lambda: bool(refusals(logs)))
            for msgid in range(1100, 1103):
                await log.append([send(msgid)])
                tried = len(refusals(logs))
                await until_holds(lambda: len(refusals(logs)) > tried)  # noqa: B023
        assert counting.bytes == 100 * size
        await asyncio.to_thread(server.start)
        assert await ingestion.catch_up() == 0
    assert [rows.num_rows for _, rows in noting.came][:20] == [5] * 20
    assert await sent(store) == list(range(1000, 1103))


UNDO = "undo the change made in the database, or rebuild it with `carillon replay analytics`"
CHANGED = [
    ("ALTER TABLE pushes DROP COLUMN qps", "ALTER TABLE pushes ADD COLUMN qps UInt32", "No such column qps"),
    ("RENAME TABLE pushes TO away", "RENAME TABLE away TO pushes", "does not exist"),
    (
        "ALTER TABLE pushes DROP COLUMN qps, ADD COLUMN qps Array(UInt32)",
        "ALTER TABLE pushes DROP COLUMN qps, ADD COLUMN qps UInt32",
        "",
    ),
]


@pytest.mark.usefixtures("short_retries")
@pytest.mark.parametrize(("change", "undo", "why"), CHANGED, ids=["column missing", "table missing", "other type"])
async def test_a_table_whose_schema_was_changed(
    server: ClickHouseServer, store: ClickHouse, log: SqliteLog, tmp_path: Path, change: str, undo: str, why: str
) -> None:
    async with running_ingestion(new_ingestion(log, store, tmp_path, SMALL)) as ingestion:
        await store.command(change)
        with capture_logs() as logs:
            await log.append([send(msgid) for msgid in range(1000, 1050)])
            await until_holds(lambda: len(refusals(logs)) > 2)
        assert all(UNDO in line["error"] and why in line["error"] for line in refusals(logs))
        assert ingestion.ends(PUSH_COMMANDS) == {0: 0}
        await store.command(undo)
        assert await ingestion.catch_up() == 0
    assert await sent(store) == list(range(1000, 1050))


REFUSED = [
    ("Code: 243. DB::Exception: Cannot reserve 1.00 MiB. (NOT_ENOUGH_SPACE)", "free space on ClickHouse's disk"),
    ("Code: 164. DB::Exception: Cannot execute query in readonly mode. (READONLY)", "writable again"),
    ("Code: 242. DB::Exception: Table is in readonly mode. (TABLE_IS_READ_ONLY)", "writable again"),
    ("Code: 497. DB::Exception: Not enough privileges. (ACCESS_DENIED)", "give the user of CARILLON_CLICKHOUSE_URL"),
    ("Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)", "correct the user and password"),
]


@pytest.mark.usefixtures("short_retries")
async def test_refusals_are_logged_with_a_hint(
    server: ClickHouseServer, store: ClickHouse, log: SqliteLog, tmp_path: Path
) -> None:
    """Each refusal in turn lasts until it is repaired; user name and password stay out of the log."""
    async with running_ingestion(new_ingestion(log, store, tmp_path, SMALL)) as ingestion:
        for msgid, (error, remedy) in enumerate(REFUSED, 1000):
            server.refuse_inserts(error)
            with capture_logs() as logs:
                await log.append([send(msgid)])
                await until_holds(lambda: len(refusals(logs)) > 1)
            for line in refusals(logs):
                assert error in line["error"]
                assert remedy in line["error"]
                assert "secret" not in str(line)
            assert await sent(store) == list(range(1000, msgid))
            server.refuse_inserts("")
            assert await ingestion.catch_up() == 0
    assert await sent(store) == list(range(1000, 1000 + len(REFUSED)))


async def test_a_refused_insert_is_retried_with_back_off(
    server: ClickHouseServer, store: ClickHouse, log: SqliteLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits double up to a bound, and inserts into other tables continue."""
    monkeypatch.setattr("services.process.retries._FIRST_RETRY_S", 0.001)
    monkeypatch.setattr("services.process.retries._LAST_RETRY_S", 0.02)
    async with running_ingestion(new_ingestion(log, store, tmp_path, SMALL)):
        await store.command("RENAME TABLE pushes TO away")
        with capture_logs() as logs:
            await log.append([send(1000), NewRecord(PUSH_COMMANDS.name, 0, b"", b"\xff")])
            await until_holds(lambda: len(refusals(logs)) > 6)
        assert [line["again_in_s"] for line in refusals(logs)][:7] == [0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02]


@pytest.mark.usefixtures("short_retries")
async def test_the_lag_counts_refused_records(
    server: ClickHouseServer, store: ClickHouse, log: SqliteLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analytics.ingestion.ingestion._LAG_S", 0.01)
    lag = LAG.labels("analytics", PUSH_COMMANDS.name)
    async with running_ingestion(new_ingestion(log, store, tmp_path, SMALL)) as ingestion:
        server.refuse_inserts(REFUSED[0][0])
        await log.append([send(msgid) for msgid in range(1000, 1030)])
        await until_holds(lambda: lag._value.get() == 30)
        server.refuse_inserts("")
        assert await ingestion.catch_up() == 0
        await until_holds(lambda: lag._value.get() == 0)


async def test_a_file_whose_connection_breaks(server: ClickHouseServer, store: ClickHouse) -> None:
    """The reader of the file gets an error and does not take a part for the whole file."""
    async with LossyNetwork(server.port).open() as network:
        reading = ClickHouse(network.url, Path(), "history")
        await reading.open()
        network.most_bytes = 300_000
        with pytest.raises(UnavailableError, match="ClickHouse"):
            async with reading.file("SELECT number FROM numbers(1000000)", {}, "CSVWithNames") as pieces:
                async for _ in pieces:
                    pass
        await reading.close()
