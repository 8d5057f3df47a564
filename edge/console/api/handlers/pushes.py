"""Calls about pushes that were sent."""

import falcon
import msgspec

from edge.console.actions import pushes
from edge.console.actions.devices import note_data_read
from edge.console.actions.visible import app_of, visible_apps
from edge.console.api.answers.audits import push_answer
from edge.console.api.answers.pushes import Push, PushCancelled, PushList, PushSummary, Step
from edge.console.api.cursors import after
from edge.console.api.questions import OfPush, PushById, PushOfApp, PushPage
from edge.console.backend import Backend
from edge.console.gate.requester import Requester
from edge.console.numbers import MAX_MSGID
from edge.console.view.push_view import content, funnel, may_be_cancelled
from protos.analytics.v1.analytics_pb2 import AuditPushResponse
from services.domain.accounts.permissions import Action

_COUNTS = ("target", "sent", "received", "shown", "clicked", "failed", "expired", "cancelled")


async def list_pushes(backend: Backend, requester: Requester, params: PushPage) -> PushList:
    """List the latest broadcasts and multicasts of the team's apps, the newest first.

    These are at most a thousand of the last 30 days for each app, as in the statistics of broadcasts.
    """
    apps = [app for app in visible_apps(backend, requester) if params.appkey in ("", app.appkey)]
    below = after(params.cursor, MAX_MSGID) or MAX_MSGID
    rows = [
        row
        for row in await pushes.latest_pushes(backend, apps)
        if row.counts.msgid < below and params.from_ms <= row.counts.sent_ms < params.to_ms
    ]
    shown = rows[: params.limit]
    found = [
        PushSummary(
            appkey=app.appkey,
            msgid=counts.msgid,
            sent_ms=counts.sent_ms,
            **{name: getattr(counts, name) for name in _COUNTS},
        )
        for app, counts in shown
    ]
    return PushList(found, str(found[-1].msgid) if len(rows) > len(shown) else "")


async def push(backend: Backend, requester: Requester, params: PushOfApp) -> Push:
    """Return a push of an app: its audit and its funnel. With `token`, the reading is noted in the audit."""
    app_of(backend, params.appkey)
    await _note(backend, requester, params.appkey, params)
    behind = params.allow_behind
    found = await pushes.push_of(backend, params.appkey, str(params.msgid), params.token, allow_behind=behind)
    return await _push(backend, found)


async def find_push(backend: Backend, requester: Requester, params: PushById) -> Push:
    """Find a push by its message id among those of the team's apps. With `token`, the reading is noted in the audit."""
    found = await pushes.find_push(backend, requester, str(params.msgid), allow_behind=params.allow_behind)
    if found is None:
        raise falcon.HTTPNotFound
    if params.token:
        await _note(backend, requester, found.appkey, params)
        behind = params.allow_behind
        found = await pushes.push_of(backend, found.appkey, str(params.msgid), params.token, allow_behind=behind)
    return await _push(backend, found)


async def cancel_push(backend: Backend, requester: Requester, params: OfPush) -> PushCancelled:
    """Cancel a broadcast or multicast for the devices that have not received it. It is safe to repeat the call."""
    found = app_of(backend, params.appkey)
    await pushes.cancel_push(backend, requester, found.appkey, str(params.msgid))
    return PushCancelled(found.appkey, params.msgid)


async def _note(backend: Backend, requester: Requester, appkey: str, params: PushOfApp | PushById) -> None:
    """Note that a device is looked at. HTTP 403: the account may not."""
    if not params.token:
        return
    if not requester.may_app(Action.VIEW_DEVICES, appkey):
        raise falcon.HTTPForbidden
    await note_data_read(backend, requester, appkey, params.token, str(params.msgid))


async def _push(backend: Backend, found: AuditPushResponse) -> Push:
    words = content(found.request_json)
    steps = funnel(found, await pushes.statistics_of(backend, found))
    return Push(
        **msgspec.structs.asdict(push_answer(found)),
        title=words.title,
        text=words.text,
        funnel=[Step(step.name, step.devices) for step in steps],
        may_be_cancelled=may_be_cancelled(found),
    )
