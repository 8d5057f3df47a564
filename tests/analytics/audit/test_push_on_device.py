"""Audits of a push on one device: whether it is in the audience, and which clause excludes it."""

from pathlib import Path

import numpy as np
import pytest

from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditPushRequest, Exclusion, ExclusionReason, FoundValues
from protos.analytics.v1.details_pb2 import AudienceSummary
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    Audience,
    BrandModel,
    Comparison,
    Devices,
    Filter,
    Kind,
    ModelClause,
    StagGroup,
    TagGroup,
)
from protos.registry.v1.devices_pb2 import AddTags
from services.errors import InputError, NotFoundError
from services.log.sqlite.log import SqliteLog
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

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEFORE = T0 - 1000
MI = {"region": "上海市", "brand": "Xiaomi", "model": "Mi 9"}


async def test_outcomes_of_a_device_in_the_audience(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(1000, audience=Audience(filter=Filter(tags=[TagGroup(tags=[5])]))),
                device(3, time_ms=BEFORE, registered_ms=BEFORE, tags=[5]),
                started(1000, 1, [3, 4], T0 + 5),
                outcomes(
                    1,
                    app_outcomes(1000, [3, 4], Outcome.OUTCOME_KIND_SENT, T0 + 10),
                    app_outcomes(1000, [3], Outcome.OUTCOME_KIND_FAILED, T0 + 20, "BadDeviceToken"),
                ),
                cancelled(1000, 1, T0 + 30),
                cancelled(1000, 2, T0 + 30),
            ]
        )
        whole = await analytics.AuditPush(AuditPushRequest(msgid=1000, token="token-1-3"))
        alone = await analytics.AuditPush(AuditPushRequest(msgid=1000, token="token-1-3", device_only=True))
        with pytest.raises(InputError, match="device_only"):
            await analytics.AuditPush(AuditPushRequest(msgid=1000, device_only=True))
        with pytest.raises(NotFoundError):
            await analytics.AuditPush(AuditPushRequest(msgid=999, token="token-1-3", device_only=True))

    explained = whole.device
    assert (alone.device, alone.request_json, alone.audience) == (explained, whole.request_json, whole.audience)
    assert explained.in_audience
    assert explained.verdict == "in the audience when the push started"
    assert [(clause.text, clause.holds, clause.found) for clause in explained.clauses] == [("tag 5", True, "tag 5")]
    assert [(e.event, e.first_ms - T0, e.detail, e.msgid, e.reason) for e in explained.timeline] == [
        ("audience", 5, "", 0, ""),
        ("sent", 10, "message 1000", 1000, ""),
        ("failed", 20, "message 1000, BadDeviceToken", 1000, "BadDeviceToken"),
        ("push cancelled", 30, "in the device's partition", 0, ""),
    ]


CLAUSES = [
    (Filter(tags=[TagGroup(tags=[1, 7]), TagGroup(tags=[8])]), "(tag 1 AND tag 7) OR (tag 8)", "tag 1, tag 2"),
    (Filter(not_tags=[TagGroup(tags=[2])]), "NOT tag 2", "tag 1, tag 2"),
    (Filter(stags=[StagGroup(stags=["vip"])]), 'stag "vip"', 'stag "news"'),
    (Filter(not_stags=[StagGroup(stags=["news"])]), 'NOT stag "news"', 'stag "news"'),
    (
        Filter(attributes=[AttributeClause(attribute=Attribute.ATTRIBUTE_REGION, values=["北京市"])]),
        "region in 北京市",
        "region 上海市",
    ),
    (
        Filter(attributes=[AttributeClause(attribute=Attribute.ATTRIBUTE_CARRIER, values=["cm"])]),
        "carrier in cm",
        "carrier unknown",
    ),
    (
        Filter(attributes=[AttributeClause(attribute=Attribute.ATTRIBUTE_REGION, values=["上海市"], negated=True)]),
        "region not in 上海市",
        "region 上海市",
    ),
    (
        Filter(models=[ModelClause(pairs=[BrandModel(brand="Xiaomi", model="Mi 8")], brands=["Acme"])]),
        "model in [Xiaomi Mi 8, any Acme]",
        "model Xiaomi Mi 9",
    ),
    (
        Filter(models=[ModelClause(pairs=[BrandModel(brand="Xiaomi", model="Mi 9")], negated=True)]),
        "model not in Xiaomi Mi 9",
        "model Xiaomi Mi 9",
    ),
    (
        Filter(activity=[ActivityClause(days=7, comparison=Comparison.COMPARISON_GREATER_OR_EQUAL, opens=3)]),
        "opens in 7 days >= 3",
        "2 app opens",
    ),
]
FOUND_VALUES = {
    "tag 1, tag 2": FoundValues(tags=[1, 2]),
    'stag "news"': FoundValues(stags=["news"]),
    "region 上海市": FoundValues(attribute="上海市"),
    "carrier unknown": FoundValues(),
    "model Xiaomi Mi 9": FoundValues(brand="Xiaomi", model="Mi 9"),
    "2 app opens": FoundValues(opens=2),
}


async def test_the_clause_that_excludes_a_device(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """One push for each clause. Clauses that hold are listed too, and later states of the device do not count.

    Opens count from the beginning of the hour in which the seven days of 24 hours begin.
    """
    brand = AttributeClause(attribute=Attribute.ATTRIBUTE_BRAND, values=["Xiaomi"])
    pushes = {1000 + index: Filter(attributes=[brand]) for index in range(len(CLAUSES))}
    for push, (rule, _, _) in zip(pushes.values(), CLAUSES, strict=True):
        push.MergeFrom(rule)
    opened = Session.SESSION_EVENT_KIND_APP_OPENED
    week_ms = (T0 - 7 * DAY_MS) // HOUR_MS * HOUR_MS
    async with running_service(log, clickhouse, tmp_path) as analytics:
        for new_records in (
            [send(msgid, audience=Audience(filter=rule)) for msgid, rule in pushes.items()],
            [session(3, opened, time_ms) for time_ms in (week_ms - 1, week_ms, T0 - 1, T0 + 6)],
            [device(3, time_ms=BEFORE, registered_ms=BEFORE, attributes=MI, tags=[1, 2], stags=["news"])],
            [started(msgid, 1, [4], T0 + 5) for msgid in pushes],
            [device(3, time_ms=T0 + 9, registered_ms=BEFORE, attributes=MI, tags=[8], stags=["vip"])],
        ):
            await log.append(new_records)
            await analytics.AuditPush(AuditPushRequest(msgid=1000))  # reads the records before one is compacted away
        answers = [await analytics.AuditPush(AuditPushRequest(msgid=msgid, token="token-1-3")) for msgid in pushes]

    for answer, push, (rule, text, found) in zip(answers, pushes.values(), CLAUSES, strict=True):
        explained = answer.device
        assert answer.audience_summary == AudienceSummary(filter=push)
        assert [(clause.filter, clause.found_values) for clause in explained.clauses if not clause.holds] == [
            (rule, FOUND_VALUES[found])
        ]
        assert not explained.in_audience, text
        assert explained.verdict == f"excluded by {text} (it had {found})"
        assert sorted((clause.text, clause.holds) for clause in explained.clauses) == sorted(
            [(text, False), ("brand in Xiaomi", True)]
        )
        assert not explained.timeline, text


async def test_a_device_that_was_not_registered(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    push = [send(1000), started(1000, 1, [4], T0 + 5)]
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                *push,
                device(3, time_ms=T0 + 6, registered_ms=T0 + 6),
                device(5, time_ms=BEFORE, removed_ms=BEFORE, removed_reason="unregistered"),
                device(6, time_ms=T0 + 9, tags=[1]),
                device(7, time_ms=BEFORE, registered_ms=BEFORE),
                device(8, time_ms=BEFORE, registered_ms=BEFORE),
                device_command(8, time_ms=T0 + 1, add_tags=AddTags(tags=[1])),
                device(9, partition=2),
            ]
        )

        async def verdict(token: str) -> str:
            found = (await analytics.AuditPush(AuditPushRequest(msgid=1000, token=token))).device
            assert not found.in_audience
            reasons.append(found.exclusion.reason)
            return found.verdict

        reasons: list[int] = []
        assert await verdict("nobody") == "not registered: the event log knows no device with this token"
        assert await verdict("token-1-3") == "registered after the push started, 2026-09-21 22:13:20 CST"
        assert await verdict("token-1-5") == ("removed before the push started: unregistered, 2026-09-21 22:13:19 CST")
        assert "was replaced in the log" in await verdict("token-1-6")
        assert "it changed as the push started" in await verdict("token-1-7")
        assert "lacks 1 changes" in await verdict("token-1-8")
        assert await verdict("token-2-9") == "the push has not started in the device's partition, 2"
        assert reasons == [
            ExclusionReason.EXCLUSION_REASON_NOT_REGISTERED,
            ExclusionReason.EXCLUSION_REASON_REGISTERED_LATER,
            ExclusionReason.EXCLUSION_REASON_REMOVED,
            ExclusionReason.EXCLUSION_REASON_RECORD_REPLACED,
            ExclusionReason.EXCLUSION_REASON_CHANGED_AT_START,
            ExclusionReason.EXCLUSION_REASON_RECORD_LACKS_CHANGES,
            ExclusionReason.EXCLUSION_REASON_PUSH_NOT_STARTED,
        ]


async def test_a_list_of_devices(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    listed = Devices(
        partitions=np.array([1, 2], "<u2").tobytes(),
        numbers=np.array([3, 4], "<u4").tobytes(),
        id_offsets=np.array([0, 1], "<u4").tobytes(),
    )
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(1000, audience=Audience(devices=listed), id_count=2, kind=Kind.KIND_UNICAST),
                *(device(number) for number in (3, 4)),
                device(4, partition=2),
                outcomes(2, app_outcomes(1001, [4], Outcome.OUTCOME_KIND_RECEIVED, T0 + 10)),
                send(2000, audience=Audience(devices=Devices()), kind=Kind.KIND_UNICAST),
            ]
        )
        inside = await analytics.AuditPush(AuditPushRequest(msgid=1000, token="token-2-4"))
        outside = (await analytics.AuditPush(AuditPushRequest(msgid=1000, token="token-1-4"))).device
        unknown = (await analytics.AuditPush(AuditPushRequest(msgid=2000, token="token-1-4"))).device

    assert unknown.verdict == "no device had the tokens or aliases of the push when it was requested"
    assert unknown.exclusion == Exclusion(reason=ExclusionReason.EXCLUSION_REASON_NO_TARGETS, partition=1)
    assert inside.audience_summary == AudienceSummary(devices=2)
    assert [(size.partition, size.devices) for size in inside.partitions] == [(1, 1), (2, 1)]
    assert (inside.device.in_audience, inside.device.verdict) == (True, "in the audience: the push lists it")
    assert [(e.event, e.detail) for e in inside.device.timeline] == [("audience", ""), ("received", "message 1001")]
    assert (outside.in_audience, outside.verdict) == (False, "not one of the 2 targets")
    not_listed = Exclusion(reason=ExclusionReason.EXCLUSION_REASON_NOT_LISTED, partition=1, count=2)
    assert outside.exclusion == not_listed
    assert inside.appkey == APP
