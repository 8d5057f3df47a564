"""Kept answers: valid until the ingestion changes their rows; a request that needs all records gets a new one."""

from pathlib import Path

import pyarrow as pa

from analytics.questions import KEPT_MS, MAX_KEPT, AnswerCache
from analytics.store.changes import StoreChanges
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditPushRequest, AuditPushResponse, PushSpeedRequest
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from tests.analytics.records import T0, app_outcomes, outcomes, send
from tests.analytics.service import running_service

LONG_MS = 600_000


async def test_an_answer_is_kept_until_the_rows_of_its_app_change_or_it_is_old() -> None:
    changes, clock, made = StoreChanges(apart=("actions",)), ManualClock(0), 0
    kept = AnswerCache(changes, clock)

    async def make() -> AuditPushResponse:
        nonlocal made
        made += 1
        return AuditPushResponse(appkey="1", msgid=made)

    async def ask(msgid: int = 1) -> int:
        answer = await kept.answer(AuditPushRequest(msgid=msgid), make, lambda found: [found.appkey])
        answer.records_behind += 1
        assert answer.records_behind == 1
        return answer.msgid

    def inserted(table: str, appkey: str) -> None:
        changes.note({table: pa.table({"appkey": [appkey, appkey]})})

    assert [await ask(), await ask(), await ask(2)] == [1, 1, 2]
    inserted("pushes", "2")
    inserted("actions", "1")
    inserted("actions", "")
    assert not changes.is_same_since(1, ["actions"])
    clock.move(KEPT_MS / 1000 - 0.001)
    assert await ask() == 1
    inserted("pushes", "1")
    assert [await ask(), await ask()] == [3, 3]
    inserted("app_changes", "")
    assert await ask() == 4
    changes.note({"tasks": pa.table({"task_key": ["t"]})})
    assert await ask() == 5
    changes.note_app("1")
    assert await ask() == 6
    clock.move(KEPT_MS / 1000)
    assert await ask() == 7
    for msgid in range(2, MAX_KEPT + 2):
        await ask(msgid)
    assert await ask() == 8 + MAX_KEPT


async def test_a_change_while_an_answer_is_made_counts_as_one_after_it() -> None:
    changes = StoreChanges()
    kept = AnswerCache(changes, ManualClock(0))
    made = 0

    async def make() -> AuditPushResponse:
        nonlocal made
        made += 1
        changes.note_app("1")
        return AuditPushResponse(appkey="1", msgid=made)

    for expected in (1, 2):
        answer = await kept.answer(AuditPushRequest(msgid=1), make, lambda found: [found.appkey])
        assert answer.msgid == expected


async def test_the_service_keeps_answers_to_questions_that_do_not_need_the_newest_records(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:

        async def sent(max_age_ms: int = 0) -> int:
            speed = await analytics.PushSpeed(PushSpeedRequest(msgid=1000, max_age_ms=max_age_ms))
            return sum(line.devices for line in speed.lines)

        of_one = app_outcomes(1000, [1], OutcomeKind.OUTCOME_KIND_SENT, T0 + 1)
        await log.append([send(1000), outcomes(1, of_one)])
        assert await sent(max_age_ms=LONG_MS) == 1
        await clickhouse.command("TRUNCATE TABLE deliveries")
        assert (await sent(max_age_ms=LONG_MS), await sent()) == (1, 0)
        of_other = app_outcomes(1000, [2, 3], OutcomeKind.OUTCOME_KIND_SENT, T0 + 1)
        await log.append([outcomes(1, of_other, seed="other")])
        assert (await sent(), await sent(max_age_ms=LONG_MS)) == (2, 2)
