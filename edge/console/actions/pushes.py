"""Pushes: the latest broadcasts and multicasts, and one push with its audit and its counts."""

import asyncio
from typing import NamedTuple

import falcon

from edge.console.backend import Backend
from edge.console.gate.requester import Requester
from edge.console.numbers import MAX_MSGID, whole_number
from edge.console.roles import ANALYTICS_S
from edge.console.view.push_view import UNICAST
from protos.analytics.v1.analytics_pb2 import (
    AuditPushRequest,
    AuditPushResponse,
    BroadcastRow,
    StatisticsKind,
    StatisticsRequest,
)
from protos.registry.v1.apps_pb2 import App
from services.domain.accounts.permissions import Action
from services.runtime.errors import NotFoundError


class PushRow(NamedTuple):
    """A push with the app that sent it."""

    app: App
    counts: BroadcastRow


async def latest_pushes(backend: Backend, apps: list[App]) -> list[PushRow]:
    """Return the broadcasts and multicasts of these apps, the newest first."""

    async def of_app(app: App) -> list[PushRow]:
        asked = StatisticsRequest(appkey=app.appkey, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS)
        answer = await backend.roles.analytics.Statistics(asked, timeout=ANALYTICS_S)
        return [PushRow(app, row) for row in answer.broadcasts]

    found = await asyncio.gather(*(of_app(app) for app in apps))
    return sorted((row for rows in found for row in rows), key=lambda row: -row.counts.msgid)


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

    `device_only`: of the push itself the answer holds the request alone, and costs a fraction.
    """
    if not (number := whole_number(msgid, MAX_MSGID)):
        raise falcon.HTTPNotFound
    asked = AuditPushRequest(msgid=number, token=token, allow_behind=allow_behind, device_only=device_only)
    answer = await backend.roles.analytics.AuditPush(asked, timeout=ANALYTICS_S)
    if answer.appkey != appkey:
        raise falcon.HTTPNotFound
    return answer


async def cancel_push(backend: Backend, requester: Requester, appkey: str, msgid: str) -> None:
    """Cancel a push of this app for the devices that have not received it. Errors as for Broadcasts.cancel."""
    if not (number := whole_number(msgid, MAX_MSGID)):
        raise falcon.HTTPNotFound
    await backend.broadcasts.cancel(appkey, number, requester.origin)


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
