"""Pushes: the latest broadcasts and multicasts, and one push with its audit and its counts."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

import falcon

from console.pushes.view import UNICAST
from console.shell.access import Requester
from console.shell.backend import ANALYTICS_S, Backend
from console.shell.numbers import MAX_MSGID, MAX_TIME_MS, message_id, whole_number
from console.statistics.actions import category_of
from protos.analytics.v1.analytics_pb2 import (
    ActionEntry,
    ActionScope,
    AuditActionsRequest,
    AuditPushRequest,
    AuditPushResponse,
    BroadcastRow,
    LatestPushesRequest,
    PushSpeedRequest,
    PushSpeedResponse,
    PushStatesRequest,
    PushStatesResponse,
    StatisticsKind,
    StatisticsRequest,
    TimelineEntry,
)
from protos.registry.v1.apps_pb2 import App
from protos.scheduling.v1.scheduling_pb2 import Task
from services.domain.permissions import Action
from services.errors import InputError, NotFoundError

LISTED_MS = int(timedelta(days=30).total_seconds() * 1000)
"""How far lists of pushes go back, ms."""


_MINUTE_MS = 60_000


class PushRow(NamedTuple):
    """A push with the app that sent it, its title, and the beginning of its text."""

    app: App
    counts: BroadcastRow
    title: str
    text: str


class LatestPushes(NamedTuple):
    """A page of pushes, the newest first. `records_behind`: how many records of the log the counts do not include yet.

    `older` is where the next page starts, "" after the last one.
    """

    rows: Sequence[PushRow]
    older: str = ""
    records_behind: int = 0


class Before(NamedTuple):
    """Where a page starts: at pushes before this time, or of this time with a lower message id. 0, 0: at the newest."""

    time_ms: int = 0
    msgid: int = 0

    @classmethod
    def of(cls, older: str) -> "Before":
        """Return the place that `older` names. InputError: it has no such form."""
        texts = older.partition("-")
        time_ms, msgid = whole_number(texts[0], MAX_TIME_MS), whole_number(texts[2], MAX_MSGID)
        if time_ms is None or msgid is None:
            raise InputError("cursor: give the `next` of the page before, or nothing")
        return cls(time_ms, msgid)

    @property
    def older(self) -> str:
        """The text that names this place to the next page."""
        return f"{self.time_ms}-{self.msgid}"


_NEWEST = Before()


async def latest_pushes(
    backend: Backend, apps: Sequence[App], limit: int, before: Before = _NEWEST, *, from_ms: int = 0, words: str = ""
) -> LatestPushes:
    """Return broadcasts and multicasts of these apps of the last 30 days, the newest first.

    `words`: only those that have this in their title, or in the beginning of their text.
    """
    of_appkey = {app.appkey: app for app in apps}
    if not of_appkey:
        return LatestPushes([])
    asked = LatestPushesRequest(
        appkeys=list(of_appkey),
        limit=limit + 1,
        from_ms=max(from_ms, _since_ms(backend.clock.now_ms())),
        to_ms=before.time_ms,
        below_msgid=before.msgid,
        words=words,
        allow_behind=True,
    )
    answer = await backend.roles.analytics.LatestPushes(asked, timeout=ANALYTICS_S)
    rows = [PushRow(of_appkey[push.appkey], push.counts, push.title, push.text) for push in answer.pushes]
    last = rows[limit - 1].counts if len(rows) > limit else None
    return LatestPushes(rows[:limit], Before(last.sent_ms, last.msgid).older if last else "", answer.records_behind)


def _since_ms(now_ms: int) -> int:
    """Return the time in ms since 1970 at which the list begins: a full minute, alike for all readers of one minute."""
    return (now_ms - LISTED_MS) // _MINUTE_MS * _MINUTE_MS


async def push_of(
    backend: Backend,
    appkey: str,
    msgid: str,
    token: str = "",
    *,
    allow_behind: bool = True,
    device_only: bool = False,
) -> AuditPushResponse:
    """Return the audit of a push of this app. HTTP 404: the app has none with this id.

    `device_only`: the answer has only the request of the push itself, and costs a fraction.
    """
    asked = AuditPushRequest(msgid=message_id(msgid), token=token, allow_behind=allow_behind, device_only=device_only)
    answer = await backend.roles.analytics.AuditPush(asked, timeout=ANALYTICS_S)
    if answer.appkey != appkey:
        raise falcon.HTTPNotFound
    return answer


async def speed_of(
    backend: Backend, appkey: str, msgid: str, within: str = "", *, allow_behind: bool = True
) -> PushSpeedResponse:
    """Return how fast a push of this app was. `within`: what its steps cover, ms; "" for a length that fits.

    HTTP 404: the app has no push with this id.
    """
    number = message_id(msgid)
    within_ms = whole_number(within or "0", MAX_TIME_MS)
    if within_ms is None:
        raise InputError("within must be a number of milliseconds")
    asked = PushSpeedRequest(msgid=number, within_ms=within_ms, allow_behind=allow_behind)
    answer = await backend.roles.analytics.PushSpeed(asked, timeout=ANALYTICS_S)
    if answer.appkey != appkey:
        raise falcon.HTTPNotFound
    return answer


async def states_of(
    backend: Backend, appkey: str, msgid: str, category: str, *, allow_behind: bool = True
) -> PushStatesResponse:
    """Return the states of a push's devices, divided by a category. HTTP 404: the app has no push with this id."""
    asked = PushStatesRequest(msgid=message_id(msgid), category=category_of(category), allow_behind=allow_behind)
    answer = await backend.roles.analytics.PushStates(asked, timeout=ANALYTICS_S)
    if answer.appkey != appkey:
        raise falcon.HTTPNotFound
    return answer


async def cancel_push(backend: Backend, requester: Requester, appkey: str, msgid: str) -> None:
    """Cancel a push of this app for the devices that have not received it. Errors as for BroadcastCancel.cancel."""
    await backend.broadcasts.cancel(appkey, message_id(msgid), requester.origin)


async def statistics_of(backend: Backend, answer: AuditPushResponse) -> BroadcastRow | None:
    """Return the counts of a broadcast or multicast; None for a push to a list, or one that has not started."""
    if answer.kind == UNICAST:
        return None
    asked = StatisticsRequest(appkey=answer.appkey, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS, msgid=answer.msgid)
    try:
        rows = (await backend.roles.analytics.Statistics(asked, timeout=ANALYTICS_S)).broadcasts
    except NotFoundError:
        return None
    return rows[0] if rows else None


async def find_push(
    backend: Backend, requester: Requester, sought: str, *, allow_behind: bool = True
) -> AuditPushResponse | None:
    """Return the push with this message id, if there is one that the account may see."""
    if not (number := whole_number(sought, MAX_MSGID)):
        return None
    asked = AuditPushRequest(msgid=number, allow_behind=allow_behind)
    try:
        answer = await backend.roles.analytics.AuditPush(asked, timeout=ANALYTICS_S)
    except NotFoundError:
        return None
    return answer if requester.may_app(Action.VIEW, answer.appkey) else None


# Who sent, scheduled or cancelled a push through the console or a command, as the audit has it.

_ACTIONS = {
    "command": "push sent",
    "task scheduled": "task scheduled",
    "cancel command": "push cancelled",
    "task cancelled": "task cancelled",
}
"""The action of the audit behind an event of a push's timeline."""

_LATER_MS = 60_000
"""Longest time between a command, whose time the timeline has, and the task's fact that follows it."""

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
