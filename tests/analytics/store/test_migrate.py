"""A store created and filled by an older version answers like a new one after an upgrade."""

from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from analytics.digest import compared_columns, counts, digest
from analytics.ingestion.ingestion import sources
from analytics.ingestion.tables.catalogue import TABLES
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import Migration, migrate, migrations
from analytics.store.offsets import Offsets, Range
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from protos.push.v1.push_pb2 import Audience, Devices, Kind
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH
from services.domain.topics import REFUSALS
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
HOUR_MS = 3_600_000
RELEASED = {
    "0001_commands": "df2dd6212641305ff981539a0b132e2e521d0f4272d5bcaf384a6cd10bc9e0cc",
    "0002_history": "8dc6876b399e577ff12873be2b1b2cb268ccec15cfecada8925a72c4785598fc",
    "0003_statistics": "cd2e10cddff21e7665a70b055198b5b8fe272d4cdeabbe9dda9d84fce958bf59",
    "0004_connections": "132f60da47413bb8ae563306caa36d34a43fe84971377414e7fff2f4d0a1d24b",
}
"""The digests of the migrations of 0.1.0, the first release: stores have applied them, so they never change."""

NEXT = Migration(
    1 + max(each.version for each in migrations()),
    "as_of_a_later_version",
    [
        "ALTER TABLE pushes ADD COLUMN IF NOT EXISTS sender String DEFAULT concat('of ', toString(msgid)) AFTER text",
        "CREATE TABLE IF NOT EXISTS senders (sender String) ENGINE = MergeTree ORDER BY sender",
        "CREATE MATERIALIZED VIEW IF NOT EXISTS senders_of_pushes TO senders AS SELECT sender FROM pushes",
    ],
)
"""A migration like those of later versions."""

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
        outcomes(
            1,
            app_outcomes(
                *(3000, [4], Outcome.OUTCOME_KIND_HANDED_OVER, later + 3),
                channel=CHANNEL_WEBPUSH,
                simulated=[CHANNEL_WEBPUSH],
            ),
            seed="handed over",
        ),
    ]


@pytest.fixture
async def fresh(engine: ClickHouse, clickhouse: ClickHouse) -> AsyncIterator[ClickHouse]:
    """Another database, created by this version."""
    database = engine.beside(f"{clickhouse.database}_fresh")
    await migrate(database)
    yield database
    await database.close()


def have_migrations(known: list[Migration], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analytics.store.migrate.migrations", lambda: known)


async def fill_by_version(
    store: ClickHouse, tables: Sequence[tuple[str, pa.Table]], ends: Mapping[Partition, int], state: Path
) -> None:
    """Insert the columns that the store has, and note the topics that its version read as ingested up to the ends."""
    columns: dict[str, list[str]] = dict(await store.rows(_COLUMNS))  # type: ignore[arg-type]
    unread = () if "refused_requests" in columns else (REFUSALS.name,)
    offsets = Offsets(state)
    identity = offsets.restart()
    batch = {partition: Range(0, end) for partition, end in ends.items() if end and partition.topic not in unread}
    offsets.begin(batch)
    offsets.end(batch, {}, {})
    offsets.close()
    for number, (name, rows) in enumerate(tables):
        if had := [column for column in rows.column_names if column in columns.get(name, [])]:
            await store.insert(name, rows.select(had), f"{number}")
    await store.command("INSERT INTO ingesters (instance, identity) SELECT '0/1', {of:String}", {"of": identity})


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
    assert 'channel: "webpush"' in str(expected)

    all_known = [*migrations(), NEXT]
    for version in range(len(RELEASED), len(all_known)):
        await clickhouse.drop()
        have_migrations(all_known[:version], monkeypatch)
        await migrate(clickhouse)
        state = tmp_path / str(version)
        await fill_by_version(clickhouse, noting.came, ends, state / "offsets.db")
        have_migrations(all_known, monkeypatch)
        await migrate(clickhouse)
        assert await answers_after_upgrade(log, clickhouse, state) == expected, f"after migration {version}"
        senders = await clickhouse.rows("SELECT msgid, sender FROM pushes FINAL ORDER BY msgid")
        assert [tuple(row) for row in senders] == [(id_, f"of {id_}") for id_ in (1000, 2000, 3000)]
        assert await clickhouse.rows("SELECT sender FROM senders") == [("of 3000",)], "of later pushes"


@pytest.mark.long
async def test_no_answer_reads_a_column_that_the_digest_leaves_out(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    await migrate(clickhouse)
    await log.append([*before(), *after()])
    expected = await answers_after_upgrade(log, clickhouse, tmp_path)
    overwritten = 0
    for table, schema in TABLES.items():
        left_out = set(schema.schema.names) - set(compared_columns(table))
        for column in sorted(name for name in left_out if not name.startswith("_")):
            await clickhouse.command(
                f"ALTER TABLE {table} UPDATE {column} = defaultValueOfTypeName(toTypeName({column})) WHERE true"
                " SETTINGS mutations_sync = 2"
            )
            overwritten += 1
    assert overwritten
    assert await answers_after_upgrade(log, clickhouse, tmp_path) == expected


def test_released_migrations_stay_as_they_are() -> None:
    """A change of the schema is a further file."""
    found = {
        f"{one.version:04}_{one.name}": sha256("\n".join(one.statements).encode()).hexdigest() for one in migrations()
    }
    assert {name: found[name] for name in RELEASED} == RELEASED
