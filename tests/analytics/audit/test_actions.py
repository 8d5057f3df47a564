"""The audit of what accounts and operators did: filtered, in pages, and without the requests of app servers."""

from pathlib import Path
from typing import Any

import pytest

from analytics.audit.details_text import details_text
from analytics.store.clickhouse import ClickHouse
from protos.accounts.v1.accounts_pb2 import (
    AccountFact,
    AppGiven,
    DataRead,
    LoggedIn,
    LogInFact,
    LogInFailed,
    LogInMethod,
    Team,
    TeamChanged,
    TokenRevoked,
    User,
    UserChanged,
)
from protos.accounts.v1.drafts_pb2 import Draft, DraftApproved, DraftFact, DraftSubmitted
from protos.analytics.v1.analytics_pb2 import ActionScope, AuditActionsRequest, AuditAppRequest
from protos.push.v1.push_pb2 import Audience, CancelPush, Everyone, Filter, Kind, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import AppChanged, AppFact
from protos.registry.v1.devices_pb2 import RevokeKey
from protos.registry.v1.erasures_pb2 import ErasedDevice, ErasureFact, PersonErased
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import TaskCancelled, TaskFact, TaskScheduled
from services.domain.topics import ACCOUNTS, APPS, DRAFTS, ERASURES, LOG_INS, PUSH_COMMANDS, TASKS
from services.errors import InputError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from tests.analytics.audit.timelines import kinds
from tests.analytics.records import APP, T0, app_changed, cancel, device_command, meta, new_record, send
from tests.analytics.service import running_service

ALICE = "user/a1"
OTHER = "2345678901"


def acted(second: int, topic: str, envelope: type, actor: str = ALICE, **fact: Any) -> NewRecord:
    """Return a record that this account caused in the console, in this second."""
    origin = Origin(interface="console", address="192.0.2.9", request_id=f"r-{second}", actor=actor)
    message = envelope(meta=meta(f"{topic} {second}", T0 + 1000 * second, "accounts", origin), **fact)
    return new_record(topic, 0, message)


def push(appkey: str, task_key: str = "") -> SendPush:
    audience = Audience(everyone=Everyone())
    return SendPush(msgid=5, appkey=appkey, kind=Kind.KIND_BROADCAST, audience=audience, task_key=task_key)


RECORDS = [
    send(1),
    cancel(1),
    app_changed("paused", "reason storm"),
    acted(1, LOG_INS.name, LogInFact, "", failed=LogInFailed(user_id="a1", reason="wrong password")),
    acted(2, LOG_INS.name, LogInFact, "", logged_in=LoggedIn(user_id="a1", method=LogInMethod.LOG_IN_METHOD_PASSWORD)),
    acted(
        3, ACCOUNTS.name, AccountFact, user=UserChanged(user=User(login="bob"), action="set", settings=["disabled on"])
    ),
    acted(4, ACCOUNTS.name, AccountFact, team=TeamChanged(team=Team(team_id="t1", name="News"), action="created")),
    acted(5, ACCOUNTS.name, AccountFact, app=AppGiven(appkey=APP, team_id="t1")),
    acted(6, ACCOUNTS.name, AccountFact, token_revoked=TokenRevoked(token_id="k1", team_id="t1")),
    acted(7, LOG_INS.name, LogInFact, data_read=DataRead(appkey=APP, name="carol", msgid=1)),
    acted(8, PUSH_COMMANDS.name, PushCommand, send=push(OTHER)),
    acted(9, PUSH_COMMANDS.name, PushCommand, cancel=CancelPush(msgid=5, appkey=OTHER)),
    acted(10, TASKS.name, TaskFact, task_key="k", scheduled=TaskScheduled(pushes=[push(APP, "k")], created_ms=T0)),
    acted(11, TASKS.name, TaskFact, "user/b2", task_key="k", cancelled=TaskCancelled()),
    acted(12, DRAFTS.name, DraftFact, draft_id="d", submitted=DraftSubmitted(draft=Draft(team_id="t2"))),
    acted(13, DRAFTS.name, DraftFact, "user/b2", draft_id="d", approved=DraftApproved()),
]
DONE = [
    ("app paused", "", "reason storm"),
    ("log-in failed", ALICE, "wrong password"),
    ("log-in", ALICE, "password"),
    ("user set", ALICE, "bob, disabled on"),
    ("team created", ALICE, "News"),
    ("app given to team", ALICE, ""),
    ("token revoked", ALICE, "token/k1"),
    ("data read", ALICE, "carol, push 1"),
    ("push sent", ALICE, "push 5, broadcast, everyone"),
    ("push cancelled", ALICE, "push 5"),
    ("task scheduled", ALICE, "task k"),
    ("task cancelled", "user/b2", "task k"),
    ("draft submitted", ALICE, "draft d, 0 devices"),
    ("draft approved", "user/b2", "draft d"),
]
KINDS = [
    ["text"],
    ["reason"],
    ["log_in_method"],
    ["text", "text"],
    ["text"],
    [],
    ["text"],
    ["text", "push"],
    ["push", "push_kind", "audience"],
    ["push"],
    ["task"],
    ["task"],
    ["draft", "devices"],
    ["draft"],
]


async def test_actions_are_filtered_and_paged(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async def found(**asked: Any) -> list[tuple[str, str, str]]:
        entries, pos = [], ""
        while True:
            request = AuditActionsRequest(**{"from_ms": T0, "to_ms": T0 + 60_000, "limit": 3, "pos": pos, **asked})
            answer = await analytics.AuditActions(request)
            entries += [(entry.action, entry.actor, entry.detail) for entry in answer.actions]
            pos = answer.pos
            if not pos:
                return entries[::-1]

    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(RECORDS)
        assert await found() == DONE
        everything = await analytics.AuditActions(AuditActionsRequest(from_ms=T0, to_ms=T0 + 60_000, limit=100))
        assert kinds(reversed(everything.actions)) == KINDS
        named = {entry.action: (entry.team_id, entry.appkey) for entry in everything.actions}
        assert (named["task cancelled"], named["draft approved"]) == (("", APP), ("t2", ""))
        assert all(entry.detail == details_text(entry.details) for entry in everything.actions)
        assert await found(actor="user/b2") == [DONE[11], DONE[13]]
        assert await found(subject="log-in") == DONE[1:3]
        assert await found(from_ms=T0 + 4000, to_ms=T0 + 6000) == DONE[4:6]
        assert await found(scope=ActionScope(team_ids=["t1"])) == DONE[4:7]
        assert await found(scope=ActionScope(appkeys=[APP])) == [DONE[0], DONE[5], DONE[7], *DONE[10:12]]
        assert await found(scope=ActionScope(team_ids=["t2"])) == DONE[12:]
        assert await found(scope=ActionScope()) == []
        assert await found(containing=["carol", "bob"]) == [DONE[3], DONE[7]]
        first = (await analytics.AuditActions(AuditActionsRequest(from_ms=T0, to_ms=T0 + 60_000, limit=1))).actions[0]
        assert (first.interface, first.address, first.request_id) == ("console", "192.0.2.9", "r-13")
        await log.append(
            [device_command(3, time_ms=T0 + 20_000, origin=Origin(interface="cli"), revoke_key=RevokeKey())]
        )
        assert await found(subject="device") == [("device revoke key", "", "token-1-3, its key")]
        exported = DataRead(appkey=APP, exported_devices=2)
        await log.append([acted(21, LOG_INS.name, LogInFact, data_read=exported)])
        assert (await found(subject="data"))[-1] == ("data exported", ALICE, "2 devices")
        erased = PersonErased(appkey=APP, devices=[ErasedDevice(), ErasedDevice()])
        await log.append([acted(23, ERASURES.name, ErasureFact, erased=erased)])
        assert (await found(subject="data"))[-1] == ("data erased", ALICE, "2 devices")
        changed = AppChanged(team_id="t1", action="webhook made", settings=["webhook w1"])
        await log.append([acted(22, APPS.name, AppFact, changed=changed)])
        made = ("app webhook made", ALICE, "webhook w1")
        assert (await found(scope=ActionScope(team_ids=["t1"])))[-1] == made
        assert made not in await found(scope=ActionScope(appkeys=[APP]))
        of_app = await analytics.AuditApp(AuditAppRequest(appkey=APP, from_ms=T0, to_ms=T0 + 60_000, limit=100))
        assert "storm" in str(of_app)
        assert "w1" not in str(of_app)
        for wrong in ({"limit": 0}, {"pos": "x"}, {"pos": "1/a/99999999999"}, {"from_ms": T0 + 60_000}):
            with pytest.raises(InputError):
                await found(**wrong)


async def test_a_push_of_a_task_that_was_sent_twice_was_sent_the_first_time(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """Scheduling sends a timed push again where it does not know that it did; its audience may be another by then."""
    again = push(APP, "k")
    again.audience.CopyFrom(Audience(filter=Filter()))
    sends = [(1, push(APP, "k")), (2, again), (3, push(OTHER, "k")), (4, push(OTHER)), (5, push(OTHER))]
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append([acted(second, PUSH_COMMANDS.name, PushCommand, send=sent) for second, sent in sends])
        answer = await analytics.AuditActions(AuditActionsRequest(from_ms=T0, to_ms=T0 + 60_000, limit=10))
    assert [(action.request_id, action.appkey) for action in answer.actions][::-1] == [
        ("r-1", APP),
        ("r-3", OTHER),
        ("r-4", OTHER),
        ("r-5", OTHER),
    ]


async def test_a_cancelled_task_of_two_apps_names_only_one_that_the_scope_has(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    scheduled = TaskScheduled(pushes=[push(APP, "k"), push(OTHER, "k")], created_ms=T0)
    records = [
        acted(1, TASKS.name, TaskFact, task_key="k", scheduled=scheduled),
        acted(2, TASKS.name, TaskFact, task_key="k", cancelled=TaskCancelled()),
    ]
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(records)
        for appkey in (APP, OTHER):
            scope = ActionScope(appkeys=[appkey])
            request = AuditActionsRequest(from_ms=T0, to_ms=T0 + 60_000, limit=10, scope=scope)
            answer = await analytics.AuditActions(request)
            found = [(action.action, action.appkey) for action in answer.actions]
            assert found == [("task cancelled", appkey), ("task scheduled", appkey)]
