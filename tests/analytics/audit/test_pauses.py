"""Audits of a push and of an app name the pauses that made the push wait, with actor and reason."""

from pathlib import Path

from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditAppRequest, AuditPushRequest
from protos.push.v1.push_pb2 import SendPush
from protos.scheduling.v1.scheduling_pb2 import TaskExpired, TaskFact, TaskFailed, TaskPaused, TaskScheduled
from services.domain.topics import TASKS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from tests.analytics.audit.test_changes import lines_of
from tests.analytics.records import APP, T0, app_changed, finished, meta, new_record, send, started
from tests.analytics.service import running_service

ALICE = "through cli from alice@ops, request req-4"


def task(kind: str, time_ms: int, key: str = "t", **fact: object) -> NewRecord:
    return new_record(TASKS.name, 1, TaskFact(meta=meta(f"task {kind}", time_ms, "scheduling"), task_key=key, **fact))  # type: ignore[arg-type]


async def test_the_timeline_of_a_push_has_the_pauses_while_it_was_sent(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    await log.append(
        [
            app_changed("paused", "long before", time_ms=T0 - 9000),
            app_changed("resumed", time_ms=T0 - 8000),
            app_changed("paused", "all before", time_ms=T0 - 7000, appkey=""),
            app_changed("paused", "another app", time_ms=T0 + 1, appkey="1000000009"),
            send(7, time_ms=T0),
            started(7, 1, [1, 2], time_ms=T0 + 5),
            app_changed("paused", "complaints", time_ms=T0 + 10),
            app_changed("resumed", time_ms=T0 + 20, appkey=""),
            app_changed("resumed", "mended", time_ms=T0 + 30),
            finished(7, 1, T0 + 40),
            app_changed("paused", "later", time_ms=T0 + 50),
        ]
    )
    async with running_service(log, clickhouse, tmp_path) as analytics:
        push = await analytics.AuditPush(AuditPushRequest(msgid=7))
        app = await analytics.AuditApp(AuditAppRequest(appkey=APP, from_ms=T0 - 9000, to_ms=T0 + 100, limit=100))
    assert [line for line in lines_of(push.timeline) if line[0] not in ("command", "audience", "finished")] == [
        ("all apps paused", -7000, f"all before, {ALICE}"),
        ("app paused", 10, f"complaints, {ALICE}"),
        ("all apps resumed", 20, ALICE),
        ("app resumed", 30, f"mended, {ALICE}"),
    ]
    assert [line[:2] for line in lines_of(app.timeline) if line[0] != "push 7"] == [
        ("app paused", -9000),
        ("app resumed", -8000),
        ("all apps paused", -7000),
        ("push", 0),
        ("app paused", 10),
        ("all apps resumed", 20),
        ("app resumed", 30),
        ("app paused", 50),
    ]


async def test_the_timeline_of_a_timed_push_that_expired_during_the_pause_or_could_not_be_sent(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    of_other = SendPush(msgid=10, appkey=APP, task_key="u")
    scheduled = TaskScheduled(pushes=[SendPush(msgid=9, appkey=APP, task_key="t")], due_ms=T0 + 100, created_ms=T0)
    await log.append(
        [
            task("scheduled", T0, scheduled=scheduled),
            app_changed("paused", "between", time_ms=T0 + 10),
            app_changed("resumed", time_ms=T0 + 20),
            app_changed("paused", "night", time_ms=T0 + 50),
            task("paused", T0 + 100, paused=TaskPaused()),
            task("expired", T0 + 200, expired=TaskExpired()),
            app_changed("resumed", time_ms=T0 + 300),
            task("other", T0, "u", scheduled=TaskScheduled(pushes=[of_other], due_ms=T0 + 1, created_ms=T0)),
            task("failed", T0 + 500, "u", failed=TaskFailed(reason="the request is too large")),
        ]
    )
    async with running_service(log, clickhouse, tmp_path) as analytics:
        push = await analytics.AuditPush(AuditPushRequest(msgid=9))
        failed = await analytics.AuditPush(AuditPushRequest(msgid=10))
    event, after_ms, detail = lines_of(failed.timeline)[-1]
    assert (event, after_ms) == ("task failed", 500)
    assert "task u, the request is too large" in detail
    assert [line[:2] for line in lines_of(push.timeline)] == [
        ("task scheduled", 0),
        ("app paused", 50),
        ("task paused", 100),
        ("task expired", 200),
    ]
