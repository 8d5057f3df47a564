"""Devices: found by token or alias, with their messages and history. Each reading is noted in the audit first."""

import asyncio
import re
from collections.abc import Sequence
from typing import NamedTuple

import falcon

from console.devices.answers import ErasureList, erasure_answer, waiting_erasure
from console.devices.explanation import ENDED, GOT
from console.shell.access import Requester
from console.shell.backend import ANALYTICS_S, Backend
from console.shell.calls import after
from console.shell.numbers import MAX_MSGID, message_id, whole_number
from console.statistics.actions import category_of
from protos.accounts.v1.accounts_pb2 import DataRead, PendingChange
from protos.accounts.v1.service_pb2 import (
    ErasePersonRequest,
    ErasePersonResponse,
    ListChangesRequest,
    NoteDataReadRequest,
)
from protos.analytics.v1.analytics_pb2 import (
    AuditDeviceRequest,
    AuditDeviceResponse,
    ListPushDevicesRequest,
    ListPushDevicesResponse,
    TimelineEntry,
)
from protos.registry.v1.apps_pb2 import CHANNEL_UNSPECIFIED, Channel
from protos.registry.v1.devices_pb2 import Device
from protos.registry.v1.registry_pb2 import (
    FindAliasesRequest,
    GetDevicesRequest,
    ListAddressesRequest,
    ListedAddress,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.addresses import CHANNELS
from services.domain.ios_tokens import spellings
from services.domain.topics import device_key
from services.errors import InputError, NotFoundError
from services.log.topics import partition_of

MAX_NAME = 400
_POSITION = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})\.(.{1,400})")


class ListedMessage(NamedTuple):
    """One message in a device's history: its latest event, and whether the device still waits for it.

    `title`: the title of the push, or else the beginning of its text; "" if neither is known.
    """

    msgid: int
    event: str
    time_ms: int
    is_waiting: bool
    title: str


async def note_data_read(
    backend: Backend, requester: Requester, appkey: str, name: str = "", msgid: str = "", tokens: Sequence[str] = ()
) -> None:
    """Note in the log that the account reads data of devices: by alias or token, or by `tokens` of an audience.

    Raises the error of the call if it fails.
    """
    read = DataRead(appkey=appkey, name=name, msgid=whole_number(msgid, MAX_MSGID) or 0, tokens=tokens)
    await backend.roles.log_ins.NoteDataRead(NoteDataReadRequest(read=read, origin=requester.origin))


async def history_of(backend: Backend, appkey: str, token: str, *, allow_behind: bool = True) -> AuditDeviceResponse:
    """Return the timeline of a device; an empty one for a device without records."""
    asked = AuditDeviceRequest(appkey=appkey, token=token, allow_behind=allow_behind)
    try:
        return await backend.roles.analytics.AuditDevice(asked, timeout=ANALYTICS_S)
    except NotFoundError:
        return AuditDeviceResponse(appkey=appkey, token=token)


async def devices_in_state(
    backend: Backend,
    requester: Requester,
    appkey: str,
    msgid: str,
    state: str,
    reason: str,
    *,
    pos: str,
    limit: int,
    category: str = "",
    info: str = "",
    allow_behind: bool = True,
) -> ListPushDevicesResponse:
    """Return a page of the devices that are in a state for a reason, once the reading of them is noted.

    With a category, only those that had the value `info` of it when the push started. HTTP 404: the app has no
    push with this id. InputError: no page has named the position, or there is no such category.
    """
    asked = ListPushDevicesRequest(
        msgid=message_id(msgid), state=state, reason=reason, pos=pos, limit=limit, info=info, allow_behind=allow_behind
    )
    if category:
        asked.category = category_of(category)
    page = await backend.roles.analytics.ListPushDevices(asked, timeout=ANALYTICS_S)
    if page.appkey != appkey:
        raise falcon.HTTPNotFound
    if tokens := [device.token for device in page.devices if device.token]:
        await note_data_read(backend, requester, appkey, msgid=msgid, tokens=tokens)
    return page


async def find_devices(backend: Backend, appkey: str, name: str) -> list[Device]:
    """Return the device with this token, removed ones too, or else the devices with this alias."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        return []
    of_spellings = await asyncio.gather(*(_devices(backend, appkey, token) for token in spellings(name)))
    if found := [device for devices in of_spellings for device in devices]:
        return [min(found, key=lambda device: device.removed_ms > 0)]
    registries = backend.roles.peers.all("registry")
    owner = registries[partition_of(device_key(appkey, name), len(registries))]
    asked = FindAliasesRequest(appkey=appkey, aliases=[name])
    (answer,) = (await RegistryServiceStub(owner).FindAliases(asked)).aliases
    of_alias = await asyncio.gather(*(_devices(backend, appkey, entry.token) for entry in answer.devices))
    return [device for devices in of_alias for device in devices if not device.removed_ms]


async def _devices(backend: Backend, appkey: str, token: str) -> list[Device]:
    partition = partition_of(device_key(appkey, token), backend.roles.partitions)
    registry = RegistryServiceStub(backend.roles.peers.owner("registry", partition))
    asked = GetDevicesRequest(appkey=appkey, tokens=[token], removed_too=True)
    return list((await registry.GetDevices(asked)).devices)


async def erase_person(
    backend: Backend, requester: Requester, appkey: str, *, alias: str = "", token: str = "", dry_run: bool = False
) -> ErasePersonResponse:
    """Erase the devices with an alias, or the one with a token; in a dry run only count them.

    Where the app's team asks for a second person, the erasure waits: the answer has `pending`.
    InputError: neither or both are given. NotFoundError: the app has no such device. ConflictError: personal values are
    not sealed.
    """
    if bool(alias) == bool(token):
        raise InputError("give either an alias or a token")
    asked = ErasePersonRequest(appkey=appkey, origin=requester.origin, dry_run=dry_run)
    if alias:
        asked.alias = alias
    else:
        asked.token = token
    erased = await backend.roles.accounts.ErasePerson(asked)
    if not dry_run:
        await backend.erasures.refresh()
    return erased


async def list_erasures(backend: Backend, appkey: str, cursor: str, limit: int) -> ErasureList:
    """Return a page of the erasures of an app, the latest first. InputError: no page has returned the cursor."""
    before = after(cursor, MAX_MSGID) or None
    await backend.erasures.refresh()
    found = backend.erasures.latest(appkey, before, limit + 1)
    installation = await backend.observer.read()
    page = found[:limit]
    listed = [erasure_answer(erasure, installation, backend.backup_days) for erasure in page]
    waiting = [] if before else [waiting_erasure(each) for each in await _unconfirmed(backend, appkey)]
    return ErasureList(listed, waiting, str(page[-1].offset) if len(found) > limit else "")


async def _unconfirmed(backend: Backend, appkey: str) -> list[PendingChange]:
    """Return the erasures of an app that wait for another administrator."""
    team_id = backend.accounts.team_of(appkey)
    if not team_id:
        return []
    found = await backend.roles.accounts.ListChanges(ListChangesRequest(team_ids=[team_id]))
    return [change for change in found.changes if change.erase.appkey == appkey]


class AddressPage(NamedTuple):
    """A page of the addresses of an app, and the position of the following one; "" if there is none."""

    addresses: Sequence[ListedAddress]
    following: str


async def list_addresses(
    backend: Backend, requester: Requester, appkey: str, channel: str, pos: str, limit: int, *, dead: bool
) -> AddressPage:
    """Return a page of the app's addresses, or of its dead ones, once the reading of their devices is noted.

    InputError: no page has named the position.
    """
    asked = ListAddressesRequest(
        appkey=appkey, dead=dead, channel=CHANNELS.get(channel, CHANNEL_UNSPECIFIED), limit=limit + 1
    )
    if pos:
        asked.after.CopyFrom(_position(pos))
    registries = map(RegistryServiceStub, backend.roles.peers.all("registry"))
    pages = await asyncio.gather(*(registry.ListAddresses(asked) for registry in registries))
    found = sorted(
        (one for page in pages for one in page.addresses), key=lambda one: (-one.dead_ms, one.token, one.channel)
    )
    page, is_last = found[:limit], len(found) <= limit
    if page:
        await note_data_read(backend, requester, appkey, tokens=sorted({one.token for one in page}))
    following = "" if is_last else f"{page[-1].dead_ms}.{page[-1].channel}.{page[-1].token}"
    return AddressPage(page, following)


def _position(pos: str) -> ListedAddress:
    found = _POSITION.fullmatch(pos)
    if found is None:
        raise InputError("cursor must be the `next` of the page before")
    return ListedAddress(dead_ms=int(found[1]), channel=Channel.ValueType(int(found[2])), token=found[3])


def messages_of(timeline: Sequence[TimelineEntry], now_ms: int) -> list[ListedMessage]:
    """Return the messages in a device's history as they are now, the newest first.

    No outcome is recorded of a push that a device without a connection did not get in time.
    """
    events: dict[int, dict[str, int]] = {}
    ends: dict[int, tuple[str, int]] = {}
    titles = {entry.msgid: entry.push_title for entry in timeline if entry.push_title}
    for entry in timeline:
        if entry.msgid:
            events.setdefault(entry.msgid, {})[entry.event] = entry.last_ms
        if entry.push_cancelled_ms:
            ends[entry.msgid] = "cancelled", entry.push_cancelled_ms
        elif 0 < entry.push_expires_ms <= now_ms:
            ends[entry.msgid] = "expired", entry.push_expires_ms
    return [
        _message(msgid, events[msgid], ends.get(msgid), titles.get(msgid, "")) for msgid in sorted(events, reverse=True)
    ]


def _message(msgid: int, events: dict[str, int], end: tuple[str, int] | None, title: str) -> ListedMessage:
    event = next(name for name in (*GOT, *ENDED, "sent", "audience", *events) if name in events)
    if event == "audience" and end is not None:
        return ListedMessage(msgid, *end, is_waiting=False, title=title)
    is_waiting = event in ("sent", "audience") and end is None
    return ListedMessage(msgid, event, events[event], is_waiting, title)
