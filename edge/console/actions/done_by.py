"""Who sent, scheduled or cancelled a push through the console or a command, as the audit has it."""

from collections.abc import Iterable
from typing import NamedTuple

from edge.console.backend import Backend
from edge.console.role_stubs import ANALYTICS_S
from protos.analytics.v1.analytics_pb2 import (
    ActionEntry,
    ActionScope,
    AuditActionsRequest,
    AuditPushResponse,
    TimelineEntry,
)
from protos.scheduling.v1.scheduling_pb2 import Task

_ACTIONS = {
    "command": "push sent",
    "task scheduled": "task scheduled",
    "cancel command": "push cancelled",
    "task cancelled": "task cancelled",
}
"""The action of the audit behind an event of a push's timeline."""

_LATER_MS = 60_000
"""The fact of a task follows its command, whose time the timeline has, by less than this."""

_MAX_ACTIONS = 1000


class DoneBy(NamedTuple):
    """When something was done with a push. `name`: the user or the API token; "" for app servers and operators."""

    time_ms: int
    name: str


async def done_by(backend: Backend, audit: AuditPushResponse, *events: str) -> DoneBy | None:
    """Return the time and actor of the first of these events in the push's timeline; None if none is in it."""
    entries = {entry.event: entry for entry in reversed(audit.timeline)}
    found = next((entries[event] for event in events if event in entries), None)
    if found is None:
        return None
    if not _is_by_account(found):
        return DoneBy(found.first_ms, "")
    action, task_key = _ACTIONS[found.event], _task_key(found)
    names = (
        backend.accounts.name_of(done.actor)
        for done in await _done(backend, [audit.appkey], action, found.first_ms, found.first_ms)
        if any(detail.push == audit.msgid or (task_key and detail.task == task_key) for detail in done.details)
    )
    return DoneBy(found.first_ms, next(names, ""))


async def schedulers(backend: Backend, appkeys: list[str], tasks: Iterable[Task]) -> dict[str, str]:
    """Return the names of those who made the tasks of these apps, by task key, as far as the audit has them."""
    created_ms = [task.created_ms for task in tasks]
    if not created_ms:
        return {}
    done = await _done(backend, appkeys, "task scheduled", min(created_ms), max(created_ms))
    return {detail.task: backend.accounts.name_of(one.actor) for one in done for detail in one.details if detail.task}


async def _done(backend: Backend, appkeys: list[str], action: str, first_ms: int, last_ms: int) -> list[ActionEntry]:
    """Return the audit's entries of one action by accounts, whose commands were recorded in this period."""
    asked = AuditActionsRequest(
        from_ms=first_ms,
        to_ms=last_ms + _LATER_MS,
        scope=ActionScope(appkeys=appkeys),
        subject=action.split()[0],
        limit=_MAX_ACTIONS,
        allow_behind=True,
    )
    answer = await backend.roles.analytics.AuditActions(asked, timeout=ANALYTICS_S)
    return [entry for entry in answer.actions if entry.action == action and entry.actor]


def _is_by_account(entry: TimelineEntry) -> bool:
    return any("console" in (detail.accepted.interface, detail.origin.interface) for detail in entry.details)


def _task_key(entry: TimelineEntry) -> str:
    return next((detail.task for detail in entry.details if detail.task), "")
