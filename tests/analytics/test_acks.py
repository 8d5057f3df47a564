"""Pages of acknowledgements: each receipt appears once, whenever records arrive."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from analytics.acks import ReadPosition, decode_positions, encode
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from protos.analytics.v1.analytics_pb2 import (
    ListAcksRequest,
    ListAcksResponse,
    StatisticsKind,
    StatisticsRequest,
)
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.push.v1.push_pb2 import Kind
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH, Platform
from services.errors import InputError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from tests.analytics.records import APP, T0, app_outcomes, device, finished, outcomes, send, started
from tests.analytics.service import running_service

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub

RECEIVED = Outcome.OUTCOME_KIND_RECEIVED
DELAY_MS = 900_000
DAY_S = 86_400


def unicast(msgid: int, id_count: int = 1) -> NewRecord:
    return send(msgid, kind=Kind.KIND_UNICAST, id_count=id_count)


def receipt(msgid: int, number: int, time_ms: int, partition: int = 1) -> NewRecord:
    return outcomes(partition, app_outcomes(msgid, [number], RECEIVED, time_ms), seed=f"{msgid} {number} {time_ms}")


async def read(
    analytics: "AnalyticsServiceAsyncStub", pos: str = "0", limit: int = 1000, appkey: str = APP
) -> ListAcksResponse:
    return await analytics.ListAcks(ListAcksRequest(appkey=appkey, pos=pos, limit=limit))


def pairs(page: ListAcksResponse) -> list[tuple[int, str]]:
    return [(ack.msgid, ack.token) for ack in page.acks]


async def read_all(
    analytics: "AnalyticsServiceAsyncStub", pos: str = "0", limit: int = 1000
) -> tuple[list[tuple[int, str]], str]:
    found = []
    while True:
        page = await read(analytics, pos, limit)
        assert len(page.acks) == limit or not page.has_more
        found += pairs(page)
        pos = page.pos
        if not page.has_more:
            return found, pos


async def test_visible_after_the_delay_and_gone_after_two_days(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    clock = ManualClock(T0)
    async with running_service(log, clickhouse, tmp_path, clock) as analytics:
        await log.append([device(3), unicast(1000), receipt(1000, 3, T0)])
        await caught_up(analytics)

        clock.move(899.999)
        page = await read(analytics)
        assert (pairs(page), page.pos, page.has_more) == ([], "0", False)

        clock.move(0.001)
        page = await read(analytics)
        assert (pairs(page), page.has_more) == ([(1000, "token-1-3")], False)
        assert pairs(await read(analytics)) == [(1000, "token-1-3")]
        again = await read(analytics, page.pos)
        assert (pairs(again), again.pos) == ([], page.pos)

        clock.move(2 * DAY_S - 900 - 0.001)
        assert pairs(await read(analytics)) == [(1000, "token-1-3")]
        clock.move(0.001)
        assert pairs(await read(analytics)) == []


async def test_a_receipt_names_the_channel_that_the_message_was_handed_over_to(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    handed_over = app_outcomes(1000, [3], Outcome.OUTCOME_KIND_HANDED_OVER, T0, channel=CHANNEL_WEBPUSH)
    async with running_service(log, clickhouse, tmp_path, ManualClock(T0 + DELAY_MS)) as analytics:
        await log.append([device(3), device(4), unicast(1000), outcomes(1, handed_over)])
        await log.append([receipt(1000, 3, T0), receipt(1000, 4, T0)])
        await caught_up(analytics)
        page = await read(analytics)
    assert [(ack.token, ack.channel) for ack in page.acks] == [("token-1-3", "webpush"), ("token-1-4", "")]


async def test_pages_have_only_receipts_of_unicast_messages_to_android(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    async with running_service(log, clickhouse, tmp_path, ManualClock(T0 + DELAY_MS)) as analytics:
        await log.append(
            [
                device(3),
                device(4),
                receipt(1000, 3, T0),
                receipt(1001, 3, T0),
                receipt(1002, 3, T0),
                receipt(1003, 3, T0),
                outcomes(1, app_outcomes(1003, [4], Outcome.OUTCOME_KIND_SENT, T0)),
                receipt(2002, 4, T0),
            ]
        )
        await caught_up(analytics)
        await log.append(
            [
                send(1000, kind=Kind.KIND_BROADCAST),
                send(1001, kind=Kind.KIND_MULTICAST),
                send(1002, kind=Kind.KIND_UNICAST, platform=Platform.PLATFORM_IOS),
                unicast(1003),
                unicast(2000, id_count=3),
            ]
        )
        await caught_up(analytics)

        assert pairs(await read(analytics)) == [(1003, "token-1-3"), (2002, "token-1-4")]
        assert pairs(await read(analytics, appkey="99")) == []


async def test_a_broadcast_whose_command_is_not_ingested_yet_is_no_unicast(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """A page waits until the push command is ingested, rather than show receipts of a broadcast."""
    async with running_service(log, clickhouse, tmp_path, ManualClock(T0 + DELAY_MS)) as analytics:
        await log.append([device(3), receipt(1000, 3, T0)])
        await caught_up(analytics)
        await log.append([send(1000)])
        assert pairs(await read(analytics)) == []


async def test_a_receipt_of_a_device_that_is_ingested_late_is_not_skipped(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    async with running_service(log, clickhouse, tmp_path, ManualClock(T0 + DELAY_MS)) as analytics:
        await log.append([unicast(1000), receipt(1000, 3, T0), receipt(1000, 77, T0)])
        await caught_up(analytics)
        await log.append([device(3)])
        assert pairs(await read(analytics)) == [(1000, "token-1-3")]


async def test_late_records_come_after_every_returned_position(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    clock = ManualClock(T0 + DELAY_MS + 100)
    async with running_service(log, clickhouse, tmp_path, clock) as analytics:
        await log.append([device(1), device(2, 2), *(unicast(1000 + n) for n in range(10))])
        await log.append([receipt(1000, 1, T0 + 50), receipt(1001, 2, T0 + 60, 2)])
        await caught_up(analytics)
        first = await read(analytics)
        assert pairs(first) == [(1000, "token-1-1"), (1001, "token-2-2")]

        await log.append([receipt(1002, 1, T0 + 10), receipt(1003, 2, T0 + 101, 2), receipt(1004, 2, T0 + 20, 2)])
        await caught_up(analytics)
        second = await read(analytics, first.pos)
        assert pairs(second) == [(1002, "token-1-1")], "1004 stands behind 1003, which is not visible yet"

        clock.move(0.001)
        third = await read(analytics, second.pos)
        assert pairs(third) == [(1003, "token-2-2"), (1004, "token-2-2")]
        everything = [(1002, "token-1-1"), *pairs(first), *pairs(third)]
        assert sorted(pairs(await read(analytics))) == sorted(everything)
        assert pairs(await read(analytics, third.pos)) == []


async def test_a_page_stays_the_same_while_more_becomes_visible(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    clock = ManualClock(T0 + DELAY_MS + 19)
    async with running_service(log, clickhouse, tmp_path, clock) as analytics:
        await log.append([device(number, partition) for number in range(3) for partition in range(4)])
        await log.append([unicast(1000, id_count=100)])
        await log.append([receipt(1000 + n, n % 3, T0 + n, 3 - n % 4) for n in range(40)])
        await caught_up(analytics)
        page = await read(analytics, limit=10)
        assert [ack.msgid for ack in page.acks] == list(range(1000, 1010))
        assert page.has_more
        clock.move(1)
        assert await read(analytics, limit=10) == page
        rest = await read(analytics, page.pos)
        assert [ack.msgid for ack in rest.acks] == list(range(1010, 1040))


async def test_a_record_that_is_in_the_log_twice_is_returned_once(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    async with running_service(log, clickhouse, tmp_path, ManualClock(T0 + DELAY_MS)) as analytics:
        one = receipt(1000, 3, T0)
        await log.append([device(3), unicast(1000), one])
        await caught_up(analytics)
        page = await read(analytics)
        await log.append([one, receipt(1000, 3, T0 - 5)])
        await caught_up(analytics)

        assert pairs(await read(analytics)) == [(1000, "token-1-3")]
        assert pairs(await read(analytics, page.pos)) == []


async def test_a_repeated_receipt_after_the_expiry_is_returned_once(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    clock = ManualClock(T0 + DELAY_MS)
    async with running_service(log, clickhouse, tmp_path, clock) as analytics:
        await log.append([device(3), unicast(1000), started(1000, 1, [3], T0 - 10), finished(1000, 1, T0 - 5)])
        await log.append([receipt(1000, 3, T0), receipt(1000, 3, T0 + 1)])
        await caught_up(analytics)
        first = await read(analytics)
        await log.append([receipt(1000, 3, T0), receipt(1000, 3, T0 + 2)])
        await caught_up(analytics)
        clock.move(1)
        later = await read(analytics, first.pos)
        whole = await read(analytics)

    assert (pairs(first), pairs(later), pairs(whole)) == ([(1000, "token-1-3")], [], [(1000, "token-1-3")])


async def test_positions_stay_valid_after_a_rebuild(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    clock = ManualClock(T0 + DELAY_MS + 1000)
    await log.append([device(number, partition) for number in range(5) for partition in range(4)])
    await log.append([unicast(1000, id_count=1000)])
    for at in range(0, 300, 60):
        await log.append([receipt(1000 + n, n % 5, T0 + n % 7, n % 4) for n in range(at, at + 60)])
    async with running_service(log, clickhouse, tmp_path, clock) as analytics:
        await caught_up(analytics)
        first = await read(analytics, limit=120)
        rest, _ = await read_all(analytics, first.pos, 50)
    assert len({*pairs(first), *rest}) == 300

    other = clickhouse.beside("rebuilt")
    await other.drop()
    await migrate(other)
    try:
        async with running_service(log, other, tmp_path / "other", clock) as analytics:
            await caught_up(analytics)
            assert pairs(await read(analytics, limit=120)) == pairs(first)
            assert (await read_all(analytics, first.pos, 50))[0] == rest
    finally:
        await other.drop()
        await other.close()


async def test_large_records_are_read_in_part(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """One record has more receipts than a page, between thousands of records without any."""
    clock = ManualClock(T0 + DELAY_MS)
    many = app_outcomes(np.arange(5000, 7500), np.arange(2500), RECEIVED, T0)
    nothing = [outcomes(1, app_outcomes(1, [9], Outcome.OUTCOME_KIND_SENT, T0 + n), seed=str(n)) for n in range(6000)]
    async with running_service(log, clickhouse, tmp_path, clock) as analytics:
        await log.append([device(number) for number in range(2500)])
        await log.append([send(1), *(unicast(5000 + at, id_count=1000) for at in range(0, 3000, 1000))])
        await log.append([*nothing, outcomes(1, many)])
        await caught_up(analytics)
        found, _ = await read_all(analytics)
    assert found == [(5000 + number, f"token-1-{number}") for number in range(2500)]


@pytest.mark.parametrize(
    "pos", ["", "1", "00", "-1", "abc", "AAAAAAAA", "é", "0" * 100_000, encode("other", {1: ReadPosition(2, 3)})]
)
def test_a_position_that_was_never_returned_is_refused(pos: str) -> None:
    with pytest.raises(InputError, match="pos"):
        decode_positions(APP, pos)


def test_positions_round_trip() -> None:
    places = {0: ReadPosition(0, 1), 7: ReadPosition(2**40, 29_999), 31: ReadPosition(5, 0)}
    assert decode_positions(APP, encode(APP, places)) == places
    assert decode_positions(APP, "0") == {}
    assert encode(APP, {}) == "0"
    assert len(encode(APP, {partition: ReadPosition(1_000_000, 100) for partition in range(32)})) < 400


async def test_limits(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        for limit in (0, 1001):
            with pytest.raises(InputError, match="limit"):
                await read(analytics, limit=limit)


async def caught_up(analytics: "AnalyticsServiceAsyncStub") -> None:
    """Ingest all records that the log holds, as each request for statistics does first."""
    await analytics.Statistics(StatisticsRequest(appkey=APP, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS))
