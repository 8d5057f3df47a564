"""Audits of devices with a known history."""

from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap

from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditDeviceRequest, TimelineEntry
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from protos.push.v1.push_pb2 import AndroidStyle, Audience, Devices, Kind, Message
from protos.registry.v1.apps_pb2 import Revocations
from protos.registry.v1.devices_pb2 import AddTags, AliasTaken, ClearAlias, DeviceFact, SetAlias
from services.domain.topics import DEVICES
from services.errors import InputError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from tests.analytics.audit.timelines import kinds, lines
from tests.analytics.records import (
    APP,
    T0,
    app_outcomes,
    cancelled,
    device,
    device_command,
    outcomes,
    send,
    session,
    started,
)
from tests.analytics.service import running_service


async def test_a_device(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    request = AuditDeviceRequest(appkey=APP, token="token-1-3")
    shanghai = {"region": "上海市"}
    async with running_service(log, clickhouse, tmp_path) as analytics:
        for state in (
            device(3, attributes={"region": "北京市"}),
            device(4),
            device(3, time_ms=T0 + 2, attributes=shanghai, alias="a", tags=[1, 2], stags=["news"]),
            device(3, time_ms=T0 + 3, attributes=shanghai, alias="b", tags=[2, 7]),
            device(3, time_ms=T0 + 30, alias="b", tags=[2, 7], removed_ms=T0 + 30, removed_reason="unregistered"),
        ):
            await log.append([state])
            answer = await analytics.AuditDevice(request)
        await log.append(
            [
                session(3, Session.SESSION_EVENT_KIND_OPENED, T0 + 1),
                session(4, Session.SESSION_EVENT_KIND_OPENED, T0 + 1),
                started(1000, 1, [3, 4], T0 + 9),
                started(1001, 1, [4], T0 + 9),
                started(1002, 2, [3], T0 + 9),
                outcomes(1, app_outcomes(1000, [3, 4], Outcome.OUTCOME_KIND_SENT, T0 + 10)),
                outcomes(1, app_outcomes(1000, [3], Outcome.OUTCOME_KIND_DROPPED, T0 + 11, "mailbox full"), seed="2"),
                outcomes(2, app_outcomes(1000, [3], Outcome.OUTCOME_KIND_SENT, T0 + 12)),
                session(3, Session.SESSION_EVENT_KIND_CLOSED, T0 + 20, reason="idle"),
            ]
        )
        answer = await analytics.AuditDevice(request)

    assert (answer.appkey, answer.token) == (APP, "token-1-3")
    assert lines(list(answer.timeline)) == [
        ("registered", 0, 0, 1, "android, region 北京市"),
        ("connected", 1, 1, 1, ""),
        ("changed", 2, 2, 1, 'alias a, +tag 1, +tag 2, +stag "news", region 上海市'),
        ("changed", 3, 3, 1, 'alias b, +tag 7, -tag 1, -stag "news"'),
        ("audience", 9, 9, 1, "push 1000"),
        ("sent", 10, 10, 1, "message 1000"),
        ("dropped", 11, 11, 1, "message 1000, mailbox full"),
        ("disconnected", 20, 20, 1, "idle"),
        ("removed", 30, 30, 1, "unregistered"),
    ]
    changed = ["alias", "tag", "tag", "stag"]
    changes = [["platform", "attribute"], [], [*changed, "attribute"], changed]
    messages = [["push"], ["message"], ["message", "reason"]]
    assert kinds(answer.timeline) == [*changes, *messages, ["reason"], ["reason"]]


async def test_a_device_that_lost_its_alias_names_the_one_that_took_it(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    taken = ClearAlias(only_alias="a", taken=AliasTaken(token="thief", proven=True))
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                device_command(3, time_ms=T0 + 2, set_alias=SetAlias(alias="a", proven=True)),
                device_command(3, time_ms=T0 + 5, clear_alias=taken),
                device_command(3, time_ms=T0 + 6, clear_alias=taken),
            ]
        )
        for state in (device(3), device(3, time_ms=T0 + 2, alias="a"), device(3, time_ms=T0 + 5)):
            await log.append([state])
            answer = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="token-1-3"))
    told = {(line[0], line[1]): line[4] for line in lines(list(answer.timeline))}
    assert told["changed", 5].startswith("no alias, the alias was taken by device thief, which has proven it")
    assert "no alias if it is a, the alias was taken by device thief, which has proven it" in told["asked", 6]


async def test_a_list_that_names_a_device_twice_means_two_messages(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """Each entry of a list has a message id of its own, also while nothing has been sent."""
    listed = Devices(
        partitions=np.array([1, 1, 2, 1], "<u2").tobytes(),
        numbers=np.array([4, 3, 3, 3], "<u4").tobytes(),
        id_offsets=np.array([0, 1, 2, 3], "<u4").tobytes(),
    )
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                device(3),
                send(1000, audience=Audience(devices=listed), id_count=4, kind=Kind.KIND_UNICAST),
                started(1000, 1, [3, 4], T0 + 9),
                outcomes(1, app_outcomes(1003, [3], Outcome.OUTCOME_KIND_SENT, T0 + 10)),
            ]
        )
        answer = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="token-1-3"))
    assert lines(list(answer.timeline))[1:] == [
        ("audience", 9, 9, 1, "message 1001"),
        ("audience", 9, 9, 1, "message 1003"),
        ("sent", 10, 10, 1, "message 1003"),
    ]


async def test_the_pushes_of_a_device_have_their_titles(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """A push without a title is named by its text; one of a list has its title on each of its messages."""
    listed = Devices(
        partitions=np.array([1], "<u2").tobytes(),
        numbers=np.array([3], "<u4").tobytes(),
        id_offsets=np.array([0], "<u4").tobytes(),
    )
    storm = Message(content="Stay inside", android=AndroidStyle(title="Storm"))
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                device(3),
                send(1000, message=storm),
                started(1000, 1, [3], T0 + 9),
                send(1001, audience=Audience(devices=listed), kind=Kind.KIND_UNICAST, message=Message(content="Hi")),
                started(1001, 1, [3], T0 + 10),
                started(1002, 1, [3], T0 + 11),
                cancelled(1002, 1, T0 + 20),
            ]
        )
        answer = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="token-1-3"))
    titles = {entry.msgid: entry.push_title for entry in answer.timeline if entry.event == "audience"}
    assert titles == {1000: "Storm", 1001: "Hi", 1002: ""}
    ends = {e.msgid: (e.push_expires_ms, e.push_cancelled_ms) for e in answer.timeline if e.event == "audience"}
    hour_ms = 3_600_000
    assert ends == {
        1000: (T0 + 9 + hour_ms, 0),
        1001: (T0 + 10 + hour_ms, 0),
        1002: (T0 + 11 + hour_ms, T0 + 20),
    }


async def test_a_device_whose_key_was_revoked(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        reason = "revoked by alice@ops"
        revocations = DeviceFact(revocations=Revocations(appkey=APP, partition=1, numbers=BitMap([3]).serialize()))
        revoked = NewRecord(DEVICES.name, 1, APP.encode(), revocations.SerializeToString())
        for state in (
            device(3, token="t"),
            revoked,
            device(3, token="t", time_ms=T0 + 5, removed_ms=T0 + 5, removed_reason=reason),
            device(8, token="t", time_ms=T0 + 7, registered_ms=T0 + 7, former_numbers=[3]),
        ):
            await log.append([state])
            await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="t"))
        await log.append(
            [
                session(3, Session.SESSION_EVENT_KIND_OPENED, T0 + 1),
                started(1000, 1, [3], T0 + 2),
                outcomes(1, app_outcomes(1000, [3], Outcome.OUTCOME_KIND_SENT, T0 + 3)),
                session(8, Session.SESSION_EVENT_KIND_OPENED, T0 + 8),
            ]
        )
        answer = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="t"))

    assert lines(list(answer.timeline)) == [
        ("registered", 0, 0, 1, "android"),
        ("connected", 1, 1, 1, ""),
        ("audience", 2, 2, 1, "push 1000"),
        ("sent", 3, 3, 1, "message 1000"),
        ("removed", 5, 5, 1, reason),
        ("registered again", 7, 7, 1, ""),
        ("connected", 8, 8, 1, ""),
    ]


async def test_a_device_whose_first_states_were_compacted(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append([device(3), device(3, time_ms=T0 + 9, alias="a", tags=[1])])
        answer = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="token-1-3"))

    assert lines(list(answer.timeline)) == [
        ("registered", 0, 0, 1, "android"),
        ("changed", 9, 9, 1, "alias a, +tag 1"),
    ]


async def test_a_long_history_is_read_in_parts(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """Each entry is in one part, also where several happened in one moment and pushes to others lie between."""
    states = [device(3), *(device(3, time_ms=T0 + 10 * number, alias=f"a{number}") for number in range(1, 6))]
    async with running_service(log, clickhouse, tmp_path) as analytics:
        for state in states:
            await log.append([state])
            await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="token-1-3"))
        await log.append(
            [
                *(session(3, Session.SESSION_EVENT_KIND_APP_OPENED, T0 + 15 + number // 3) for number in range(9)),
                *(device_command(3, time_ms=T0 + 20, add_tags=AddTags(tags=[number])) for number in range(3)),
                *(started(1000 + number, 1, [3 + number % 2], T0 + 30 + number) for number in range(8)),
                outcomes(1, app_outcomes(1000, [3], Outcome.OUTCOME_KIND_SENT, T0 + 40)),
            ]
        )
        request = AuditDeviceRequest(appkey=APP, token="token-1-3")
        whole = await analytics.AuditDevice(request)
        request.limit = 2
        parts: list[list[TimelineEntry]] = []
        while not parts or request.before_ms:
            part = await analytics.AuditDevice(request)
            parts.append([one for one in part.timeline if one.first_ms >= part.complete_from_ms])
            assert all(one.first_ms < request.before_ms for one in parts[-1] if request.before_ms)
            assert not request.before_ms or part.complete_from_ms < request.before_ms
            request.before_ms = part.complete_from_ms
        for limit, before_ms in ((1001, 0), (0, -1)):
            request.limit, request.before_ms = limit, before_ms
            with pytest.raises(InputError):
                await analytics.AuditDevice(request)
    assert whole.complete_from_ms == 0
    assert len(parts) > 3
    everything = [one for part in reversed(parts) for one in part]
    assert {one.SerializeToString() for one in whole.timeline} <= {one.SerializeToString() for one in everything}
    assert [(one.first_ms, one.event) for one in everything if one.event != "changed"] == [
        (one.first_ms, one.event) for one in whole.timeline if one.event != "changed"
    ]
