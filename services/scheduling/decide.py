"""Decisions about timed tasks: the facts that follow from commands, and the records that send a due task. Pure."""

import hashlib
from typing import assert_never

from protos.push.v1.push_pb2 import PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Meta
from protos.scheduling.v1.scheduling_pb2 import (
    TaskCancelled,
    TaskCommand,
    TaskExpired,
    TaskFact,
    TaskFailed,
    TaskFellDue,
    TaskPaused,
    TaskScheduled,
    TaskSent,
)
from services.domain.recorded_reasons import ApprovalNeeded
from services.scheduling.state import UNSENT, StoredClaim, StoredTask

WRITER = "scheduling"
_MAX_REASON = 500


def decide(command: TaskCommand, task: StoredTask | None, claim: StoredClaim | None = None) -> TaskFact | None:
    """Return the fact that follows from a command, without its meta.

    `task` is the stored task with the command's key, `claim` the last claim of the command's idempotency key.
    None: the task exists already (the command is a repeat), its idempotency key is claimed by another task, or the
    task cannot be cancelled. ValueError: the command is incomplete.
    """
    match command.WhichOneof("command"):
        case "create":
            is_claimed = claim is not None and (
                claim.task_key == command.task_key or command.meta.time_ms < claim.expires_ms
            )
            return None if task or is_claimed else _scheduled(command)
        case "cancel":
            if task is None or task.status not in UNSENT or not task.is_of(command.cancel.appkeys):
                return None
            return TaskFact(task_key=task.task_key, cancelled=TaskCancelled(by_event_id=command.meta.event_id))
        case None:
            return None
        case other:
            assert_never(other)


def fell_due(task_key: str, now_ms: int) -> TaskFact:
    return TaskFact(meta=_meta(f"{task_key}/fell_due", now_ms), task_key=task_key, fell_due=TaskFellDue())


def paused(task_key: str, now_ms: int) -> TaskFact:
    return TaskFact(meta=_meta(f"{task_key}/paused", now_ms), task_key=task_key, paused=TaskPaused())


def expired(task_key: str, now_ms: int) -> TaskFact:
    return TaskFact(meta=_meta(f"{task_key}/expired", now_ms), task_key=task_key, expired=TaskExpired())


def failed(task_key: str, reason: str, now_ms: int) -> TaskFact:
    return TaskFact(
        meta=_meta(f"{task_key}/failed", now_ms), task_key=task_key, failed=TaskFailed(reason=reason[:_MAX_REASON])
    )


def held_as_draft(task_key: str, draft_id: str, now_ms: int) -> TaskFact:
    """Return the fact that ends a task which needs an approval by now and has become this draft."""
    fact = failed(task_key, str(ApprovalNeeded(draft_id)), now_ms)
    fact.failed.draft_id = draft_id
    return fact


def sent(task_key: str, now_ms: int) -> TaskFact:
    return TaskFact(meta=_meta(f"{task_key}/sent", now_ms), task_key=task_key, sent=TaskSent())


def push_command(task: StoredTask, push: SendPush, now_ms: int) -> PushCommand:
    """Return the command that sends one resolved push of the task; repeats have the same event id and message ids.

    A push of a task that was paused gets what is left of its time to live since the due time.
    """
    command = PushCommand(meta=_meta(f"{task.task_key}/{push.msgid}", now_ms), send=push)
    if task.scheduled.meta.HasField("origin"):
        command.meta.origin.CopyFrom(task.scheduled.meta.origin)
    command.send.task_key = "" if task.scheduled.scheduled.at_once else task.task_key
    if task.was_paused:
        ends_ms = task.scheduled.scheduled.due_ms + 1000 * push.period_s
        command.send.period_s = max(0, ends_ms - now_ms) // 1000
    return command


def _scheduled(command: TaskCommand) -> TaskFact:
    create = command.create
    if not command.task_key or not create.pushes:
        raise ValueError("a task needs a key and at least one push")
    for push in create.pushes:
        if push.audience.WhichOneof("audience") is None:
            raise ValueError(f"push {push.msgid} of task {command.task_key} has no audience")
    scheduled = TaskScheduled(
        pushes=create.pushes,
        due_ms=create.due_ms,
        created_ms=command.meta.time_ms,
        claim=create.claim if create.HasField("claim") else None,
        at_once=create.at_once,
    )
    return TaskFact(task_key=command.task_key, scheduled=scheduled)


def _meta(identity: str, now_ms: int) -> Meta:
    event_id = hashlib.blake2b(f"{WRITER}/{identity}".encode(), digest_size=16).digest()
    return Meta(event_id=event_id, time_ms=now_ms)
