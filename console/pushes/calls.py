"""Calls about pushes that were sent."""

import falcon
import msgspec

from console.audit.answers import StateCount, channels_answer, push_answer
from console.devices.actions import note_data_read
from console.pushes import actions
from console.pushes.answers import (
    Push,
    PushCancelled,
    PushList,
    PushSpeed,
    PushStates,
    PushSummary,
    Step,
    ValueStates,
    speed_answer,
)
from console.pushes.view import content, funnel, may_be_cancelled
from console.shell.access import Requester
from console.shell.backend import Backend, app_of, visible_apps
from console.shell.requests import (
    PushByIdParams,
    PushDetailParams,
    PushListParams,
    PushParams,
    SpeedParams,
    StatesParams,
)
from protos.analytics.v1.analytics_pb2 import AuditPushResponse
from services.domain.permissions import Action
from services.domain.statistics_rows import BROADCAST_COUNTS


async def list_pushes(backend: Backend, requester: Requester, params: PushListParams) -> PushList:
    """List the broadcasts and multicasts of the team's apps of the last 30 days, the newest first."""
    apps = [app for app in visible_apps(backend, requester) if params.appkey in ("", app.appkey)]
    before = actions.Before.of(params.cursor) if params.cursor else actions.Before(params.to_ms)
    latest = await actions.latest_pushes(
        backend, apps, params.limit, before, from_ms=params.from_ms, words=params.words.strip()
    )
    found = [
        PushSummary(
            appkey=row.app.appkey,
            msgid=row.counts.msgid,
            title=row.title,
            text=row.text,
            sent_ms=row.counts.sent_ms,
            **{name: getattr(row.counts, name) for name in BROADCAST_COUNTS},
            channels=channels_answer(row.counts.channels),
        )
        for row in latest.rows
    ]
    return PushList(found, latest.older, latest.records_behind)


async def push(backend: Backend, requester: Requester, params: PushDetailParams) -> Push:
    """Return a push of an app: its audit and its funnel. With `token`, the reading is noted in the audit."""
    app_of(backend, params.appkey)
    await _note(backend, requester, params.appkey, params)
    behind = params.allow_behind
    found = await actions.push_of(backend, params.appkey, str(params.msgid), params.token, allow_behind=behind)
    return await _push(backend, found)


async def find_push(backend: Backend, requester: Requester, params: PushByIdParams) -> Push:
    """Find a push by its message id among those of the team's apps. With `token`, the reading is noted in the audit."""
    found = await actions.find_push(backend, requester, str(params.msgid), allow_behind=params.allow_behind)
    if found is None:
        raise falcon.HTTPNotFound
    if params.token:
        await _note(backend, requester, found.appkey, params)
        behind = params.allow_behind
        found = await actions.push_of(backend, found.appkey, str(params.msgid), params.token, allow_behind=behind)
    return await _push(backend, found)


async def speed(backend: Backend, requester: Requester, params: SpeedParams) -> PushSpeed:
    """Tell how fast a push was sent, received, shown and clicked: by steps of time, and by shares of the devices."""
    found = app_of(backend, params.appkey)
    within, behind = str(params.within_ms), params.allow_behind
    return speed_answer(await actions.speed_of(backend, found.appkey, str(params.msgid), within, allow_behind=behind))


async def states(backend: Backend, requester: Requester, params: StatesParams) -> PushStates:
    """Count the devices of a broadcast or multicast by state and reason, divided by an attribute of the devices."""
    found, behind = app_of(backend, params.appkey), params.allow_behind
    answer = await actions.states_of(backend, found.appkey, str(params.msgid), params.category, allow_behind=behind)
    values = [
        ValueStates(value.info, [StateCount(each.state, each.reason, each.devices) for each in value.states])
        for value in answer.values
    ]
    return PushStates(values, answer.records_behind)


async def cancel_push(backend: Backend, requester: Requester, params: PushParams) -> PushCancelled:
    """Cancel a broadcast or multicast for the devices that have not received it. It is safe to repeat the call."""
    found = app_of(backend, params.appkey)
    await actions.cancel_push(backend, requester, found.appkey, str(params.msgid))
    return PushCancelled(found.appkey, params.msgid)


async def _note(backend: Backend, requester: Requester, appkey: str, params: PushDetailParams | PushByIdParams) -> None:
    """Note that a device is looked at. HTTP 403: the account may not."""
    if not params.token:
        return
    if not requester.may_app(Action.VIEW_DEVICES, appkey):
        raise falcon.HTTPForbidden
    await note_data_read(backend, requester, appkey, params.token, str(params.msgid))


async def _push(backend: Backend, found: AuditPushResponse) -> Push:
    words = content(found.request_json)
    steps = funnel(found, await actions.statistics_of(backend, found))
    return Push(
        **msgspec.structs.asdict(push_answer(found)),
        title=words.title,
        text=words.text,
        funnel=[Step(step.name, step.devices) for step in steps],
        may_be_cancelled=may_be_cancelled(found),
    )
