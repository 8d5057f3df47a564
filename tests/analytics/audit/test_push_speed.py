"""How fast a push was: times within which devices had their first outcome of each kind, and the steps of a chart."""

from pathlib import Path

import pytest

from analytics.audit.push_speed import push_speed
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import PushSpeedRequest, SpeedLine
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.push.v1.push_pb2 import Kind
from services.errors import InputError, NotFoundError
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import T0, app_outcomes, outcomes, send, started
from tests.analytics.service import running_service

SENT, RECEIVED, SHOWN = Outcome.OUTCOME_KIND_SENT, Outcome.OUTCOME_KIND_RECEIVED, Outcome.OUTCOME_KIND_SHOWN
HOUR_MS = 3_600_000


async def test_the_first_outcome_of_each_device_counts(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(1000, time_ms=T0),
                started(1000, 1, range(1, 11)),
                started(1000, 2, [1]),
                outcomes(
                    1,
                    *(app_outcomes(1000, [number], SENT, T0 + 100 * number) for number in range(1, 11)),
                    app_outcomes(1000, [1, 2], SENT, T0 + 2 * HOUR_MS),
                    app_outcomes(1000, range(1, 10), RECEIVED, T0 + 2500),
                    app_outcomes(1000, [10], RECEIVED, T0 + HOUR_MS),
                    app_outcomes(1000, [1], SHOWN, T0 - 5),
                    app_outcomes(1000, [3], Outcome.OUTCOME_KIND_FAILED, T0 + 1),
                ),
                outcomes(
                    2,
                    app_outcomes(1000, [1], SENT, T0 + 450),
                    app_outcomes(1000, [1], RECEIVED, T0 + 2500),
                    seed="other",
                ),
            ]
        )
        speed = await analytics.PushSpeed(PushSpeedRequest(msgid=1000))
        assert (speed.begins_ms, speed.within_ms, speed.step_ms) == (T0, 6000, 100)
        sent, received, shown = speed.lines
        assert list(sent.steps)[:12] == [1, 0, 1, 1, 2, 1, 1, 1, 1, 1, 1, 0]
        assert (sent.event, sent.devices, sent.half_ms, sent.all_ms) == ("sent", 11, 500, 1000)
        assert (received.devices, received.half_ms, received.all_ms) == (11, 2500, HOUR_MS)
        assert (sum(received.steps), received.steps[0], received.steps[25]) == (10, 1, 9)
        assert shown == SpeedLine(event="shown", devices=1, steps=[1] + [0] * 59)
        longer = await analytics.PushSpeed(PushSpeedRequest(msgid=1000, within_ms=6 * HOUR_MS))
        assert (longer.step_ms, list(longer.ranges_ms)) == (360_000, [6000, 60_000, 600_000, HOUR_MS, 6 * HOUR_MS])
        assert [line.steps[10] for line in longer.lines] == [0, 1, 0]


async def test_a_later_step_implies_the_earlier_ones(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """An app may report a push before the device acknowledges it, and the acknowledgement may be lost."""
    clicked, dismissed = Outcome.OUTCOME_KIND_CLICKED, Outcome.OUTCOME_KIND_DISMISSED
    async with running_service(log, clickhouse, tmp_path) as analytics:
        reports = [
            app_outcomes(1000, [1], SHOWN, T0 + 100),
            app_outcomes(1000, [1], RECEIVED, T0 + 200),
            app_outcomes(1000, [2], clicked, T0 + 300),
            app_outcomes(1000, [3], dismissed, T0 + 400),
            app_outcomes(1000, [4], SENT, T0 + 500),
            app_outcomes(1000, [5], Outcome.OUTCOME_KIND_CLAIMED, T0 + 40),
            app_outcomes(1000, [5], Outcome.OUTCOME_KIND_HANDED_OVER, T0 + 450),
        ]
        await log.append([send(1000, time_ms=T0), started(1000, 1, range(1, 6)), outcomes(1, *reports)])
        lines = (await analytics.PushSpeed(PushSpeedRequest(msgid=1000))).lines
    assert [(line.event, line.devices, line.half_ms, line.all_ms) for line in lines] == [
        ("sent", 5, 400, 500),
        ("received", 3, 300, 400),
        ("shown", 3, 300, 400),
        ("clicked", 1, 300, 300),
    ]


async def test_a_message_of_a_list_and_what_cannot_be_asked(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(1000, id_count=2, kind=Kind.KIND_UNICAST),
                outcomes(1, app_outcomes(1000, [1], SENT, T0 + 70_000), app_outcomes(1001, [2], SENT, T0 + 10)),
                send(5000),
            ]
        )
        whole, second = [await analytics.PushSpeed(PushSpeedRequest(msgid=msgid)) for msgid in (1000, 1001)]
        assert [(speed.lines[0].devices, speed.within_ms) for speed in (whole, second)] == [(2, 600_000), (1, 6000)]
        waiting = await analytics.PushSpeed(PushSpeedRequest(msgid=5000))
        assert (list(waiting.lines), waiting.within_ms) == ([], 6000)
        with pytest.raises(NotFoundError):
            await analytics.PushSpeed(PushSpeedRequest(msgid=7))
        with pytest.raises(InputError):
            await analytics.PushSpeed(PushSpeedRequest(msgid=1000, within_ms=2**40))


async def test_a_large_push_is_estimated_from_some_of_its_devices(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    devices = range(1, 1001)
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(1000, time_ms=T0),
                started(1000, 1, devices),
                outcomes(1, app_outcomes(1000, devices, SENT, T0 + 450), app_outcomes(1000, [1], RECEIVED, T0 + 500)),
            ]
        )
        whole = await analytics.PushSpeed(PushSpeedRequest(msgid=1000))
        part = await push_speed(clickhouse, 1000, 0, max_outcomes=101)
    assert (whole.one_in, whole.lines[0].devices) == (1, 1000)
    assert part.one_in == 10
    assert 700 < part.lines[0].devices < 1300
    assert part.lines[0].devices % 10 == 0
    assert part.lines[0].steps[4] == part.lines[0].devices
