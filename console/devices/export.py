"""The export of everything that is held about a person: of the device with a token, or of the devices with an alias.

Pages follow each other: the records of the devices, the timed tasks and the drafts that name them, the actions of
accounts that name them, and the history of each device, the latest entries first. What names other people is left out.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import falcon
import msgspec
from falcon.asgi import Request, Response
from msgspec.structs import replace

from console.audit.answers import timeline_answer
from console.devices.actions import find_devices
from console.devices.answers import (
    Device,
    Person,
    PersonAction,
    PersonDraft,
    PersonEvent,
    PersonPage,
    PersonPush,
    PersonTask,
    TestDevice,
    device_record,
)
from console.devices.explanation import ENDED, GOT
from console.pushes.actions import push_of
from console.send.actions import drafts_of
from console.shell.access import Requester
from console.shell.backend import ANALYTICS_S, Backend
from console.shell.numbers import MAX_TIME_MS, whole_number
from console.shell.page import Page, visit_of
from protos.accounts.v1.accounts_pb2 import DataRead
from protos.accounts.v1.drafts_pb2 import DraftStatus, GetDraftsRequest
from protos.accounts.v1.service_pb2 import NoteDataReadRequest
from protos.analytics.v1.analytics_pb2 import (
    ActionEntry,
    ActionScope,
    AuditActionsRequest,
    AuditDeviceRequest,
    AuditDeviceResponse,
    PushOnDevice,
    TimelineEntry,
)
from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.devices_pb2 import Device as StoredDevice
from protos.scheduling.v1.scheduling_pb2 import TaskStatus
from services.errors import InputError, NotFoundError

PAGE = 200
"""Entries of a page of a file, at most."""

_AT_ONCE = 4
"""Pushes that analytics is asked about at once."""

_LOOKS = 10
"""Parts of histories that one page reads at most until it finds an entry."""

_OVER = frozenset((*GOT, *ENDED, "push failed", "push cancelled", "finished"))
_OVER_ON_IOS = frozenset(("sent", "handed_over"))
_TARGETS = ("sendTo", "token", "alias", "filter", "filter_v2", "optfilter", "appkey", "sign")
"""The fields of requests that say to whom a push goes, which may name others."""

_OTHER = "another device"


class ExportedPerson(NamedTuple):
    """The person whose data are exported: the devices, and the texts that name them."""

    app: App
    devices: Sequence[StoredDevice]
    names: frozenset[str]

    @property
    def tokens(self) -> list[str]:
        return sorted(device.token for device in self.devices)


async def find_person(backend: Backend, requester: Requester, app: App, name: str) -> ExportedPerson:
    """Return the devices with an alias or a token, once the export is noted in the audit, without what names them.

    HTTP 404: the app has none.
    """
    devices = await find_devices(backend, app.appkey, name)
    read = DataRead(appkey=app.appkey, exported_devices=len(devices))
    await backend.roles.log_ins.NoteDataRead(NoteDataReadRequest(read=read, origin=requester.origin))
    if not devices:
        raise falcon.HTTPNotFound(description="the app has no device with this alias or token")
    names = {name, *(device.token for device in devices), *(device.alias for device in devices)} - {""}
    return ExportedPerson(app, devices, frozenset(names))


async def export_page(backend: Backend, person: ExportedPerson, cursor: str, limit: int) -> PersonPage:
    """Return one page. InputError: no page has returned the cursor. UnavailableError: analytics lacks records."""
    part, _, place = cursor.partition(":")
    match part:
        case "":
            devices = [_record(device, person) for device in person.devices]
            return PersonPage(devices=devices, test_devices=_test_devices(backend, person), next="tasks:1")
        case "tasks":
            return await _tasks(backend, person, _number(place), limit)
        case "drafts":
            return await _drafts(backend, person, _number(place), limit)
        case "actions":
            return await _actions(backend, person, place, limit)
        case "history":
            return await _history(backend, person, place, limit)
        case _:
            raise _no_cursor()


async def export_pages(backend: Backend, person: ExportedPerson) -> AsyncGenerator[PersonPage, None]:
    """Yield all pages. Errors as for `export_page`."""
    cursor = ""
    while True:
        page = await export_page(backend, person, cursor, PAGE)
        yield page
        if not (cursor := page.next):
            return


def _no_cursor() -> InputError:
    return InputError("cursor: give the `next` of the page before, or nothing")


def _number(place: str) -> int:
    number = whole_number(place, 2**31)
    if number is None:
        raise _no_cursor()
    return number


def _record(device: StoredDevice, person: ExportedPerson) -> Device:
    """Return the record without the tokens of other devices."""
    found = device_record(device)
    lost = [
        each if each.to_token in person.names else replace(each, to_token=_OTHER if each.to_token else "")
        for each in found.addresses_lost
    ]
    return replace(found, addresses_lost=lost)


def _test_devices(backend: Backend, person: ExportedPerson) -> list[TestDevice]:
    appkey = person.app.appkey
    return [
        TestDevice(team.name, device.token, device.name)
        for team in backend.accounts.teams()
        for device in team.test_devices
        if device.appkey == appkey and device.token in person.names
    ]


async def _tasks(backend: Backend, person: ExportedPerson, number: int, limit: int) -> PersonPage:
    page = await backend.tasks.waiting_first([person.app.appkey], page_num=max(number, 1), page_size=limit)
    tasks = [
        PersonTask(
            task.task_key,
            TaskStatus.Name(task.status).removeprefix("TASK_STATUS_").lower(),
            task.created_ms,
            task.due_ms,
            _content(next((push.request_json for push in task.pushes if push.request_json), "")),
        )
        for task in page.tasks
        if _is_named(task.pushes, person)
    ]
    return PersonPage(tasks=tasks, next=f"tasks:{number + 1}" if page.total > number * limit else "drafts:0")


async def _drafts(backend: Backend, person: ExportedPerson, offset: int, limit: int) -> PersonPage:
    team_id = backend.accounts.team_of(person.app.appkey)
    listed = await drafts_of(backend, [team_id] if team_id else [], offset=offset, limit=limit)
    asked = GetDraftsRequest(draft_ids=[stored.draft.draft_id for stored in listed])
    found = (await backend.roles.drafts.GetDrafts(asked)).drafts if listed else []
    drafts = [
        PersonDraft(
            stored.draft.draft_id,
            DraftStatus.Name(stored.status).removeprefix("DRAFT_STATUS_").lower(),
            stored.draft.created_ms,
            _content(stored.draft.body_json.decode()),
        )
        for stored in found
        if _is_named(stored.draft.task.pushes, person)
    ]
    return PersonPage(drafts=drafts, next=f"drafts:{offset + limit}" if len(listed) == limit else "actions:")


def _is_named(pushes: Iterable[SendPush], person: ExportedPerson) -> bool:
    """Return whether a push of the app lists a token or an alias of the person."""
    return any(
        push.appkey == person.app.appkey
        and not person.names.isdisjoint(
            (*push.audience.tokens.tokens, *push.audience.aliases.aliases, *push.audience.devices.aliases)
        )
        for push in pushes
    )


async def _actions(backend: Backend, person: ExportedPerson, pos: str, limit: int) -> PersonPage:
    team_id = backend.accounts.team_of(person.app.appkey)
    asked = AuditActionsRequest(
        to_ms=backend.clock.now_ms() + 1,
        scope=ActionScope(appkeys=[person.app.appkey], team_ids=[team_id] if team_id else []),
        containing=sorted(person.names),
        pos=pos,
        limit=limit,
    )
    answer = await backend.roles.analytics.AuditActions(asked, timeout=ANALYTICS_S)
    actions = [
        PersonAction(entry.time_ms, entry.action, entry.actor, entry.interface)
        for entry in answer.actions
        if _names_person(entry, person)
    ]
    return PersonPage(actions=actions, next=f"actions:{answer.pos}" if answer.pos else "history:0:")


def _names_person(entry: ActionEntry, person: ExportedPerson) -> bool:
    """Return whether the entry names the person exactly; analytics found a part of its detail.

    A test device is named as `APPKEY TOKEN NAME`.
    """
    texts = {text for detail in entry.details for text in (detail.text, detail.alias, detail.alias_cleared.only_alias)}
    test_devices = tuple(f"{person.app.appkey} {token} " for token in person.tokens)
    return not texts.isdisjoint(person.names) or any(f"{text} ".startswith(test_devices) for text in texts)


async def _history(backend: Backend, person: ExportedPerson, place: str, limit: int) -> PersonPage:
    """Return a part of the history of one device. The place is `BEFORE_MS:TOKEN`."""
    before, _, token = place.partition(":")
    before_ms = whole_number(before, MAX_TIME_MS)
    if before_ms is None:
        raise _no_cursor()
    for _ in range(_LOOKS):
        found = next((one for one in person.tokens if one >= token), None)
        if found is None:
            return PersonPage()
        before_ms = before_ms if found == token else 0
        part = await _part(backend, person.app.appkey, found, before_ms, limit)
        events = await _events(backend, person, found, part)
        before_ms, token = part.complete_from_ms, found
        if not before_ms:
            token = next((one for one in person.tokens if one > found), "")
        following = f"history:{before_ms}:{token}" if token else ""
        if events or not following:
            break
    return PersonPage(history=events, next=following)


async def _part(backend: Backend, appkey: str, token: str, before_ms: int, limit: int) -> AuditDeviceResponse:
    asked = AuditDeviceRequest(appkey=appkey, token=token, before_ms=before_ms, limit=limit)
    try:
        return await backend.roles.analytics.AuditDevice(asked, timeout=ANALYTICS_S)
    except NotFoundError:
        return AuditDeviceResponse()


async def _events(backend: Backend, person: ExportedPerson, token: str, part: AuditDeviceResponse) -> list[PersonEvent]:
    """Return the entries of the part, the latest first: with its content where a push was addressed to the device."""
    entries = [entry for entry in reversed(part.timeline) if entry.first_ms >= part.complete_from_ms]
    free = asyncio.Semaphore(_AT_ONCE)

    async def event(entry: TimelineEntry) -> PersonEvent:
        push = None
        if entry.event == "audience":
            async with free:
                push = await _push(backend, person, token, entry)
        (shown,) = timeline_answer([entry])
        return PersonEvent(
            token=token,
            first_ms=shown.first_ms,
            last_ms=shown.last_ms,
            event=shown.event,
            count=shown.count,
            detail=_without_others(entry, shown.detail, person),
            msgid=entry.msgid or None,
            push=push,
        )

    return list(await asyncio.gather(*map(event, entries)))


def _without_others(entry: TimelineEntry, text: str, person: ExportedPerson) -> str:
    """Return the text of an entry without the token of another device, which took an alias or an address."""
    for other in (token for detail in entry.details for token in (detail.alias_taken.token, detail.address_taken)):
        if other and other not in person.names:
            text = text.replace(other, _OTHER)
    return text


async def _push(backend: Backend, person: ExportedPerson, token: str, entry: TimelineEntry) -> PersonPush:
    try:
        audit = await push_of(backend, person.app.appkey, str(entry.msgid), token, allow_behind=False, device_only=True)
    except (NotFoundError, falcon.HTTPNotFound):
        return PersonPush(title=entry.push_title, content_json="", is_waiting=False)
    is_waiting = _is_waiting(audit.device, entry.msgid, person.app)
    return PersonPush(title=entry.push_title, content_json=_content(audit.request_json), is_waiting=is_waiting)


def _is_waiting(push: PushOnDevice, msgid: int, app: App) -> bool:
    over = _OVER | _OVER_ON_IOS if app.platform == PLATFORM_IOS else _OVER
    return not any(entry.event in over and entry.msgid in (0, msgid) for entry in push.timeline)


def _content(request_json: str) -> str:
    """Return a request of any interface without those to whom it goes; "" for one that was too long to be kept."""
    try:
        request: Any = msgspec.json.decode(request_json)
    except msgspec.DecodeError:
        return ""
    if not isinstance(request, dict):
        return ""
    return msgspec.json.encode({name: value for name, value in request.items() if name not in _TARGETS}).decode()


class PersonFile(Page):
    """GET answers with everything that is held about a person as one JSON object, a page at a time."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app, name = self.app(appkey), (request.get_param("name") or "").strip()
        person = await find_person(self.site, visit_of(request), app, name)
        response.content_type = falcon.MEDIA_JSON
        response.downloadable_as = f"person-{appkey}.json"
        response.stream = _written(self.site, person)


async def _written(backend: Backend, person: ExportedPerson) -> AsyncIterator[bytes]:
    """Yield a `Person` as JSON. After an error the text has no end, so that nobody takes it for the whole."""
    names = list(Person.__struct_fields__)
    opened, separator = 0, b""
    yield b'{"%s":[' % names[0].encode()
    async with aclosing(export_pages(backend, person)) as pages:
        async for page in pages:
            for number, name in enumerate(names):
                for entry in getattr(page, name):
                    while opened < number:
                        opened, separator = opened + 1, b""
                        yield b'],"%s":[' % names[opened].encode()
                    yield separator + msgspec.json.encode(entry)
                    separator = b","
    for name in names[opened + 1 :]:
        yield b'],"%s":[' % name.encode()
    yield b"]}"
