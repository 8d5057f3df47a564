"""The table of what accounts and operators did: records of several topics that the console or a command caused."""

from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

from analytics.audit.details import command_name, reasons, requested_details, stored_details, texts
from analytics.audit.details_text import details_text
from analytics.ingestion.tables.row_source import EVENT_ID, ORIGIN, POSITION, RowSource
from analytics.store.columns import BYTES, TEXT, TIME, Column, Row, Table
from protos.accounts.v1.accounts_pb2 import AccountFact, LogInFact
from protos.accounts.v1.drafts_pb2 import DraftFact
from protos.analytics.v1.details_pb2 import Detail
from protos.push.v1.push_pb2 import PushCommand
from protos.registry.v1.apps_pb2 import AppFact
from protos.registry.v1.devices_pb2 import DeviceCommand
from protos.registry.v1.erasures_pb2 import ErasureFact
from protos.scheduling.v1.scheduling_pb2 import TaskFact
from services.domain.push_summary import audience_summary
from services.log.port import Record

INTERFACES = ("console", "cli")


class DoneAction(NamedTuple):
    """One action; what it does not concern is empty. A draft's id is the key of the task that sends it."""

    action: str
    details: Sequence[Detail] = ()
    team_id: str = ""
    appkey: str = ""
    task_key: str = ""
    actor: str = ""


ACTIONS_TABLE = Table[RowSource[DoneAction]](
    "actions",
    Column("time", TIME, lambda row: row.meta.time_ms),
    Column("actor", TEXT, lambda row: row.part.actor or row.meta.origin.actor),
    Column("action", TEXT, lambda row: row.part.action),
    Column("team_id", TEXT, lambda row: row.part.team_id),
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("task_key", TEXT, lambda row: row.part.task_key),
    Column("detail", TEXT, lambda row: details_text(row.part.details)),
    Column("details", BYTES, lambda row: stored_details(row.part.details)),
    *ORIGIN,
    EVENT_ID,
    *POSITION,
)


def action_rows(record: Record, message: Any) -> list[Row]:
    """Return the rows of a record; none if neither the console nor a command caused it, or it is no action."""
    if message.meta.origin.interface not in INTERFACES:
        return []
    return [
        ACTIONS_TABLE.row(RowSource(record, message.meta, action, index))
        for index, action in enumerate(_actions(message))
    ]


def _actions(message: object) -> Sequence[DoneAction]:
    match message:
        case AppFact(changed=changed) if message.HasField("changed"):
            subject = "app " if changed.appkey or changed.team_id else "app all "
            details = texts(*changed.settings)
            return [DoneAction(subject + changed.action, details, changed.team_id, changed.appkey)]
        case DeviceCommand():
            details = [*texts(message.token), *requested_details(message)]
            return [DoneAction(f"device {command_name(message)}", details, appkey=message.appkey)]
        case PushCommand():
            return _of_push(message)
        case TaskFact():
            return _of_task(message)
        case AccountFact():
            return _of_account(message)
        case LogInFact():
            return _of_log_in(message)
        case DraftFact():
            return _of_draft(message)
        case ErasureFact(erased=erased) if message.HasField("erased"):
            return [DoneAction("data erased", [Detail(devices=len(erased.devices))], appkey=erased.appkey)]
        case _:
            return []


def _of_push(message: PushCommand) -> Sequence[DoneAction]:
    match message.WhichOneof("command"):
        case "send":
            send = message.send
            audience = Detail(audience=audience_summary(send.audience))
            details = [Detail(push=send.msgid), Detail(push_kind=send.kind), audience]
            return [DoneAction("push sent", details, appkey=send.appkey, task_key=send.task_key)]
        case "cancel":
            cancel = message.cancel
            return [DoneAction("push cancelled", [Detail(push=cancel.msgid)], appkey=cancel.appkey)]
        case None:
            return []
        case never:
            assert_never(never)


def _of_task(message: TaskFact) -> Sequence[DoneAction]:
    """Return the scheduling of a task for each of its apps, or its cancellation; no account causes its other facts."""
    key, details = message.task_key, [Detail(task=message.task_key)]
    if message.HasField("scheduled") and not message.scheduled.at_once:
        appkeys = dict.fromkeys(send.appkey for send in message.scheduled.pushes)
        return [DoneAction("task scheduled", details, appkey=appkey, task_key=key) for appkey in appkeys]
    if message.HasField("cancelled"):
        return [DoneAction("task cancelled", details, task_key=key)]
    return []


def _of_account(message: AccountFact) -> Sequence[DoneAction]:
    match message.WhichOneof("fact"):
        case "user":
            details = texts(message.user.user.login, *message.user.settings)
            return [DoneAction(f"user {message.user.action}", details)]
        case "team":
            team = message.team.team
            details = texts(team.name, *message.team.settings)
            return [DoneAction(f"team {message.team.action}", details, team.team_id)]
        case "app":
            given = message.app
            action = "app given to team" if given.team_id else "app taken from team"
            return [DoneAction(action, team_id=given.team_id, appkey=given.appkey)]
        case "link":
            details = [*texts(f"user/{message.link.user_id}"), Detail(link_purpose=message.link.purpose)]
            return [DoneAction("user link made", details)]
        case "token":
            token = message.token.token
            details = [*texts(token.name), Detail(role=token.role), *texts(f"token/{token.token_id}")]
            return [DoneAction("token created", details, token.team_id)]
        case "token_revoked":
            revoked = message.token_revoked
            return [DoneAction("token revoked", texts(f"token/{revoked.token_id}"), revoked.team_id)]
        case "session_ended":
            return [DoneAction("log-in ended")]
        case "change_proposed":
            change = message.change_proposed.change
            subject = "team" if change.team_id else "user"
            details = texts(*change.settings)
            return [DoneAction(f"{subject} change proposed", details, change.team_id, change.erase.appkey)]
        case "change_decided":
            decided = message.change_decided
            action = "change confirmed" if decided.confirmed else "change rejected"
            subject = "team" if decided.team_id else "user"
            return [DoneAction(f"{subject} {action}", texts(*decided.settings), decided.team_id)]
        case "erasure_sent" | None:
            return []
        case never:
            assert_never(never)


def _of_log_in(message: LogInFact) -> Sequence[DoneAction]:
    match message.WhichOneof("fact"):
        case "logged_in":
            logged_in = message.logged_in
            details = [Detail(log_in_method=logged_in.method)]
            return [DoneAction("log-in", details, actor=f"user/{logged_in.user_id}")]
        case "failed":
            user_id = message.failed.user_id
            actor = f"user/{user_id}" if user_id else ""
            return [DoneAction("log-in failed", reasons(message.failed.reason), actor=actor)]
        case "token_used":
            return [DoneAction("token used", texts(f"token/{message.token_used.token_id}"))]
        case "data_read":
            read = message.data_read
            if read.HasField("exported_devices"):
                return [DoneAction("data exported", [Detail(devices=read.exported_devices)], appkey=read.appkey)]
            push = [Detail(push=read.msgid)] if read.msgid else []
            return [DoneAction("data read", [*texts(read.name), *push, *texts(*read.tokens)], appkey=read.appkey)]
        case None:
            return []
        case never:
            assert_never(never)


def _of_draft(message: DraftFact) -> Sequence[DoneAction]:
    key = message.draft_id
    details = [Detail(draft=key)]
    match message.WhichOneof("fact"):
        case "submitted":
            draft = message.submitted.draft
            details.append(Detail(devices=draft.estimated_devices))
            action = "draft changed" if draft.version > 1 else "draft submitted"
            return [DoneAction(action, details, draft.team_id, task_key=key)]
        case "rejected":
            return [DoneAction("draft rejected", [*details, *texts(message.rejected.reason)], task_key=key)]
        case "approved":
            return [DoneAction("draft approved", details, task_key=key)]
        case "withdrawn":
            return [DoneAction("draft withdrawn", details, task_key=key)]
        case "expired" | "sent" | "admitted" | None:
            return []
        case never:
            assert_never(never)
