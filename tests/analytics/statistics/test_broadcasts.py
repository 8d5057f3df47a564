"""Statistics of broadcasts: the list, the counts of one broadcast, and its distribution by an attribute."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from analytics.ingestion.batch_writer import register
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import (
    BroadcastRow,
    Category,
    ChannelCounts,
    StatisticsKind,
    StatisticsRequest,
)
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.push.v1.push_pb2 import Kind
from protos.registry.v1.apps_pb2 import CHANNEL_APNS, CHANNEL_FCM, Platform
from services.errors import InputError, NotFoundError
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from tests.analytics.records import APP, T0, app_outcomes, cancelled, device, finished, outcomes, send, started
from tests.analytics.service import ingest, running_service, value
from tests.analytics.statistics.sync_store import dates

BROADCASTS = StatisticsKind.STATISTICS_KIND_BROADCASTS
_STORED_BY_VALUE = "SELECT info, counts, kept FROM broadcast_counts FINAL WHERE category = 'region' ORDER BY info"
MINUTE_MS = 60_000
DAY_MS = 86_400_000


def statistics_request(kind: StatisticsKind.ValueType, **fields: Any) -> StatisticsRequest:
    return StatisticsRequest(appkey=APP, kind=kind, **fields)


async def test_the_list_of_broadcasts(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with running_service(log, clickhouse, tmp_path, clock) as analytics:
        pushes = [send(n, time_ms=T0 - n * MINUTE_MS) for n in range(1, 1010)]
        unicast = send(5000, kind=Kind.KIND_UNICAST)
        await log.append([*pushes, pushes[0], unicast, send(6000, time_ms=T0 - 30 * DAY_MS), send(7, appkey="9")])
        request = statistics_request(BROADCASTS, category=99, info="ignored", scope=99)
        rows = (await analytics.Statistics(request)).broadcasts
        assert [row.msgid for row in rows] == list(range(1, 1001))
        assert rows[0] == BroadcastRow(msgid=1, sent_ms=T0 - MINUTE_MS)

        days = dates("2026-08-22", "2026-08-22")
        assert (await analytics.Statistics(statistics_request(BROADCASTS, dates=days))).broadcasts == [
            BroadcastRow(msgid=6000, sent_ms=T0 - 30 * DAY_MS)
        ]
        with pytest.raises(InputError, match="from"):
            await analytics.Statistics(statistics_request(BROADCASTS, dates=dates("x", "y")))

        for msgid in (4999, 5000):
            with pytest.raises(NotFoundError, match=str(msgid)):
                await analytics.Statistics(statistics_request(BROADCASTS, msgid=msgid))


async def test_a_broadcast_adds_up(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """Outcomes of devices outside the audience do not count, and a repeated one counts once; stored counts are made
    anew when something has changed.
    """
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(1000),
                started(1000, 1, [1, 2, 3, 4, 5, 6]),
                started(1000, 2, [1, 2]),
                outcomes(1, app_outcomes(1000, [5, 6], Outcome.OUTCOME_KIND_CLAIMED, T0 + 1, channel=CHANNEL_FCM)),
                outcomes(
                    1, app_outcomes(1000, [5], Outcome.OUTCOME_KIND_RETURNED, T0 + 1, "no quota", channel=CHANNEL_FCM)
                ),
                outcomes(1, app_outcomes(1000, [6], Outcome.OUTCOME_KIND_HANDED_OVER, T0 + 1, channel=CHANNEL_FCM)),
                outcomes(1, app_outcomes(1000, [1, 2, 3], Outcome.OUTCOME_KIND_SENT, T0 + 1)),
                outcomes(1, app_outcomes(1000, [1, 2], Outcome.OUTCOME_KIND_SENT, T0 + 2)),
                outcomes(1, app_outcomes(1000, [1, 99], Outcome.OUTCOME_KIND_RECEIVED, T0 + 3)),
                outcomes(1, app_outcomes(1000, [2, 99], Outcome.OUTCOME_KIND_CLICKED, T0 + 3)),
                outcomes(1, app_outcomes(1000, [4], Outcome.OUTCOME_KIND_FAILED, T0 + 4, "why")),
            ]
        )
        request = statistics_request(BROADCASTS)
        before = (await analytics.Statistics(request)).broadcasts[0]
        assert (before.target, before.received, before.expired) == (8, 2, 0)
        assert await value(clickhouse, "SELECT count() FROM broadcast_counts FINAL") == 1
        await log.append([finished(1000, 1), cancelled(1000, 2)])
        (listed,) = (await analytics.Statistics(request)).broadcasts
        stored = await value(clickhouse, "SELECT counts FROM broadcast_counts FINAL")
        row = (await analytics.Statistics(statistics_request(BROADCASTS, msgid=1000))).broadcasts[0]
    counts: dict[str, Any] = {
        "sent": 4,
        "received": 2,
        "shown": 1,
        "clicked": 1,
        "failed": 1,
        "expired": 2,
        "cancelled": 2,
    }
    by_channel = [
        ChannelCounts(channel="own", sent=3, received=2, shown=1, clicked=1),
        ChannelCounts(channel="fcm", sent=1),
    ]
    assert row == listed == BroadcastRow(msgid=1000, sent_ms=T0, target=8, channels=by_channel, **counts)
    assert list(stored) == [8, *counts.values()]
    handed_over = 1
    assert row.target == row.received + row.failed + row.expired + row.cancelled + handed_over


async def test_what_a_simulator_of_apple_accepted_stays_the_simulators(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """A push that Apple itself was sent later is counted apart; one that Apple alone was sent has no division."""
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(1000, platform=Platform.PLATFORM_IOS),
                started(1000, 1, [1, 2, 3]),
                outcomes(1, app_outcomes(1000, [1, 2], Outcome.OUTCOME_KIND_SENT, T0 + 1, simulated=[CHANNEL_APNS])),
                outcomes(1, app_outcomes(1000, [3], Outcome.OUTCOME_KIND_SENT, T0 + 2)),
                outcomes(1, app_outcomes(1000, [2], Outcome.OUTCOME_KIND_SHOWN, T0 + 3)),
                send(2000, time_ms=T0 - 1, platform=Platform.PLATFORM_IOS),
                started(2000, 1, [1]),
                outcomes(1, app_outcomes(2000, [1], Outcome.OUTCOME_KIND_SENT, T0 + 2)),
            ]
        )
        rows = (await analytics.Statistics(statistics_request(BROADCASTS))).broadcasts
    assert [list(row.channels) for row in rows] == [
        [
            ChannelCounts(channel="apns", sent=1),
            ChannelCounts(channel="apns", simulated=True, sent=2, received=1, shown=1),
        ],
        [],
    ]


async def test_counts_that_an_older_version_stored_stay_valid(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """Without hand-overs nothing is counted anew, nor is any set of push services read."""
    async with running_service(log, clickhouse, tmp_path) as analytics:
        sent = outcomes(1, app_outcomes(1000, [1], Outcome.OUTCOME_KIND_SENT))
        await log.append([send(1000), started(1000, 1, [1, 2]), sent])
        request = statistics_request(BROADCASTS)
        before = (await analytics.Statistics(request)).broadcasts
        version = await value(clickhouse, "SELECT version FROM broadcast_counts FINAL")
        assert list(version) == [1, 1, 1, 1, 0], "as in 0.1.0"
        taken = app_outcomes(1000, [2], Outcome.OUTCOME_KIND_HANDED_OVER, channel=CHANNEL_FCM)
        await log.append([outcomes(1, taken, seed="taken")])
        (after,) = (await analytics.Statistics(request)).broadcasts
    assert not before[0].channels
    assert [(each.channel, each.sent) for each in after.channels] == [("own", 1), ("fcm", 1)]


async def test_an_invalid_audience_becomes_a_dead_letter(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    fact = started(1000, 1, [1])
    broken = fact._replace(value=fact.value.replace(b"\x3a\x30\x00\x00", b"\x3a\x31\x00\x00"))
    assert broken != fact
    await ingest(log, clickhouse, tmp_path, [broken, send(1000)])
    assert len((tmp_path / "dead-letters.jsonl").read_text().splitlines()) == 1
    assert await value(clickhouse, "SELECT count() FROM pushes") == 1


async def test_many_devices_by_value(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """Bitmaps of many sizes keep their devices; unknown devices have the empty value. Counts by value are stored: a
    question for one value reads them; they are made anew after a further outcome, or when the store is filled again.
    """
    regions = [f"r{number % 7}" if number % 300 else f"rare{number}" for number in range(4000)]
    await log.append([device(n, attributes={"region": region}) for n, region in enumerate(regions)])
    async with running_service(log, clickhouse, tmp_path) as analytics:
        audience = range(1, 70_000, 2)
        reached = app_outcomes(1000, range(1, 2000, 2), Outcome.OUTCOME_KIND_RECEIVED)
        await log.append([send(1000), started(1000, 1, audience), outcomes(1, reached)])
        request = statistics_request(BROADCASTS, msgid=1000, category=Category.CATEGORY_REGION, info="all")
        rows = (await analytics.Statistics(request)).broadcasts
        stored = await clickhouse.rows(_STORED_BY_VALUE)
        one = statistics_request(BROADCASTS, msgid=1000, category=Category.CATEGORY_REGION, info="r3")
        (of_r3,) = (await analytics.Statistics(one)).broadcasts
        assert await clickhouse.rows(_STORED_BY_VALUE) == stored, "counted once"
        whole = (await analytics.Statistics(statistics_request(BROADCASTS, msgid=1000))).broadcasts[0]
        await log.append([outcomes(1, app_outcomes(1000, [3003], Outcome.OUTCOME_KIND_RECEIVED))])
        (of_r0,) = (await analytics.Statistics(_with_info(one, "r0"))).broadcasts
    target = Counter(regions[number] if number < len(regions) else "" for number in audience)
    received = Counter(regions[1:2000:2])
    assert {row.info: (row.target, row.received) for row in rows} == {
        info: (count, received[info]) for info, count in target.items()
    }
    assert [info for info, *_ in stored] == [row.info for row in rows]
    assert (of_r3.target, of_r3.received) == (target["r3"], received["r3"])
    assert (whole.target, whole.received) == (len(audience), received.total())
    assert of_r0.received == received["r0"] + 1
    await register(clickhouse, "0/1", "an ingester that fills the store again")
    assert await value(clickhouse, "SELECT count() FROM broadcast_counts") == 0


def _with_info(request: StatisticsRequest, info: str) -> StatisticsRequest:
    other = StatisticsRequest()
    other.CopyFrom(request)
    other.info = info
    return other
