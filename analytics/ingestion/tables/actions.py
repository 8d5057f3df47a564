"""The table of what accounts and operators did: records of several topics that the console or a command caused."""

from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

from analytics.audit.audience_text import audience_text
from analytics.audit.command_text import command_detail, command_name
from analytics.audit.timeline import comma_joined
from analytics.ingestion.tables.row_source import EVENT_ID, ORIGIN, POSITION, RowSource
from analytics.store.columns import TEXT, TIME, Column, Row, Table
from analytics.store.enum_names import enum_name
from protos.accounts.v1.accounts_pb2 import AccountFact, LinkPurpose, LogInFact, LogInMethod, MemberRole
from protos.accounts.v1.drafts_pb2 import DraftFact
from protos.push.v1.push_pb2 import Kind, PushCommand
from protos.registry.v1.apps_pb2 import AppFact
from protos.registry.v1.devices_pb2 import DeviceCommand
from protos.scheduling.v1.scheduling_pb2 import TaskFact
from services.runtime.log.port import Record

INTERFACES = ("console", "cli")


class DoneAction(NamedTuple):
    """One action; what it does not concern is empty. A draft's id is the key of the task that sends it."""

    action: str
    detail: str = ""
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
    Column("detail", TEXT, lambda row: row.part.detail),
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
            subject = "app " if changed.appkey else "app all "
            return [DoneAction(subject + changed.action, ", ".join(changed.settings), appkey=changed.appkey)]
        case DeviceCommand():
            detail = comma_joined(message.token, command_detail(message))
            return [DoneAction(f"device {command_name(message)}", detail, appkey=message.appkey)]
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
        case _:
            return []


def _of_push(message: PushCommand) -> Sequence[DoneAction]:
    match message.WhichOneof("command"):
        case "send":
            send = message.send
            kind = enum_name(Kind.DESCRIPTOR, send.kind, "KIND_")
            detail = comma_joined(f"push {send.msgid}", kind, audience_text(send.audience))
            return [DoneAction("push sent", detail, appkey=send.appkey, task_key=send.task_key)]
        case "cancel":
            return [DoneAction("push cancelled", f"push {message.cancel.msgid}", appkey=message.cancel.appkey)]
        case None:
            return []
        case never:
            assert_never(never)


def _of_task(message: TaskFact) -> Sequence[DoneAction]:
    """Return the scheduling of a task for each of its apps, or its cancellation; the rest is not done by anybody."""
    key = message.task_key
    if message.HasField("scheduled") and not message.scheduled.at_once:
        appkeys = dict.fromkeys(send.appkey for send in message.scheduled.pushes)
        return [DoneAction("task scheduled", f"task {key}", appkey=appkey, task_key=key) for appkey in appkeys]
    if message.HasField("cancelled"):
        return [DoneAction("task cancelled", f"task {key}", task_key=key)]
    return []


def _of_account(message: AccountFact) -> Sequence[DoneAction]:
    match message.WhichOneof("fact"):
        case "user":
            detail = comma_joined(message.user.user.login, *message.user.settings)
            return [DoneAction(f"user {message.user.action}", detail)]
        case "team":
            team = message.team.team
            return [
                DoneAction(f"team {message.team.action}", comma_joined(team.name, *message.team.settings), team.team_id)
            ]
        case "app":
            given = message.app
            action = "app given to team" if given.team_id else "app taken from team"
            return [DoneAction(action, team_id=given.team_id, appkey=given.appkey)]
        case "link":
            purpose = enum_name(LinkPurpose.DESCRIPTOR, message.link.purpose, "LINK_PURPOSE_").replace("_", " ")
            return [DoneAction("user link made", f"user/{message.link.user_id}, {purpose}")]
        case "token":
            token = message.token.token
            role = enum_name(MemberRole.DESCRIPTOR, token.role, "MEMBER_ROLE_")
            detail = comma_joined(token.name, role, f"token/{token.token_id}")
            return [DoneAction("token created", detail, token.team_id)]
        case "token_revoked":
            return [
                DoneAction("token revoked", f"token/{message.token_revoked.token_id}", message.token_revoked.team_id)
            ]
        case None:
            return []
        case never:
            assert_never(never)


def _of_log_in(message: LogInFact) -> Sequence[DoneAction]:
    match message.WhichOneof("fact"):
        case "logged_in":
            method = enum_name(LogInMethod.DESCRIPTOR, message.logged_in.method, "LOG_IN_METHOD_").replace("_", " ")
            return [DoneAction("log-in", method, actor=f"user/{message.logged_in.user_id}")]
        case "failed":
            user_id = message.failed.user_id
            return [DoneAction("log-in failed", message.failed.reason, actor=f"user/{user_id}" if user_id else "")]
        case "token_used":
            return [DoneAction("token used", f"token/{message.token_used.token_id}")]
        case "data_read":
            read = message.data_read
            push = f"push {read.msgid}" if read.msgid else ""
            return [DoneAction("data read", comma_joined(read.name, push, *read.tokens), appkey=read.appkey)]
        case None:
            return []
        case never:
            assert_never(never)


def _of_draft(message: DraftFact) -> Sequence[DoneAction]:
    key = message.draft_id
    draft = f"draft {key}"
    match message.WhichOneof("fact"):
        case "submitted":
            detail = comma_joined(draft, f"{message.submitted.draft.estimated_devices} devices")
            action = "draft changed" if message.submitted.draft.version > 1 else "draft submitted"
            return [DoneAction(action, detail, message.submitted.draft.team_id, task_key=key)]
        case "rejected":
            return [DoneAction("draft rejected", comma_joined(draft, message.rejected.reason), task_key=key)]
        case "approved":
            return [DoneAction("draft approved", draft, task_key=key)]
        case "withdrawn":
            return [DoneAction("draft withdrawn", draft, task_key=key)]
        case "sent" | None:
            return []
        case never:
            assert_never(never)
