"""Calls about devices. Each is noted in the audit before it is answered."""

from datetime import datetime

import falcon
import msgspec

from console.audit.answers import device_answer, on_device_answer
from console.devices import actions
from console.devices.answers import (
    AddressList,
    DeviceAnswer,
    DeviceHistory,
    DeviceList,
    DeviceMessage,
    ErasedPerson,
    ErasureList,
    PersonPage,
    PushDevice,
    PushDevices,
    WhyAnswer,
    device_record,
    listed_address,
)
from console.devices.erasures import NOT_FORGOTTEN
from console.devices.explanation import Words
from console.devices.export import export_page, find_person
from console.devices.why import why
from console.pushes.actions import latest_pushes
from console.pushes.view import content
from console.shell.access import Requester
from console.shell.backend import Backend, app_of
from console.shell.languages import english
from console.shell.requests import (
    AddressListParams,
    DeviceParams,
    DeviceSearchParams,
    ErasureListParams,
    ErasureParams,
    PersonParams,
    PushDevicesParams,
    WhyParams,
)


async def find_devices(backend: Backend, requester: Requester, params: DeviceSearchParams) -> DeviceList:
    """Look up the device with a token, or those with an alias. The reading is noted in the audit."""
    app = app_of(backend, params.appkey)
    await actions.note_data_read(backend, requester, app.appkey, params.name)
    found = await actions.find_devices(backend, app.appkey, params.name)
    return DeviceList([device_record(device) for device in found])


async def device_history(backend: Backend, requester: Requester, params: DeviceParams) -> DeviceHistory:
    """Return what happened to the device with a token. The reading is noted in the audit."""
    app = app_of(backend, params.appkey)
    await actions.note_data_read(backend, requester, app.appkey, params.token)
    found = await actions.history_of(backend, app.appkey, params.token, allow_behind=params.allow_behind)
    listed = actions.messages_of(found.timeline, backend.clock.now_ms())
    messages = [DeviceMessage(*message) for message in listed]
    return DeviceHistory(**msgspec.structs.asdict(device_answer(found)), messages=messages)


async def export_person(backend: Backend, requester: Requester, params: PersonParams) -> PersonPage:
    """Export everything that is held about a person, as JSON in pages. Each page is noted in the audit.

    The audit names the account, the app and the number of devices, but not whose data it was. Everything that names
    other people is left out: targets of pushes, tokens of other devices, and the addresses themselves. Until analytics
    has read the newest records of the log, the answer is 503.
    """
    person = await find_person(backend, requester, app_of(backend, params.appkey), params.name)
    return await export_page(backend, person, params.cursor, params.limit)


async def erase_person(backend: Backend, requester: Requester, params: ErasureParams) -> ErasedPerson:
    """Erase a person for ever: the devices with an alias, or the device with a token. There is no way back.

    The devices, their addresses and tags, and the contents of pushes to them are forgotten by every role, and what the
    log, its archive and its backups hold about them opens no more. Statistics do not change. The audit names the
    account, the app and the number of devices, but not the person. A dry run only says how many devices there are. The
    answer is 409 where the installation does not seal personal values. Where the team asks for a second person, the
    erasure waits until another administrator confirms it in the console.
    """
    app = app_of(backend, params.appkey)
    erased = await actions.erase_person(
        *(backend, requester, app.appkey), alias=params.alias, token=params.token, dry_run=params.dry_run
    )
    return ErasedPerson(
        erased.erasure_id or None,
        erased.devices,
        erased.time_ms or None,
        list(NOT_FORGOTTEN),
        erased.pending.expires_ms or None,
    )


async def list_erasures(backend: Backend, requester: Requester, params: ErasureListParams) -> ErasureList:
    """List the erasures of an app, the latest first, each with the time of its end or the roles that it waits for.

    An erasure is done when every role has forgotten the person in what it keeps on disk too, and the log says when. A
    process that does not answer forgets before it is ready again; until then the erasure waits for its role.
    """
    app = app_of(backend, params.appkey)
    return await actions.list_erasures(backend, app.appkey, params.cursor, params.limit)


async def list_addresses(backend: Backend, requester: Requester, params: AddressListParams) -> AddressList:
    """List the addresses of an app's devices on channels, or the dead ones. The reading is noted, by tokens.

    The addresses themselves are never shown, because anyone who knows one can send to the device. A dead address is
    listed until the device sets another one on the channel.
    """
    app = app_of(backend, params.appkey)
    page = await actions.list_addresses(
        *(backend, requester, app.appkey, params.channel, params.cursor, params.limit), dead=params.dead
    )
    return AddressList([listed_address(each) for each in page.addresses], page.following)


async def list_push_devices(backend: Backend, requester: Requester, params: PushDevicesParams) -> PushDevices:
    """List the devices of a push that are in one state for one reason. The reading is noted in the audit, by tokens.

    A device of a list of tokens or aliases is there once for each of its message ids.
    """
    app = app_of(backend, params.appkey)
    page = await actions.devices_in_state(
        *(backend, requester, app.appkey, str(params.msgid), params.state, params.reason),
        pos=params.cursor,
        limit=params.limit,
        category=params.category,
        info=params.info,
        allow_behind=params.allow_behind,
    )
    found = [PushDevice(device.msgid, device.token) for device in page.devices]
    return PushDevices(found, page.pos, page.records_behind)


async def why_not(backend: Backend, requester: Requester, params: WhyParams) -> WhyAnswer:
    """Say why the devices of a user got a push or not. The reading is noted in the audit."""
    app = app_of(backend, params.appkey)
    await actions.note_data_read(backend, requester, app.appkey, params.name, str(params.msgid or ""))
    found = await actions.find_devices(backend, app.appkey, params.name)
    if not found:
        raise falcon.HTTPNotFound(description="the app has no device with this alias or token")
    msgid = params.msgid
    if msgid is None:
        rows = (await latest_pushes(backend, [app], 1)).rows
        if not rows:
            raise falcon.HTTPNotFound(description="the app has sent no broadcast or multicast; give a msgid")
        msgid = rows[0].counts.msgid

    def moment(time_ms: int) -> str:
        return datetime.fromtimestamp(time_ms / 1000, backend.zone).isoformat(" ", "seconds")

    answers = await why(backend, app.appkey, str(msgid), found, Words(english(), moment))
    words = content(answers.request_json)
    of_devices = [
        DeviceAnswer(
            answer.device.token,
            answer.device.alias or None,
            answer.explanation.sentence,
            answer.explanation.kind,
            on_device_answer(answer.push),
        )
        for answer in answers.of_devices
    ]
    return WhyAnswer(msgid, words.title, words.text, of_devices, answers.records_behind)
