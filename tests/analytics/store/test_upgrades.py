"""A store created and filled by an older version answers like a new one after an upgrade."""

import re
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from analytics.digest import counts, digest
from analytics.ingestion.ingestion import sources
from analytics.statistics.logins import LoginCounts, count_days
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import Migration, migrate, migrations
from analytics.store.offsets import Offsets, Range
from protos.analytics.v1.details_pb2 import AudienceSummary
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from protos.push.v1.push_pb2 import Audience, Devices, Everyone, Kind
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from tests.analytics.every_answer import answers
from tests.analytics.ingestion.test_ingestion import BEIJING, SHANGHAI, history
from tests.analytics.ingestion.test_outage import RecordingStore
from tests.analytics.records import (
    APP,
    PARTITIONS,
    T0,
    app_outcomes,
    connection_counts,
    device,
    outcomes,
    send,
    session,
    started,
)
from tests.analytics.service import ingest, running_service

ZONE = "Asia/Shanghai"
RENAMED = {"interface": "door"}
"""The former names of columns."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TODAY = date(2026, 9, 21)
WITH_LOGIN_DAYS = range(4, 9)
LOGIN_DAYS_THEN = """
CREATE MATERIALIZED VIEW login_days_of_sessions TO login_days AS
SELECT appkey, category, toDate32(time, 'Asia/Shanghai') AS day, info,
  groupBitmapState(bitShiftLeft(toUInt64(partition), 32) + number) AS devices
FROM sessions
ARRAY JOIN ['', 'region', 'carrier', 'channel', 'sdk_version', 'brand'] AS category,
  ['', toString(region), toString(carrier), toString(channel), toString(sdk_version), toString(brand)] AS info
WHERE kind = 'logged_in'
GROUP BY appkey, category, day, info
"""
"""As the versions between the fourth and the eighth migration made it at their start."""

WITH_TITLES = 19
"""The first version that stores the titles of pushes."""

_PUSH_TITLE = re.compile(r' *push_title: "[^"]*"\n')
BEFORE_SUMMARIES = 22
LISTED = """
INSERT INTO pushes (appkey, msgid, last_msgid, kind, audience, target_numbers)
SELECT '1', {msgid:UInt64}, {msgid:UInt64}, 'unicast', if({size:UInt32} = 0, 'everyone', 'a list'), range({size:UInt32})
"""
LOG_IN = """
INSERT INTO sessions (appkey, partition, number, kind, time)
SELECT {app:String}, 1, {number:UInt32}, 'logged_in', fromUnixTimestamp64Milli({time_ms:Int64})
"""
CHANGE = """
INSERT INTO connection_changes (appkey, category, info, gateway, minute, reader, change)
SELECT {app:String}, 'region', 'north', 'g1', fromUnixTimestamp64Milli({minute_ms:Int64}), 'r', {change:Int64}
"""
BY_HOURS = """
SELECT dateDiff('hour', fromUnixTimestamp64Milli({start_ms:Int64}), hour), sumWithOverflowForEachMerge(changes)
FROM connection_hours GROUP BY hour ORDER BY hour
"""
_COLUMNS = "SELECT table, groupArray(name) FROM system.columns WHERE database = currentDatabase() GROUP BY table"


def before() -> list[NewRecord]:
    """Return the records ingested by the older version."""
    listed = Devices(
        partitions=np.array([1, 1], "<u2").tobytes(),
        numbers=np.array([3, 4], "<u4").tobytes(),
        id_offsets=np.array([0, 1], "<u4").tobytes(),
    )
    return [
        *history(),
        device(4, attributes=SHANGHAI),
        session(3, Session.SESSION_EVENT_KIND_LOGGED_IN, T0 + 5),
        session(4, Session.SESSION_EVENT_KIND_LOGGED_IN, T0 + 6),
        send(2000, audience=Audience(devices=listed), id_count=2, kind=Kind.KIND_UNICAST),
        outcomes(
            1,
            app_outcomes(2000, [3], Outcome.OUTCOME_KIND_RECEIVED, T0 + 70),
            app_outcomes(2001, [4], Outcome.OUTCOME_KIND_RECEIVED, T0 + 71),
            seed="receipts",
        ),
    ]


def after() -> list[NewRecord]:
    """Return the records that arrive while this version runs."""
    later = T0 + HOUR_MS
    return [
        device(5, time_ms=later, registered_ms=later, attributes=BEIJING),
        session(5, Session.SESSION_EVENT_KIND_LOGGED_IN, later),
        connection_counts(later, {APP: 2}),
        send(3000, time_ms=later),
        started(3000, 1, [3, 4, 5], later),
        outcomes(1, app_outcomes(3000, [3, 5], Outcome.OUTCOME_KIND_SENT, later + 1), seed="later"),
        outcomes(1, app_outcomes(2001, [4], Outcome.OUTCOME_KIND_SHOWN, later + 2), seed="shown"),
    ]


@pytest.fixture
async def fresh(engine: ClickHouse, clickhouse: ClickHouse) -> AsyncIterator[ClickHouse]:
    """Another database, created by this version."""
    database = engine.beside(f"{clickhouse.database}_fresh")
    await migrate(database)
    yield database
    await database.close()


async def create_by_version(version: int, store: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the store as the version with this number of migrations did."""
    await store.drop()
    known: list[Migration] = migrations()[:version]
    with monkeypatch.context() as patch:
        patch.setattr("analytics.store.migrate.migrations", lambda: known)
        await migrate(store)
    if version in WITH_LOGIN_DAYS:
        await store.command(LOGIN_DAYS_THEN)


async def fill_by_version(
    store: ClickHouse, tables: Sequence[tuple[str, pa.Table]], ends: Mapping[Partition, int], state: Path
) -> None:
    """Insert the columns that the store has, and note everything up to the ends as ingested."""
    offsets = Offsets(state)
    identity = offsets.restart()
    batch = {partition: Range(0, end) for partition, end in ends.items() if end}
    offsets.begin(batch)
    offsets.end(batch, {}, {})
    offsets.close()
    columns: dict[str, list[str]] = dict(await store.rows(_COLUMNS))  # type: ignore[arg-type]
    for number, (name, new) in enumerate(tables):
        had_former_name = RENAMED["interface"] in columns.get(name, [])
        rows = new.rename_columns(RENAMED) if had_former_name else new
        if had := [column for column in rows.column_names if column in columns.get(name, [])]:
            await store.insert(name, rows.select(had), f"{number}")
    if "readers" in columns:
        await store.command("INSERT INTO readers (instance, identity) SELECT '0/1', {of:String}", {"of": identity})


async def answers_after_upgrade(log: SqliteLog, store: ClickHouse, directory: Path) -> list[str]:
    """Return all answers once this version has ingested the log."""
    now_ms = T0 + 2 * HOUR_MS
    device_command = {"broadcasts": [1000, 3000], "pushes": [1000, 2000, 2001, 3000], "token": "token-1-4"}
    async with running_service(log, store, directory, ManualClock(now_ms), ZONE) as analytics:
        found = answers(analytics, **device_command, first="2026-09-19", last="2026-09-22", now_ms=now_ms)  # type: ignore[arg-type]
        return [answer async for answer in found] + [str(await counts(store)), await digest(store)]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_stores_of_older_versions(
    log: SqliteLog, clickhouse: ClickHouse, fresh: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting = RecordingStore(fresh)
    await ingest(log, noting, tmp_path / "fresh", before())  # type: ignore[arg-type]
    ends = await log.ends(sources(PARTITIONS))
    await log.append(after())
    expected = await answers_after_upgrade(log, fresh, tmp_path / "fresh")
    assert "token-1-4" in str(expected), "there is something to tell"

    for version in range(4, len(migrations())):
        state = tmp_path / str(version)
        await create_by_version(version, clickhouse, monkeypatch)
        await fill_by_version(clickhouse, noting.came, ends, state / "offsets.db")
        await migrate(clickhouse)
        found = await answers_after_upgrade(log, clickhouse, state)
        if version < WITH_TITLES:
            assert without_titles(found) == without_titles(expected), f"after migration {version}"
        else:
            assert found == expected, f"after migration {version}"


def without_titles(answers: Iterable[str]) -> list[str]:
    """Return the answers without the titles in devices' histories: of older pushes to lists the store has none."""
    return [_PUSH_TITLE.sub("", answer) for answer in answers]


async def test_the_audience_of_a_push_from_before_is_summarised(
    clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The migration writes the summaries of lists in the form of protobuf."""
    await create_by_version(BEFORE_SUMMARIES, clickhouse, monkeypatch)
    sizes = {1: 1, 2: 127, 3: 128, 4: 16_383, 5: 16_384, 6: 1_048_576}
    for msgid, size in sizes.items():
        await clickhouse.command(LISTED, {"msgid": msgid, "size": size})
    await clickhouse.command(LISTED.replace("unicast", "broadcast"), {"msgid": 7, "size": 0})
    await migrate(clickhouse)
    rows = await clickhouse.rows("SELECT msgid, base64Encode(audience_summary) FROM pushes ORDER BY msgid")
    found = {msgid: AudienceSummary.FromString(b64decode(stored)) for msgid, stored in rows}
    lists = {msgid: AudienceSummary(devices=size) for msgid, size in sizes.items()}
    assert found == {**lists, 7: AudienceSummary(everyone=Everyone())}


async def test_log_ins_before_and_after_the_upgrade_to_small_granules(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view that the older version made fills the new table; stored counts stay valid."""
    logged_in = Session.SESSION_EVENT_KIND_LOGGED_IN
    await create_by_version(17, clickhouse, monkeypatch)
    await count_days(clickhouse, ZoneInfo(ZONE))
    for number, time_ms in ((1, T0), (2, T0 - DAY_MS)):
        await clickhouse.command(LOG_IN, {"app": APP, "number": number, "time_ms": time_ms})
    logins = LoginCounts(clickhouse, APP, "")
    assert await logins.between(TODAY, TODAY) == {TODAY: {"": [1, 2, 2, 2, 2, 2, 2, 2]}}
    sets = await clickhouse.rows("SELECT version, kept FROM login_before")

    await migrate(clickhouse)
    await count_days(clickhouse, ZoneInfo(ZONE))
    await ingest(log, clickhouse, tmp_path, [session(3, logged_in, T0 + 1), session(2, logged_in, T0 + 2)])
    assert await logins.between(TODAY, TODAY) == {TODAY: {"": [3, 3, 3, 3, 3, 3, 3, 3]}}
    assert await clickhouse.rows("SELECT version, kept FROM login_before") == sets


async def test_connections_before_and_after_the_upgrade_to_changes_by_hours(
    clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_by_version(18, clickhouse, monkeypatch)
    start_ms = T0 // HOUR_MS * HOUR_MS

    async def changed(minute: int, change: int) -> None:
        minute_ms = start_ms + minute * 60_000
        await clickhouse.command(CHANGE, {"app": APP, "minute_ms": minute_ms, "change": change})

    for minute, change in ((0, 5), (2, 3), (61, 7)):
        await changed(minute, change)
    await migrate(clickhouse)
    await changed(2, -1)
    await changed(119, -4)
    rows = await clickhouse.rows(BY_HOURS, {"start_ms": start_ms})
    assert [(hour, list(changes)) for hour, changes in rows] == [(0, [5, 0, 2]), (1, [0, 7, *[0] * 57, -4])]
