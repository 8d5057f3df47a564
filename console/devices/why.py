"""Why a user's devices got a push or not: one sentence for each device, with the records behind it."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlencode

import falcon
from falcon.asgi import Request, Response

from console.apps.refusals import refusal_reason, refused_pushes
from console.devices.actions import ListedMessage, find_devices, history_of, messages_of, note_data_read
from console.devices.explanation import Explanation, Words, explain
from console.pushes.actions import Before, PushRow, latest_pushes, push_of
from console.pushes.view import content
from console.shell.backend import Backend, app_of
from console.shell.page import Page, go_to, unknown_app, visit_of
from console.shell.visit import Visit
from console.tasks.actions import unsent_task
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
from services.domain.permissions import Action
from services.errors import NotFoundError


class ExplainedDevice(NamedTuple):
    """The explanation for one device, and what it is made of."""

    device: Device
    explanation: Explanation
    push: PushOnDevice


class Answers(NamedTuple):
    """The explanations for several devices. `request_json`: the request of the push."""

    request_json: str
    of_devices: list[ExplainedDevice]
    records_behind: int


class PushOfUser(NamedTuple):
    """A push in the list to choose from, and what the history of each of a user's devices says of it.

    `messages` are empty if the push was sent to none of the devices.
    """

    row: PushRow
    messages: Sequence[ListedMessage]


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
        ExplainedDevice(
            device, explain(audit.device, words, is_ios=is_ios, pause=pause, task=task, record=device), audit.device
        )
        for device, audit in zip(devices, audits, strict=True)
    ]
    return Answers(audits[0].request_json, answers, max(audit.records_behind for audit in audits))


async def _unsent_task(backend: Backend, appkey: str, msgid: str, audits: Sequence[AuditPushResponse]) -> Task | None:
    """Return the timed task that has not sent the push; only the audit of the whole push names the task."""
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
    messages: dict[int, list[ListedMessage]] = {}
    for history in histories:
        for message in messages_of(history.timeline, backend.clock.now_ms()):
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
    """Return the messages of a device's history that were sent to a list: their details name a message, not a push."""
    return [
        PushRow(app, BroadcastRow(msgid=entry.msgid, sent_ms=entry.first_ms), entry.push_title, "")
        for entry in timeline
        if entry.event == "audience" and any(detail.HasField("message") for detail in entry.details)
    ]


# Why a user got a push or not: one sentence for each of the user's devices, with the records behind it.

MAX_PUSHES = 20


class WhyPageBase(Page):
    """The base of the form and of the page that answers it."""

    def apps_to_ask(self, visit: Visit) -> list[App]:
        """Return the apps about whose devices the user may ask."""
        return [app for app in self.visible_apps(visit) if visit.may_app(Action.VIEW_DEVICES, app.appkey)]

    def show_form(
        self, request: Request, response: Response, appkey: str, name: str, msgid: str, problem: str = ""
    ) -> None:
        """Answer with the form, filled in. `problem`: why there is no answer."""
        apps = self.apps_to_ask(visit_of(request))
        self.show(
            request,
            response,
            "devices/why_form.html",
            404 if problem else 200,
            apps=apps,
            asked_appkey=appkey,
            name=name,
            msgid=msgid,
            problem=problem,
        )


class WhyFormPage(WhyPageBase):
    """GET shows the form, and goes on to the answer."""

    async def on_get(self, request: Request, response: Response) -> None:
        appkey, name, msgid = ((request.get_param(field) or "").strip() for field in ("appkey", "name", "push"))
        problem = unknown_app(visit_of(request), appkey, self.apps_to_ask(visit_of(request)))
        if appkey and name and not problem:
            raise go_to(f"/apps/{appkey}/why?{urlencode({'name': name, 'push': msgid})}")
        self.show_form(request, response, appkey, name, msgid, problem)


class WhyPage(WhyPageBase):
    """GET answers for the devices with an alias or a token.

    Without a message id it lists pushes, those before `before` if it is given, with their states on the devices.
    """

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app, visit = self.app(appkey), visit_of(request)
        name, msgid = (request.get_param("name") or "").strip(), (request.get_param("push") or "").strip()
        await note_data_read(self.site, visit, appkey, name, msgid)
        devices = await find_devices(self.site, appkey, name)
        if not devices:
            problem = visit.gettext(
                "No device of %(app)s has this token or alias now. "
                "The device sets its alias itself, when its user logs in."
            ) % {"app": app.name}
            self.show_form(request, response, appkey, name, msgid, problem)
            return
        if not msgid:
            before = Before.of(request.get_param("before") or "0-0")
            found = await pushes_of_user(self.site, app, devices, MAX_PUSHES, before)
            oldest_ms = found.pushes[-1].row.counts.sent_ms if found.older else 0
            refused = await refused_pushes(self.site, appkey, oldest_ms) if before == Before() else ()
            self.show(
                request,
                response,
                "devices/why_pushes.html",
                app=app,
                name=name,
                refused=[(each, refusal_reason(each, visit.gettext)) for each in refused],
                **found._asdict(),
            )
            return
        language = visit.language
        words = Words(language, lambda ms: language.moment(ms, visit.zone))
        try:
            answers = await why(self.site, appkey, msgid, devices, words)
        except (falcon.HTTPNotFound, NotFoundError):
            problem = visit.gettext("No push of %(app)s has this message id.") % {"app": app.name}
            self.show_form(request, response, appkey, name, msgid, problem)
            return
        self.show(
            request,
            response,
            "devices/why.html",
            app=app,
            name=name,
            msgid=int(msgid),
            content=content(answers.request_json),
            answers=answers.of_devices,
            records_behind=answers.records_behind,
        )
