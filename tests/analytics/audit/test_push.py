"""Audits of pushes and devices with a known history."""

from pathlib import Path

import numpy as np
import pytest

from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditDeviceRequest, AuditPushRequest, AuditPushResponse
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.push.v1.push_pb2 import Audience, Devices, Filter, Kind, SendPush, TagGroup
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import TaskFact, TaskFellDue, TaskScheduled, TaskSent
from services.domain.topics import TASKS
from services.errors import InputError, NotFoundError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from tests.analytics.audit.timelines import kinds, lines
from tests.analytics.records import (
    APP,
    T0,
    app_outcomes,
    cancel,
    cancelled,
    device,
    failed,
    finished,
    meta,
    new_record,
    outcomes,
    send,
    started,
)
from tests.analytics.service import running_service


def in_states(answer: AuditPushResponse) -> list[tuple[str, str, int]]:
    return [(count.state, count.reason, count.devices) for count in answer.states]


async def test_a_push_with_everything(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    audience = Audience(filter=Filter(tags=[TagGroup(tags=[5])]))
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(1000, audience=audience),
                started(1000, 1, [1, 2, 3], T0 + 5),
                started(1000, 2, [9], T0 + 6),
                outcomes(
                    1,
                    app_outcomes(1000, [1, 2, 3], Outcome.OUTCOME_KIND_SENT, T0 + 10),
                    app_outcomes(1000, [2], Outcome.OUTCOME_KIND_SENT, T0 + 40),
                    app_outcomes(1000, [1], Outcome.OUTCOME_KIND_RECEIVED, T0 + 50),
                    app_outcomes(1000, [2], Outcome.OUTCOME_KIND_RECEIVED, T0 + 60),
                    app_outcomes(1000, [3], Outcome.OUTCOME_KIND_FAILED, T0 + 70, "token not found"),
                    app_outcomes(7777, [3], Outcome.OUTCOME_KIND_SENT, T0 + 70),
                ),
                outcomes(2, app_outcomes(1000, [9], Outcome.OUTCOME_KIND_EXPIRED, T0 + 90)),
                cancel(1000, T0 + 80),
                cancelled(1000, 1, T0 + 81),
                finished(1000, 1, T0 + 95),
                finished(1000, 2, T0 + 96),
            ]
        )
        answer = await analytics.AuditPush(AuditPushRequest(msgid=1000))

    assert (answer.msgid, answer.appkey, answer.kind) == (1000, APP, "broadcast")
    assert (answer.audience, answer.audience_count) == ("tag 5", 4)
    assert answer.request_json == '{"appkey":1}'
    assert lines(list(answer.timeline)) == [
        ("command", 0, 0, 1, "accepted through v2 from 10.0.0.1, request req-1"),
        ("audience", 5, 6, 4, "in 2 partitions, until 2026-09-21 23:13:20 CST"),
        ("sent", 10, 40, 3, ""),
        ("received", 50, 60, 2, ""),
        ("failed", 70, 70, 1, "token not found: 1"),
        ("cancel command", 80, 80, 1, "through v2 from 10.0.0.2, request req-2"),
        ("push cancelled", 81, 81, 1, "in 1 of 2 partitions"),
        ("expired", 90, 90, 1, ""),
        ("finished", 95, 96, 2, "in 2 of 2 partitions"),
    ]
    what_happened = [["accepted"], ["partitions", "until_ms"], [], [], ["reason_count"], ["origin"], ["partitions"]]
    assert kinds(answer.timeline) == [*what_happened, [], ["partitions"]]
    assert in_states(answer) == [("received", "", 2), ("failed", "token not found", 1), ("expired", "", 1)]


async def test_a_push_that_failed_says_why(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    reason = "filter.tags: 150000 groups, at most 1000 are allowed"
    async with running_service(log, clickhouse, tmp_path) as analytics:
        facts = [failed(1000, 1, reason, T0 + 7), failed(1000, 2, reason, T0 + 8), started(2000, 2, [4])]
        repeated = [failed(1000, 2, reason, T0 + 8), failed(2000, 1, "bug", T0 + 9), device(4, token="here")]
        await log.append([send(1000), send(2000), *facts, *repeated])
        whole = await analytics.AuditPush(AuditPushRequest(msgid=1000, token="here"))
        part = await analytics.AuditPush(AuditPushRequest(msgid=2000))

    assert lines(list(whole.timeline))[1:] == [
        ("push failed", 7, 8, 2, f"in 2 partitions it never starts, {reason}"),
        ("push failed again", 8, 8, 1, "in 1 partition, the log has the record more than once; it counted once"),
    ]
    assert kinds(whole.timeline)[1:] == [["failed_partitions", "reason"], ["partitions", "remark"]]
    assert (whole.audience_count, in_states(whole)) == (0, [])
    assert whole.device.verdict == f"the push failed in the device's partition, 1: {reason}"
    assert ("push failed", 9, 9, 1, "in 1 partition it never starts, bug") in lines(list(part.timeline))
    assert in_states(part) == [("pending", "", 1)]


async def test_a_receipt_takes_precedence_over_an_earlier_final_outcome(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        sent = outcomes(1, app_outcomes(1000, [1, 2], Outcome.OUTCOME_KIND_SENT, T0 + 5))
        await log.append([send(1000), started(1000, 1, [1, 2, 3]), started(1000, 2, [9]), sent, cancelled(1000, 1)])
        before = await analytics.AuditPush(AuditPushRequest(msgid=1000))
        late = app_outcomes(1000, [1], Outcome.OUTCOME_KIND_RECEIVED, T0 + 50)
        await log.append([outcomes(1, late, seed="late"), outcomes(1, late, seed="again")])
        after = await analytics.AuditPush(AuditPushRequest(msgid=1000))

    assert in_states(before) == [("pending", "", 1), ("cancelled", "", 3)]
    assert in_states(after) == [("pending", "", 1), ("received", "", 1), ("cancelled", "", 2)]


async def test_an_id_of_a_list_finds_its_push(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    audience = Audience(
        devices=Devices(
            partitions=np.array([1, 1], "<u2").tobytes(),
            numbers=np.array([4, 5], "<u4").tobytes(),
            id_offsets=np.array([0, 2], "<u4").tobytes(),
        )
    )
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(900),
                send(1000, audience=audience, id_count=3, kind=Kind.KIND_UNICAST),
                send(1003, request_id="other"),
                outcomes(
                    1,
                    app_outcomes(np.array([1000, 1002]), [4, 5], Outcome.OUTCOME_KIND_SENT, T0 + 10),
                    app_outcomes(1002, [5], Outcome.OUTCOME_KIND_RECEIVED, T0 + 20),
                    app_outcomes(1003, [5], Outcome.OUTCOME_KIND_RECEIVED, T0 + 20),
                ),
            ]
        )
        whole = await analytics.AuditPush(AuditPushRequest(msgid=1000))
        one = await analytics.AuditPush(AuditPushRequest(msgid=1002))
        unknown_token = await analytics.AuditPush(AuditPushRequest(msgid=1001))
        after = await analytics.AuditPush(AuditPushRequest(msgid=1003))
        with pytest.raises(NotFoundError):
            await analytics.AuditPush(AuditPushRequest(msgid=1004))

    assert [line[0::3] for line in lines(list(whole.timeline))] == [("command", 1), ("sent", 2), ("received", 1)]
    assert one.msgid == 1000
    assert lines(list(one.timeline))[-4:] == [
        ("sent", 10, 10, 2, ""),
        ("message sent", 10, 10, 1, "message 1002"),
        ("received", 20, 20, 1, ""),
        ("message received", 20, 20, 1, "message 1002"),
    ]
    assert (whole.audience_count, in_states(whole)) == (2, [("sent", "", 1), ("received", "", 1)])
    assert in_states(one) == [("received", "", 1)]
    assert unknown_token.timeline == whole.timeline
    assert in_states(unknown_token) == []
    assert after.msgid == 1003


def task(time_ms: int, **fact: object) -> NewRecord:
    origin = Origin(interface="v2", address="10.0.0.9", request_id="req-t")
    message = TaskFact(meta=meta(f"task {time_ms}", time_ms, "scheduling", origin), task_key="k1", **fact)  # type: ignore[arg-type]
    return new_record(TASKS.name, 2, message)


async def test_a_timed_push(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    push = SendPush(msgid=1000, id_count=1, appkey=APP, audience=Audience(), request_json='{"a":1}', task_key="k1")
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append([task(T0, scheduled=TaskScheduled(pushes=[push], due_ms=T0 + 60_000, created_ms=T0))])
        waiting = await analytics.AuditPush(AuditPushRequest(msgid=1000))
        await log.append(
            [
                task(T0 + 60_000, fell_due=TaskFellDue()),
                send(1000, time_ms=T0 + 60_001, task_key="k1"),
                task(T0 + 60_002, sent=TaskSent()),
            ]
        )
        sent = await analytics.AuditPush(AuditPushRequest(msgid=1000))

    scheduled = (
        "task scheduled",
        0,
        0,
        1,
        "task k1, due 2026-09-21 22:14:20 CST, through v2 from 10.0.0.9, request req-t",
    )
    assert lines(list(waiting.timeline)) == [scheduled]
    assert kinds(waiting.timeline) == [["task", "due_ms", "origin"]]
    assert waiting.request_json == '{"a":1}'
    assert [line[:2] for line in lines(list(sent.timeline))] == [
        ("task scheduled", 0),
        ("task fell due", 60_000),
        ("command", 60_001),
        ("task sent", 60_002),
    ]


async def test_the_request_is_found_at_its_first_push(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append([send(1000, request_json='{"both":1}'), send(1001, request_json="")])
        assert (await analytics.AuditPush(AuditPushRequest(msgid=1001))).request_json == '{"both":1}'


async def test_unknown_and_impossible_ids(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        with pytest.raises(NotFoundError, match="42"):
            await analytics.AuditPush(AuditPushRequest(msgid=42))
        with pytest.raises(InputError, match="msgid"):
            await analytics.AuditPush(AuditPushRequest())
        with pytest.raises(NotFoundError, match="no device"):
            await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="x"))
        with pytest.raises(InputError, match="token"):
            await analytics.AuditDevice(AuditDeviceRequest(appkey=APP))
