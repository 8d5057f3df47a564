"""Every fact of the log becomes rows, each once."""

from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyroaring import BitMap

from analytics.digest import counts, digest
from analytics.ingestion.batch_reader import IngestionLimits
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from protos.push.v1.push_pb2 import Audience, Devices
from protos.registry.v1.devices_pb2 import AddTags
from protos.runtime.v1.log_pb2 import Origin
from protos.runtime.v1.refusals_pb2 import Refusal, RefusalFact, Refusals
from protos.scheduling.v1.scheduling_pb2 import TaskCancelled, TaskFact, TaskFellDue, TaskScheduled, TaskSent
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, REFUSALS, TASKS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import (
    APP,
    T0,
    app_changed,
    app_outcomes,
    cancel,
    cancelled,
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
from tests.analytics.service import ingest, new_ingestion, running_ingestion, value

BEIJING = {"region": "北京市", "carrier": "cm", "os_version": "14", "model": "Mi 9"}
SHANGHAI = {"region": "上海市", "carrier": "cm", "os_version": "14", "model": "Mi 9"}


def task(key: str, time_ms: int, **fact: Any) -> NewRecord:
    origin = Origin(interface="android", address="10.0.0.9", request_id="req-t")
    return new_record(
        TASKS.name, 2, TaskFact(meta=meta(f"{key} {time_ms}", time_ms, "scheduling", origin), task_key=key, **fact)
    )


def refused(path: str, time_ms: int) -> NewRecord:
    refusal = Refusal(appkey=APP, time_ms=time_ms, call=f"POST {path}", result=2, answer="wrong sign", is_signed=False)
    fact = RefusalFact(meta=meta("refusal", time_ms, "edge"), refusals=Refusals(refusals=[refusal]))
    return new_record(REFUSALS.name, 0, fact)


def history() -> list[NewRecord]:
    """Return one record of every kind."""
    return [
        device(3, attributes=BEIJING, alias="alice", tags=[1, 5], stags=["news"]),
        device_command(3, add_tags=AddTags(tags=[1, 5])),
        app_changed("set", "ack_info on"),
        send(1000),
        started(1000, 1, [3, 4]),
        outcomes(1, app_outcomes(1000, [3, 4], Outcome.OUTCOME_KIND_SENT, T0 + 10)),
        outcomes(
            1,
            app_outcomes(1000, [3], Outcome.OUTCOME_KIND_RECEIVED, T0 + 20),
            app_outcomes(1000, [4], Outcome.OUTCOME_KIND_FAILED, T0 + 30, "not connected"),
        ),
        session(3, Session.SESSION_EVENT_KIND_OPENED, T0 + 1),
        session(3, Session.SESSION_EVENT_KIND_CLOSED, T0 + 50, reason="idle"),
        connection_counts(T0, {APP: 12, "2000000000": 3}),
        cancel(1000, T0 + 60),
        cancelled(1000, 1, T0 + 61),
        finished(1000, 1, T0 + 62),
        task("k1", T0, scheduled=TaskScheduled(pushes=[], due_ms=T0 + 100, created_ms=T0)),
        task("k1", T0 + 100, fell_due=TaskFellDue()),
        task("k1", T0 + 101, sent=TaskSent()),
        task("k2", T0, cancelled=TaskCancelled()),
        refused("/v2/push", 4_000_000_000_000),  # ClickHouse drops what is older than 30 days
    ]


async def test_every_fact_becomes_rows(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    await ingest(log, clickhouse, tmp_path, history())

    assert await counts(clickhouse) == {
        "actions": 1,
        "app_changes": 1,
        "attribute_changes": 0,
        "connection_counts": 2,
        "deliveries": 4,
        "device_commands": 1,
        "devices": 1,
        "push_cancels": 1,
        "push_partitions": 3,
        "push_values": 1,
        "pushes": 1,
        "refused_requests": 1,
        "registrations": 1,
        "sessions": 2,
        "task_pushes": 0,
        "tasks": 4,
    }
    push = await clickhouse.rows(
        "SELECT msgid, last_msgid, appkey, platform, kind, audience, request_json, toUnixTimestamp64Milli(time),"
        " period_s, qps, task_key, writer, interface, address, request_id, _topic, _partition, _offset, _index"
        " FROM pushes"
    )
    assert [tuple(row) for row in push] == [
        (
            *(1000, 1000, APP, "android", "broadcast", "everyone", '{"appkey":1}', T0, 3600, 100, ""),
            *("edge", "v2", "10.0.0.1", "req-1", "push-commands", 0, 0, 0),
        )
    ]
    partitions = await clickhouse.rows(
        "SELECT event, partition, count, toUnixTimestamp64Milli(time) FROM push_partitions ORDER BY time"
    )
    assert [tuple(row) for row in partitions] == [
        ("started", 1, 2, T0),
        ("cancelled", 1, 0, T0 + 61),
        ("finished", 1, 0, T0 + 62),
    ]
    deliveries = await clickhouse.rows(
        "SELECT msgid, number, kind, toUnixTimestamp64Milli(time), reason, region, carrier, _offset, _index"
        " FROM deliveries ORDER BY time, number"
    )
    assert [tuple(row) for row in deliveries] == [
        (1000, 3, "sent", T0 + 10, "", "北京市", "cm", 0, 0),
        (1000, 4, "sent", T0 + 10, "", "", "", 0, 1),
        (1000, 3, "received", T0 + 20, "", "北京市", "cm", 1, 0),
        (1000, 4, "failed", T0 + 30, "not connected", "", "", 1, 1),
    ]
    devices = await clickhouse.rows("SELECT token, has_alias, alias, tags, stags, model, region, brand FROM devices")
    assert [tuple(row) for row in devices] == [("token-1-3", True, "alice", [1, 5], ["news"], "Mi 9", "北京市", "")]
    sessions = await clickhouse.rows(
        "SELECT kind, number, partition, connection, reason, region FROM sessions ORDER BY time"
    )
    assert [tuple(row) for row in sessions] == [
        ("opened", 3, 1, 7, "", "北京市"),
        ("closed", 3, 1, 7, "idle", "北京市"),
    ]
    assert await value(clickhouse, f"SELECT connections FROM connection_counts WHERE appkey = '{APP}'") == 12
    tasks = await clickhouse.rows(
        "SELECT task_key, event, toUnixTimestamp64Milli(due) FROM tasks ORDER BY task_key, time"
    )
    assert [tuple(row) for row in tasks] == [
        ("k1", "scheduled", T0 + 100),
        ("k1", "fell due", 0),
        ("k1", "sent", 0),
        ("k2", "cancelled", 0),
    ]


async def test_the_audience_is_stored_as_it_was_fixed(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    numbers = [0, 7, 70_000, 4_000_000_000]
    await ingest(log, clickhouse, tmp_path, [started(5, 1, numbers)])

    stored = await value(clickhouse, "SELECT base64Encode(audience) FROM push_partitions")
    assert list(BitMap.deserialize(b64decode(stored))) == numbers


async def test_repeated_records_double_nothing(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    await ingest(log, clickhouse, tmp_path, history())
    once, contents = await counts(clickhouse), await digest(clickhouse)

    await ingest(log, clickhouse, tmp_path, history())

    assert await counts(clickhouse) == once
    assert await digest(clickhouse) == contents


async def test_outcomes_have_the_attributes_of_their_time(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    await ingest(
        log,
        clickhouse,
        tmp_path,
        [device(3, attributes=BEIJING), outcomes(1, app_outcomes(1, [3], Outcome.OUTCOME_KIND_SENT))],
    )
    await ingest(log, clickhouse, tmp_path, [outcomes(1, app_outcomes(2, [3], Outcome.OUTCOME_KIND_SENT), seed="2")])
    await ingest(
        log,
        clickhouse,
        tmp_path,
        [
            device(3, time_ms=T0 + 5, attributes=SHANGHAI),
            outcomes(1, app_outcomes(3, [3], Outcome.OUTCOME_KIND_SENT), seed="3"),
        ],
    )

    rows = await clickhouse.rows("SELECT msgid, region FROM deliveries ORDER BY msgid")
    assert [tuple(row) for row in rows] == [(1, "北京市"), (2, "北京市"), (3, "上海市")]


async def test_undecodable_records_become_dead_letters(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    uneven = app_outcomes(1, [1, 2], Outcome.OUTCOME_KIND_SENT)
    uneven.kinds = b"\x01"
    wrong_reason = app_outcomes(1, [1], Outcome.OUTCOME_KIND_SENT)
    wrong_reason.reason_indexes = b"\x05"
    new_records = [
        NewRecord(PUSH_COMMANDS.name, 0, b"", b"\xff\xff"),
        outcomes(1, app_outcomes(1, [9], Outcome.OUTCOME_KIND_SENT), uneven),
        outcomes(1, wrong_reason),
        NewRecord(DELIVERIES.name, 1, b"", b""),
        send(1000),
    ]
    await ingest(log, clickhouse, tmp_path, new_records)

    assert len((tmp_path / "dead-letters.jsonl").read_text().splitlines()) == 3
    assert await value(clickhouse, "SELECT count() FROM deliveries") == 0
    assert await value(clickhouse, "SELECT count() FROM pushes") == 1


@pytest.mark.parametrize("time_ms", [-(2**62), -1, 0, 2**62])
async def test_out_of_range_times_do_not_stop_the_ingestion(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, time_ms: int
) -> None:
    new_records = [
        outcomes(1, app_outcomes(1, [9], Outcome.OUTCOME_KIND_SENT, time_ms)),
        send(1000, time_ms=time_ms),
        session(1, Session.SESSION_EVENT_KIND_OPENED, time_ms),
    ]
    await ingest(log, clickhouse, tmp_path, new_records)

    assert await value(clickhouse, "SELECT count() FROM deliveries") == 1
    assert await value(clickhouse, "SELECT count() FROM pushes") == 1


async def test_a_store_that_was_emptied_is_filled_from_the_beginning(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    await ingest(log, clickhouse, tmp_path, history())
    contents = await digest(clickhouse)
    await clickhouse.drop()
    await migrate(clickhouse)

    await ingest(log, clickhouse, tmp_path, [])

    assert await digest(clickhouse) == contents


async def test_lost_offsets_double_nothing(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    await ingest(log, clickhouse, tmp_path, history())
    contents = await digest(clickhouse)

    await ingest(log, clickhouse, tmp_path / "other", [])

    assert await digest(clickhouse) == contents
    assert (await counts(clickhouse))["deliveries"] == 4


async def test_token_lists_have_their_message_ids(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    audience = Audience(
        devices=Devices(
            partitions=np.array([0, 1], "<u2").tobytes(),
            numbers=np.array([4, 5], "<u4").tobytes(),
            id_offsets=np.array([0, 2], "<u4").tobytes(),
        )
    )
    await ingest(log, clickhouse, tmp_path, [send(5000, audience=audience, id_count=3)])

    rows = await clickhouse.rows("SELECT msgid, last_msgid, audience FROM pushes")
    assert [tuple(row) for row in rows] == [(5000, 5002, "2 devices")]


async def test_catch_up_does_not_wait_for_the_flush(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    never = IngestionLimits(flush_s=3600, catch_up_s=20, stop_s=1)
    async with running_ingestion(new_ingestion(log, clickhouse, tmp_path, never)) as ingestion:
        await log.append([send(1000)])
        assert await ingestion.catch_up() == 0
        assert await value(clickhouse, "SELECT count() FROM pushes") == 1


async def test_a_store_without_ingesters_is_filled_from_the_log_again(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """So a migration can fill a column that the stored rows lack."""
    devices = Devices(
        partitions=np.array([1, 2], "<u2").tobytes(),
        numbers=np.array([4, 5], "<u4").tobytes(),
        id_offsets=np.array([0, 1], "<u4").tobytes(),
    )
    await ingest(log, clickhouse, tmp_path, [send(1000, audience=Audience(devices=devices), id_count=2)])
    for table in ("pushes", "ingesters"):
        await clickhouse.command(f"TRUNCATE TABLE {table}")
    await ingest(log, clickhouse, tmp_path, [])
    targets = await clickhouse.rows("SELECT target_partitions, target_numbers, target_offsets FROM pushes FINAL")
    assert [[list(column) for column in row] for row in targets] == [[[1, 2], [4, 5], [0, 1]]]


async def test_facts_of_a_former_owner_are_not_ingested(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """Neither in the batch of the announcement of a higher epoch, nor after a restart."""

    def of_epoch(key: str, epoch: int, **fact: Any) -> NewRecord:
        envelope = TaskFact(meta=meta(f"{key} {epoch}", T0, "scheduling"), task_key=key, **fact)
        envelope.meta.epoch = epoch
        return new_record(TASKS.name, 2, envelope)

    sent = {"sent": TaskSent()}
    facts = [of_epoch("k1", 1, **sent), of_epoch("", 2), of_epoch("k2", 1, **sent), of_epoch("k3", 2, **sent)]
    await ingest(log, clickhouse, tmp_path, facts)
    await ingest(log, clickhouse, tmp_path, [of_epoch("k4", 1, **sent), of_epoch("k5", 2, **sent)])
    assert await value(clickhouse, "SELECT arrayStringConcat(arraySort(groupArray(task_key))) FROM tasks") == "k1k3k5"
