"""Answers after rows have outlived their retention: without errors, from the rows that are left."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from analytics.statistics.logins import count_days
from analytics.store.clickhouse import ClickHouse
from analytics.store.retention import apply_retention
from analytics.store.retention_days import AGES, CONTENTS, RetentionDays
from protos.analytics.v1.analytics_pb2 import (
    AuditPushRequest,
    AuditPushResponse,
    BroadcastRow,
    Dates,
    ListAcksRequest,
    StatisticsKind,
    StatisticsRequest,
    TimeScope,
)
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from protos.push.v1.push_pb2 import Audience, Devices, Kind
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH
from protos.runtime.v1.refusals_pb2 import Refusal, RefusalFact, Refusals
from services.domain.topics import REFUSALS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock, SystemClock
from tests.analytics.audit.test_export import exported, table
from tests.analytics.every_answer import answers
from tests.analytics.records import (
    APP,
    app_changed,
    app_outcomes,
    connection_counts,
    device,
    device_command,
    finished,
    meta,
    new_record,
    outcomes,
    send,
    session,
    started,
)
from tests.analytics.service import running_service, value

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub

DAY_MS = 86_400_000
HISTORY_DAYS = 31
DAYS = RetentionDays(HISTORY_DAYS)
NOW_MS = SystemClock().now_ms() // DAY_MS * DAY_MS
OLD_MS = NOW_MS - (HISTORY_DAYS + 39) * DAY_MS
NEW_MS = NOW_MS - DAY_MS // 2
"""ClickHouse goes by the clock on the wall."""

DEVICES = [device(number, time_ms=OLD_MS, registered_ms=OLD_MS) for number in (3, 4)]


def old_history(time_ms: int, msgid: int) -> list[NewRecord]:
    """Return a broadcast handed over to one of two devices, a unicast, connections, log-ins on two days and changes."""
    listed = Devices(
        partitions=np.array([1], "<u2").tobytes(),
        numbers=np.array([3], "<u4").tobytes(),
        id_offsets=np.array([0], "<u4").tobytes(),
    )
    return [
        device_command(3, time_ms=time_ms),
        send(msgid, time_ms=time_ms),
        started(msgid, 1, [3, 4], time_ms),
        outcomes(
            1,
            app_outcomes(msgid, [3], Outcome.OUTCOME_KIND_HANDED_OVER, time_ms, channel=CHANNEL_WEBPUSH),
            app_outcomes(msgid, [3], Outcome.OUTCOME_KIND_RECEIVED, time_ms + 1),
            seed=f"received {msgid}",
        ),
        finished(msgid, 1, time_ms + 2),
        send(msgid + 1, time_ms=time_ms, audience=Audience(devices=listed), kind=Kind.KIND_UNICAST),
        outcomes(1, app_outcomes(msgid + 1, [3], Outcome.OUTCOME_KIND_RECEIVED, time_ms + 3), seed=f"unicast {msgid}"),
        session(3, Session.SESSION_EVENT_KIND_LOGGED_IN, time_ms - DAY_MS),
        session(3, Session.SESSION_EVENT_KIND_OPENED, time_ms, connection=msgid),
        session(3, Session.SESSION_EVENT_KIND_LOGGED_IN, time_ms + 1),
        session(3, Session.SESSION_EVENT_KIND_CLOSED, time_ms + 120_000, connection=msgid),
        connection_counts(time_ms // 60_000 * 60_000, {APP: 1}),
    ]


def history() -> list[NewRecord]:
    return [*DEVICES, *old_history(OLD_MS, 1000), *old_history(NEW_MS, 2000)]


@pytest.fixture(autouse=True)
async def no_early_drop(clickhouse: ClickHouse) -> None:
    """Keep the store from dropping old rows before a test says so: it may merge at any time."""
    for name in (*AGES, *CONTENTS):
        await clickhouse.command(f"SYSTEM STOP TTL MERGES {name}")


async def drop_old_rows(clickhouse: ClickHouse, days: RetentionDays = DAYS) -> None:
    """Drop rows, and contents, past their retention now, as ClickHouse does at merges."""
    await apply_retention(clickhouse, days)
    for name, kept in {**days.of_tables(), **dict.fromkeys(CONTENTS, days.contents)}.items():
        if kept is None:
            continue
        await clickhouse.command(f"SYSTEM START TTL MERGES {name}")
        await clickhouse.command(f"ALTER TABLE {name} MATERIALIZE TTL SETTINGS mutations_sync = 2")
        await clickhouse.command(f"OPTIMIZE TABLE {name} FINAL")


def day_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).date().isoformat()


@pytest.fixture
async def analytics(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> AsyncIterator["AnalyticsServiceAsyncStub"]:
    await log.append(history())
    async with running_service(log, clickhouse, tmp_path, ManualClock(NOW_MS), "UTC", ack_delay_ms=0) as analytics:
        yield analytics


async def all_answers(analytics: "AnalyticsServiceAsyncStub", since_ms: int, *msgids: int) -> list[str]:
    """Return all answers about these broadcasts and lists, the days since then, the device, the app and receipts."""
    pushes = [msgid + number for msgid in msgids for number in (0, 1)]
    period = {"first": day_of(since_ms), "last": day_of(NOW_MS), "now_ms": NOW_MS}
    found = answers(analytics, broadcasts=msgids, pushes=pushes, token="token-1-3", **period)  # type: ignore[arg-type]
    return [answer async for answer in found]


@pytest.mark.long
async def test_old_rows_are_dropped_and_new_ones_kept(
    analytics: "AnalyticsServiceAsyncStub", clickhouse: ClickHouse
) -> None:
    *of_late, _, _, _, receipts = await all_answers(analytics, NEW_MS, 2000)
    await all_answers(analytics, OLD_MS, 1000, 2000)
    await drop_old_rows(clickhouse)
    for name, days in DAYS.of_tables().items():
        if days is None or name == "refused_requests":
            continue
        old = f"countIf(toDateTime({AGES[name]}) + INTERVAL {days} DAY < now())"
        rows = await clickhouse.rows(f"SELECT {old}, count() > 0 FROM {name}")
        assert tuple(rows[0]) == (0, True), name

    assert await all_answers(analytics, OLD_MS, 1000, 2000), "every question has an answer"
    *still, _, _, _, receipts_still = await all_answers(analytics, NEW_MS, 2000)
    assert (still, receipts_still) == (of_late, receipts)


async def test_the_states_of_an_old_push_are_unknown(
    analytics: "AnalyticsServiceAsyncStub", clickhouse: ClickHouse
) -> None:
    """The devices are not expired, as they would be for a push without outcomes; the audience is still counted."""
    question = StatisticsRequest(appkey=APP, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS, msgid=1000)
    assert [(count.state, count.devices) for count in (await audited(analytics, 1000)).states] == [
        ("received", 1),
        ("expired", 1),
    ]
    assert (await analytics.Statistics(question)).broadcasts[0].expired == 1
    await drop_old_rows(clickhouse)

    for msgid, devices in ((1000, 2), (1001, 1)):
        audit = await audited(analytics, msgid)
        reason = f"outcomes are kept for {HISTORY_DAYS} days"
        assert [(count.state, count.reason, count.devices) for count in audit.states] == [("unknown", reason, devices)]
        assert audit.audience_count == devices
        rows, pieces = await exported(analytics, msgid)
        assert [row["state"] for row in table(pieces)] == ["unknown"] * devices
        assert rows == devices
    old = StatisticsRequest(appkey=APP, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS, msgid=1000)
    (row,) = (await analytics.Statistics(old)).broadcasts
    day = Dates(**{"from": day_of(OLD_MS), "to": day_of(OLD_MS)})
    listed = StatisticsRequest(appkey=APP, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS, dates=day)
    assert (await analytics.Statistics(listed)).broadcasts == [row]
    assert row == BroadcastRow(msgid=1000, sent_ms=OLD_MS, target=2)
    assert [count.state for count in (await audited(analytics, 2000)).states] == ["received", "expired"]


async def audited(analytics: "AnalyticsServiceAsyncStub", msgid: int) -> AuditPushResponse:
    return await analytics.AuditPush(AuditPushRequest(msgid=msgid))


async def test_numbers_of_logged_in_users_stay_when_their_window_begins_before_the_history(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """The last seven days count users of up to 35 days ago, also once their days are those of another zone."""
    question = StatisticsRequest(
        appkey=APP, kind=StatisticsKind.STATISTICS_KIND_LOGINS, scope=TimeScope.TIME_SCOPE_LAST_SEVEN_DAYS
    )
    ages_days = (0, 3, 6, 28, 31, 33, 35)
    kind = Session.SESSION_EVENT_KIND_LOGGED_IN
    await log.append([session(number, kind, NOW_MS - age * DAY_MS + 1) for number, age in enumerate(ages_days)])
    async with running_service(log, clickhouse, tmp_path, ManualClock(NOW_MS), "UTC") as analytics:
        before = await analytics.Statistics(question)
        assert [row.counts[30] for row in before.logins] == [5, 4, 4, 4, 4, 3, 4]
        kept = await value(clickhouse, "SELECT max(kept) FROM login_counts")
        await drop_old_rows(clickhouse)
        assert await analytics.Statistics(question) == before
        assert await value(clickhouse, "SELECT max(kept) FROM login_counts") == kept, "they are not counted again"
        for zone in ("Asia/Tokyo", "UTC"):
            await count_days(clickhouse, ZoneInfo(zone))
        assert await analytics.Statistics(question) == before


async def test_a_page_continues_behind_dropped_receipts(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """A position behind receipts that were dropped since then skips none of the others."""
    await log.append([*DEVICES, *old_history(OLD_MS, 1000)])
    then, now = ManualClock(OLD_MS + DAY_MS), ManualClock(NOW_MS)
    async with running_service(log, clickhouse, tmp_path, then, "UTC", ack_delay_ms=0) as analytics:
        page = await analytics.ListAcks(ListAcksRequest(appkey=APP, pos="0", limit=1))
        assert [ack.msgid for ack in page.acks] == [1001]
    await drop_old_rows(clickhouse)
    await log.append(old_history(NEW_MS, 2000))
    async with running_service(log, clickhouse, tmp_path, now, "UTC", ack_delay_ms=0) as analytics:
        for pos in (page.pos, "0"):
            later = await analytics.ListAcks(ListAcksRequest(appkey=APP, pos=pos, limit=10))
            assert [ack.msgid for ack in later.acks] == [2001]
            assert (await analytics.ListAcks(ListAcksRequest(appkey=APP, pos=later.pos, limit=10))).acks == []


async def test_contents_actions_and_refusals_have_ends_of_their_own(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """Of an old push the content goes; its row, which is counted, stays. Without a setting nothing goes."""
    old_refusal, new_refusal = (Refusal(appkey=APP, time_ms=time_ms, result=401) for time_ms in (OLD_MS, NEW_MS))
    await log.append(
        [
            *old_history(OLD_MS, 1000),
            *old_history(NEW_MS, 2000),
            app_changed("changed", time_ms=OLD_MS),
            app_changed("changed", time_ms=NEW_MS),
            new_record(
                REFUSALS.name, 0, RefusalFact(meta=meta("old", OLD_MS), refusals=Refusals(refusals=[old_refusal]))
            ),
            new_record(
                REFUSALS.name, 0, RefusalFact(meta=meta("new", NEW_MS), refusals=Refusals(refusals=[new_refusal]))
            ),
        ]
    )
    forever = RetentionDays(400)
    await apply_retention(clickhouse, forever)
    ends = RetentionDays(400, sessions=31, contents=31, audit=31, refusals=7)
    titles = "SELECT msgid, title, text, request_json != '' FROM pushes FINAL ORDER BY msgid"
    async with running_service(log, clickhouse, tmp_path, ManualClock(NOW_MS), "UTC") as analytics:
        before = await clickhouse.rows(titles)
        counted = await analytics.Statistics(_ALL_BROADCASTS)
        await drop_old_rows(clickhouse, forever._replace(refusals=30))
        assert await clickhouse.rows(titles) == before
        assert await ages(clickhouse, "app_changes") == [OLD_MS, NEW_MS]

        await drop_old_rows(clickhouse, ends)
        assert await clickhouse.rows(titles) == [
            (msgid, *(("", "", 0) if msgid < 2000 else contents)) for msgid, *contents in before
        ]
        assert [bool(title or text) for title, text in await clickhouse.rows(_BROADCASTS)] == [False, True]
        for table in ("app_changes", "actions", "refused_requests", "sessions"):
            assert all(age >= NEW_MS - DAY_MS for age in await ages(clickhouse, table)), table
        assert await ages(clickhouse, "app_changes") == [NEW_MS]
        assert await analytics.Statistics(_ALL_BROADCASTS) == counted
        assert len(await ages(clickhouse, "deliveries")) == 6, "outcomes have another end"

    done = await value(clickhouse, _MUTATIONS)
    await apply_retention(clickhouse, ends)
    assert await value(clickhouse, _MUTATIONS) == done, "what is so already is not changed again"
    await apply_retention(clickhouse, forever)
    with_ends = f"SELECT name FROM system.tables WHERE database = currentDatabase() AND {_HAS_END}"
    assert not {name for (name,) in await clickhouse.rows(with_ends)} & {*CONTENTS, "actions", "app_changes"}


_BROADCASTS = "SELECT title, text FROM broadcasts FINAL ORDER BY time"
_MUTATIONS = "SELECT count() FROM system.mutations WHERE database = currentDatabase()"
_HAS_END = "position(create_table_query, ' TTL ') > 0"
_ALL_BROADCASTS = StatisticsRequest(
    appkey=APP,
    kind=StatisticsKind.STATISTICS_KIND_BROADCASTS,
    dates=Dates(**{"from": day_of(OLD_MS), "to": day_of(NOW_MS)}),
)


async def ages(clickhouse: ClickHouse, table: str) -> list[int]:
    rows = await clickhouse.rows(f"SELECT toUnixTimestamp64Milli(time) FROM {table} FINAL ORDER BY time")
    return [age for (age,) in rows]
