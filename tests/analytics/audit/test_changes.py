"""Audits of changes: each change of a device or an app with the origin of its command."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analytics.digest import digest
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import (
    AuditAppRequest,
    AuditAppResponse,
    AuditDeviceRequest,
    AuditPushRequest,
    TimelineEntry,
)
from protos.analytics.v1.details_pb2 import Detail, RequestedChange, TagChange
from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_WEBPUSH, Platform
from protos.registry.v1.devices_pb2 import (
    Address,
    AddStags,
    AddTags,
    Attributes,
    ClearAddress,
    ClearAlias,
    DeviceCommand,
    RegisterDevice,
    ReserveNumbers,
    RevokeAllKeys,
    SetAddress,
    SetAlias,
)
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import TaskCancelled, TaskFact, TaskScheduled
from services.domain.addresses import address_hash, fingerprint
from services.domain.topics import DEVICE_COMMANDS, TASKS
from services.errors import InputError, NotFoundError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from tests.analytics.audit.timelines import kinds
from tests.analytics.records import (
    APP,
    T0,
    app_changed,
    cancel,
    device,
    device_command,
    meta,
    new_record,
    send,
    started,
)
from tests.analytics.service import ingest, new_ingestion, running_ingestion, running_service

HOUR_MS = 3_600_000
GATEWAY = Origin(interface="gateway", address="192.0.2.7", request_id="g-1")
CLI = "through cli from alice@ops (says root@moon), request req-5"
V2 = "through v2 from 10.0.0.3, request req-3"
DEVICE = "through gateway from 192.0.2.7, request g-1"


def lines_of(timeline: Sequence[TimelineEntry]) -> list[tuple[str, int, str]]:
    return [(line.event, line.first_ms - T0, line.detail) for line in timeline]


async def test_changes_have_the_origin_of_their_command(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    register = RegisterDevice(platform=Platform.PLATFORM_ANDROID, attributes=Attributes(model="Mi 9"))
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [device_command(3, origin=GATEWAY, register=register), device(3, attributes={"model": "Mi 9"})]
        )
        await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="token-1-3"))
        await log.append(
            [
                device_command(3, time_ms=T0 + 1, add_tags=AddTags(tags=[5])),
                device(3, time_ms=T0 + 1, tags=[5], attributes={"model": "Mi 9"}),
                device_command(3, time_ms=T0 + 2, origin=GATEWAY, set_alias=SetAlias(alias="a")),
                device(3, time_ms=T0 + 2, tags=[5], alias="a", attributes={"model": "Mi 9"}),
                device_command(3, time_ms=T0 + 3, clear_alias=ClearAlias(only_alias="b")),
                device_command(4, time_ms=T0 + 3, clear_alias=ClearAlias()),
            ]
        )
        answer = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="token-1-3"))

    assert lines_of(answer.timeline) == [
        ("registered", 0, f"android, model Mi 9, {DEVICE}"),
        ("asked", 1, f"add tags: +tag 5, {V2}"),
        ("changed", 2, f"alias a, +tag 5, {DEVICE}"),
        ("asked", 3, f"clear alias: no alias if it is b, {V2}"),
    ]
    asked = Detail(requested_change=RequestedChange(command="add tags", details=[Detail(tag=TagChange(tag=5))]))
    assert answer.timeline[1].details[0] == asked
    changes = [["platform", "attribute", "origin"], ["requested_change", "origin"], ["alias", "tag", "origin"]]
    assert kinds(answer.timeline) == [*changes, ["requested_change", "origin"]]
    assert answer.records_behind == 0


async def test_addresses_are_audited_by_channel_and_fingerprint(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    endpoint, token = "https://push.example.org/secret-part", "fcm-secret-part"
    one = Address(channel=CHANNEL_WEBPUSH, address=endpoint, since_ms=T0 + 1)
    two = Address(channel=CHANNEL_FCM, address=token, since_ms=T0 + 2)
    known = {1: address_hash(CHANNEL_WEBPUSH, endpoint), 2: address_hash(CHANNEL_FCM, token)}
    dead = ClearAddress(channel=CHANNEL_WEBPUSH, only_hash=known[1], dead_reason="410: gone")
    taken = ClearAddress(channel=CHANNEL_FCM, only_hash=known[2], to_token="token-1-9")
    set_one = SetAddress(channel=CHANNEL_WEBPUSH, address=endpoint)
    states = [
        device(3, time_ms=T0 + at, addresses=held) for at, held in ((1, [one]), (2, [one, two]), (4, [two]), (5, []))
    ]
    commands = [
        device_command(3, time_ms=T0 + 1, origin=GATEWAY, set_address=set_one),
        device_command(3, time_ms=T0 + 3, set_address=set_one),
        device_command(3, time_ms=T0 + 4, clear_address=dead),
        device_command(3, time_ms=T0 + 5, clear_address=taken),
        device_command(3, time_ms=T0 + 6, clear_address=ClearAddress(channel=CHANNEL_FCM)),
    ]
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(commands)
        for state in (device(3), *states):  # one after the other: compaction keeps the last one
            await log.append([state])
            answer = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="token-1-3"))
    shown = {number: fingerprint(each) for number, each in known.items()}
    assert lines_of(answer.timeline)[1:] == [
        ("changed", 1, f"+address of webpush {shown[1]}, {DEVICE}"),
        ("changed", 2, f"+address of fcm {shown[2]}"),
        ("asked", 3, f"set address: +address of webpush {shown[1]}, {V2}"),
        ("changed", 4, f"-address of webpush {shown[1]}, 410: gone, {V2}"),
        ("changed", 5, f"-address of fcm {shown[2]}, device token-1-9 set the same address, {V2}"),
        ("asked", 6, f"clear address: -address of fcm, {V2}"),
    ]
    stored = await clickhouse.rows("SELECT addresses FROM devices FINAL ORDER BY time")
    assert stored[2][0] == [f"webpush {shown[1]}", f"fcm {shown[2]}"]
    for table in ("devices", "device_commands"):
        everything = await clickhouse.rows(f"SELECT * FROM {table}")
        assert "secret-part" not in str(everything)


async def test_states_that_were_compacted_are_still_explained(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    register = RegisterDevice(platform=Platform.PLATFORM_IOS)
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                device_command(3, register=register),
                device_command(3, time_ms=T0 + 1, add_stags=AddStags(stags=["news", "vip"])),
                device(3, time_ms=T0 + 2, removed_ms=T0 + 2, removed_reason="revoked by alice@ops"),
                _to_all(T0 + 3),
            ]
        )
        answer = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="token-1-3"))
        await log.append([device_command(9, add_tags=AddTags(tags=[1]))])
        without_states = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token="token-1-9"))
        with pytest.raises(NotFoundError):
            await analytics.AuditDevice(AuditDeviceRequest(appkey="1", token="token-1-9"))

    assert lines_of(answer.timeline) == [
        ("registered", 0, f"android, {V2}"),
        ("asked", 1, f'add stags: +stag "news", +stag "vip", {V2}'),
        ("removed", 2, "revoked by alice@ops"),
        (
            "asked",
            3,
            f"revoke all keys: all keys of the app, {CLI}",
        ),
    ]
    assert lines_of(without_states.timeline) == [("asked", 0, f"add tags: +tag 1, {V2}")]


def _to_all(time_ms: int, partition: int = 1) -> NewRecord:
    origin = Origin(interface="cli", address="alice@ops", request_id="req-5", says="root@moon")
    command = DeviceCommand(meta=meta(f"all {time_ms} {partition}", time_ms, "registry", origin), appkey=APP)
    command.revoke_all_keys.CopyFrom(RevokeAllKeys())
    return NewRecord(DEVICE_COMMANDS.name, partition, APP.encode(), command.SerializeToString())


async def test_commands_are_stored_once_and_rebuilt_the_same(
    log: SqliteLog, clickhouse: ClickHouse, engine: ClickHouse, tmp_path: Path
) -> None:
    command = device_command(3, add_tags=AddTags(tags=[5]))
    await ingest(log, clickhouse, tmp_path, [command, app_changed("set", "ack_info on"), command])
    live = await digest(clickhouse)
    (tmp_path / "offsets.db").unlink()
    async with running_ingestion(new_ingestion(log, clickhouse, tmp_path)) as again:
        assert await again.catch_up() == 0
    assert await digest(clickhouse) == live
    assert (await clickhouse.rows("SELECT count() FROM device_commands FINAL"))[0][0] == 1


async def test_a_push_that_is_in_the_log_twice(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    twice = [send(1000), started(1000, 1, [3], T0 + 5), started(1000, 2, [4], T0 + 5)]
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append([*twice, send(1000), started(1000, 1, [3], T0 + 5)])
        answer = await analytics.AuditPush(AuditPushRequest(msgid=1000))

    lines = [(line.event, line.count, line.detail) for line in answer.timeline if "again" in line.event]
    assert sorted(lines) == [
        ("audience again", 1, "in 1 partition, the log has the record more than once; it counted once"),
        ("command again", 1, "the log has the record more than once; it counted once"),
    ]
    assert answer.audience_count == 2
    assert [(size.partition, size.devices) for size in answer.partitions] == [(1, 1), (2, 1)]


def of_app(**fields: Any) -> AuditAppRequest:
    request = AuditAppRequest(appkey=APP, from_ms=T0, to_ms=T0 + 24 * HOUR_MS, limit=100)
    request.MergeFrom(AuditAppRequest(**fields))
    return request


def task(time_ms: int, **fact: object) -> NewRecord:
    origin = Origin(interface="v2", address="10.0.0.9", request_id="req-t")
    message = TaskFact(meta=meta(f"task {time_ms}", time_ms, "scheduling", origin), task_key="k1", **fact)  # type: ignore[arg-type]
    return new_record(TASKS.name, 2, message)


def _reserved(time_ms: int, partition: int) -> NewRecord:
    origin = Origin(interface="cli", request_id=f"restore {time_ms}")
    command = DeviceCommand(meta=meta(f"reserve {time_ms} {partition}", time_ms, "cli", origin), appkey=APP)
    command.reserve_numbers.CopyFrom(ReserveNumbers(count=7))
    return new_record(DEVICE_COMMANDS.name, partition, command)


def of_everything() -> list[NewRecord]:
    timed = SendPush(msgid=1001, id_count=1, appkey=APP, task_key="k1")
    by_one = [device_command(number, time_ms=T0 + 50, add_stags=AddStags(stags=["a"])) for number in (1, 2, 3)]
    return [
        app_changed("created", time_ms=T0 + 1),
        app_changed("set", "ack_info on", "name N", time_ms=T0 + 10),
        send(1000, time_ms=T0 + 20),
        started(1000, 1, [3, 4]),
        started(1000, 2, [9]),
        send(999, time_ms=T0 - 1),
        send(998, time_ms=T0 + 20, appkey="2000000000"),
        cancel(1000, T0 + 30),
        task(T0 + 35, scheduled=TaskScheduled(pushes=[timed], due_ms=T0 + HOUR_MS, created_ms=T0 + 35)),
        task(T0 + 40, cancelled=TaskCancelled()),
        *by_one,
        *(device_command(n, time_ms=T0 + 60 + n, origin=GATEWAY, set_alias=SetAlias(alias="a")) for n in (1, 2)),
        device_command(1, time_ms=T0 + 2 * HOUR_MS, origin=GATEWAY, set_alias=SetAlias(alias="b")),
        *(_to_all(T0 + 3 * HOUR_MS, partition) for partition in (1, 2)),
        *(_reserved(T0 + 4 * HOUR_MS + number, partition) for number in (1, 2) for partition in (1, 2)),
    ]


EVERYTHING = [
    ("app created", 1, 1, "through cli from alice@ops, request req-4"),
    ("app set", 10, 1, "ack_info on, name N, through cli from alice@ops, request req-4"),
    ("push", 20, 3, "push 1000, broadcast, everyone, through v2 from 10.0.0.1, request req-1"),
    ("cancel push", 30, 1, "push 1000, through v2 from 10.0.0.2, request req-2"),
    ("task scheduled", 35, 1, "task k1, through v2 from 10.0.0.9, request req-t"),
    ("task cancelled", 40, 1, "task k1, through v2 from 10.0.0.9, request req-t"),
    ("add stags", 50, 3, V2),
    ("set alias", 61, 2, "in this hour, through gateway"),
    ("set alias", 2 * HOUR_MS, 1, "in this hour, through gateway"),
    ("revoke all keys", 3 * HOUR_MS, 1, CLI),
    ("reserve numbers", 4 * HOUR_MS + 1, 2, "in this hour, through cli"),
]


def lines(answer: AuditAppResponse) -> list[tuple[str, int, int, str]]:
    return [(line.event, line.first_ms - T0, line.count, line.detail) for line in answer.timeline]


async def test_the_timeline_of_an_app(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(of_everything())
        whole = await analytics.AuditApp(of_app())
        paged = []
        pos, pages = "", 0
        while pos or not pages:
            page = await analytics.AuditApp(of_app(pos=pos, limit=3))
            paged += lines(page)
            pos, pages = page.pos, pages + 1

    assert lines(whole) == EVERYTHING
    by_command = [["push", "origin"], ["task", "origin"], ["task", "origin"], ["origin"], ["remark", "origin"]]
    first = [["origin"], ["text", "origin"], ["push", "push_kind", "audience", "origin"]]
    assert kinds(whole.timeline) == [*first, *by_command, ["remark", "origin"], ["origin"], ["remark", "origin"]]
    assert whole.pos == ""
    assert (paged, pages) == (EVERYTHING, 4)


async def test_invalid_requests(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    wrong: dict[str, dict[str, object]] = {
        "limit": {"limit": 1001},
        "pos": {"pos": "x/y"},
        "from": {"from_ms": T0 + 48 * HOUR_MS},
    }
    async with running_service(log, clickhouse, tmp_path) as analytics:
        for field, fields in wrong.items():
            with pytest.raises(InputError, match=field):
                await analytics.AuditApp(of_app(**fields))
        with pytest.raises(InputError, match="appkey"):
            await analytics.AuditApp(AuditAppRequest(from_ms=1, to_ms=2, limit=1))
