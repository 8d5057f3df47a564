"""Why devices got a push or not: a list of pushes to choose from, and one sentence for each device with its records."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from edge.console.actions.devices import DeviceMessage, history_of, messages_of
from edge.console.actions.pushes import Before, PushRow, latest_pushes, push_of
from edge.console.actions.tasks import unsent_task
from edge.console.actions.visible import app_of
from edge.console.backend import Backend
from edge.console.view.explanation import Explanation, Words, explain
from protos.analytics.v1.analytics_pb2 import (
    AuditPushResponse,
    BroadcastRow,
    ExclusionReason,
    PushOnDevice,
    TimelineEntry,
)
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.devices_pb2 import Device
from protos.scheduling.v1.scheduling_pb2 import Task


class Answer(NamedTuple):
    """The explanation for one device, and what it is made of."""

    device: Device
    explanation: Explanation
    push: PushOnDevice


class Answers(NamedTuple):
    """The explanations for several devices. `request_json`: the request of the push."""

    request_json: str
    of_devices: list[Answer]
    records_behind: int


class PushOfUser(NamedTuple):
    """A push in the list to choose from, and what the history of each of a user's devices says of it.

    `messages` are empty if the push was sent to none of the devices.
    """

    row: PushRow
    messages: Sequence[DeviceMessage]


class PushesOfUser(NamedTuple):
    """A page of pushes, the newest first. `older` is where the next page starts, "" after the last one."""

    pushes: Sequence[PushOfUser]
    older: str
    records_behind: int


async def why(backend: Backend, appkey: str, msgid: str, devices: Sequence[Device], words: Words) -> Answers:
    """Return why each of the devices, one at least, got the push or not. Errors as for `push_of`."""
    audits = await asyncio.gather(
        *(push_of(backend, appkey, msgid, device.token, device_only=True) for device in devices)
    )
    app = app_of(backend, appkey)
    pause = app.pause if app.HasField("pause") else backend.apps.installation_pause
    is_ios = app.platform == PLATFORM_IOS
    task = await _unsent_task(backend, appkey, msgid, audits)
    answers = [
        Answer(device, explain(audit.device, words, is_ios=is_ios, pause=pause, task=task), audit.device)
        for device, audit in zip(devices, audits, strict=True)
    ]
    return Answers(audits[0].request_json, answers, max(audit.records_behind for audit in audits))


async def _unsent_task(backend: Backend, appkey: str, msgid: str, audits: Sequence[AuditPushResponse]) -> Task | None:
    """Return the timed task that has not sent the push. Audits of one device do not tell which it is."""
    not_started = ExclusionReason.EXCLUSION_REASON_PUSH_NOT_STARTED
    if all(audit.device.exclusion.reason != not_started for audit in audits):
        return None
    return await unsent_task(backend, await push_of(backend, appkey, msgid))


async def pushes_of_user(
    backend: Backend, app: App, devices: Sequence[Device], limit: int, before: Before
) -> PushesOfUser:
    """Return the app's broadcasts and multicasts, and its pushes to lists that name one of these devices.

    Analytics is asked once for the pushes, and once for the history of each device.
    """
    asked = asyncio.gather(*(history_of(backend, app.appkey, device.token) for device in devices))
    latest, histories = await asyncio.gather(latest_pushes(backend, [app], limit, before), asked)
    messages: dict[int, list[DeviceMessage]] = {}
    for history in histories:
        for message in messages_of(history.timeline):
            messages.setdefault(message.msgid, []).append(message)
    unicasts = {row.counts.msgid: row for history in histories for row in _unicasts(app, history.timeline)}
    listed = [row for row in unicasts.values() if before == Before() or _place(row) < before]
    rows = sorted([*latest.rows, *listed], key=_place, reverse=True)
    has_more = bool(latest.older) or len(rows) > limit
    behind = max(latest.records_behind, *(history.records_behind for history in histories))
    pushes = [PushOfUser(row, messages.get(row.counts.msgid, [])) for row in rows[:limit]]
    return PushesOfUser(pushes, _place(pushes[-1].row).older if has_more else "", behind)


def _place(row: PushRow) -> Before:
    return Before(row.counts.sent_ms, row.counts.msgid)


def _unicasts(app: App, timeline: Sequence[TimelineEntry]) -> list[PushRow]:
    """Return the messages of a device's history that were sent to a list; a detail calls other pushes "push"."""
    return [
        PushRow(app, BroadcastRow(msgid=entry.msgid, sent_ms=entry.first_ms), entry.push_title, "")
        for entry in timeline
        if entry.event == "audience" and any(detail.HasField("message") for detail in entry.details)
    ]
