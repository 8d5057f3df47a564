"""Devices, explanations and statistics in answers."""

from typing import Annotated, Literal

import msgspec

from console.apps.answers import PLATFORMS, TimeMs
from console.audit.answers import Behind, ChannelCounts, DeviceAudit, Next, PushOnDevice
from console.devices.erasures import KnownErasure, backups_until_ms, waiting_for
from console.overview.installation import InstallationState
from edge.core.parsing.fields import Count, described
from protos.accounts.v1.accounts_pb2 import PendingChange
from protos.registry.v1 import registry_pb2
from protos.registry.v1.devices_pb2 import Device as StoredDevice
from services.domain.addresses import address_hash, channel_name, fingerprint

_Content = Annotated[
    str, described("The request of the push as JSON, without its targets; empty if it was too long to be kept.")
]
_Alias = Annotated[str | None, described("Its alias, or null.")]


class ChannelAddress(msgspec.Struct, frozen=True):
    """An address of a device on a channel, without what it is."""

    channel: Annotated[str, described("The channel, such as webpush.")]
    fingerprint: Annotated[str, described("The first 8 hexadecimal digits of its hash, to compare addresses by.")]
    since_ms: TimeMs


class LostAddress(msgspec.Struct, frozen=True):
    """An address that a device had last on a channel, on which it has none now."""

    channel: Annotated[str, described("The channel, such as webpush.")]
    fingerprint: Annotated[str, described("The first 8 hexadecimal digits of its hash, to compare addresses by.")]
    lost_ms: TimeMs
    dead_reason: Annotated[str, described("The vendor's reason, if the vendor said that the address is dead.")]
    to_token: Annotated[str, described("The device that set the same address later, if one did.")]


class ListedAddress(msgspec.Struct, frozen=True):
    """An address of a device of the app."""

    token: Annotated[str, described("The device.")]
    channel: Annotated[str, described("The channel, such as webpush.")]
    fingerprint: Annotated[str, described("The first 8 hexadecimal digits of its hash, to compare addresses by.")]
    since_ms: Annotated[int | None, described("Since when the device has it; null of a dead one.")]
    dead_ms: Annotated[int | None, described("When it was removed as dead; null: it is in use.")]
    dead_reason: Annotated[str, described("The vendor's reason, of a dead one.")]


class AddressList(msgspec.Struct, frozen=True):
    """A page of the app's addresses by token, or of its dead ones, the latest first."""

    addresses: Annotated[list[ListedAddress], described("The addresses.")]
    next: Next


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device. A removed one is kept without its connection."""

    appkey: Annotated[str, described("The app.")]
    token: Annotated[str, described("The token.")]
    platform: Annotated[str, described("android or ios.")]
    registered_ms: TimeMs
    alias: _Alias
    tags: Annotated[list[int], described("Its numeric tags.")]
    stags: Annotated[list[str], described("Its string tags.")]
    attributes: Annotated[dict[str, str], described("Its attributes, such as region; those that it has reported.")]
    addresses: Annotated[list[ChannelAddress], described("Its addresses on channels.")]
    addresses_lost: Annotated[list[LostAddress], described("The addresses that it lost and has not replaced.")]
    removed_ms: Annotated[int | None, described("When it was removed; null: it is registered.")]
    removed_reason: Annotated[str, described("Why it was removed.")]


class DeviceList(msgspec.Struct, frozen=True):
    """The device with a token, or those with an alias, the most recently active first."""

    devices: Annotated[list[Device], described("The devices.")]


class PushDevice(msgspec.Struct, frozen=True):
    """A device of a push."""

    msgid: Annotated[int, described("The message id that the push has for the device.")]
    token: Annotated[str, described("The device; empty while its record is not in the store.")]


class PushDevices(msgspec.Struct, frozen=True):
    """A page of the devices of a push in one state."""

    devices: Annotated[list[PushDevice], described("The devices.")]
    next: Next
    records_behind: Behind


class DeviceMessage(msgspec.Struct, frozen=True):
    """The outcome of one message on a device."""

    msgid: Annotated[int, described("The message id.")]
    event: Annotated[str, described("The latest event, such as received.")]
    time_ms: TimeMs
    is_waiting: Annotated[bool, described("Whether the device still waits for it.")]
    title: Annotated[str, described("The title of the push, or else the beginning of its text; empty if not known.")]


class DeviceHistory(DeviceAudit, frozen=True, kw_only=True):
    """What happened to a device, and its messages."""

    messages: Annotated[list[DeviceMessage], described("Its messages, the newest first.")]


class DeviceAnswer(msgspec.Struct, frozen=True):
    """Why one device got a push or not."""

    token: Annotated[str, described("The device.")]
    alias: _Alias
    sentence: Annotated[str, described("The answer in one sentence.")]
    kind: Annotated[str, described("good: it got the push; bad: it will not; warn: it may still.")]
    push: Annotated[PushOnDevice, described("The records behind it.")]


class WhyAnswer(msgspec.Struct, frozen=True):
    """Why the devices of a user got a push or not."""

    msgid: Annotated[int, described("The push.")]
    title: Annotated[str, described("Its title, if it has one.")]
    text: Annotated[str, described("Its content.")]
    devices: Annotated[list[DeviceAnswer], described("The answer for each device.")]
    records_behind: Behind


class TestDevice(msgspec.Struct, frozen=True):
    """A team's test device."""

    team: Annotated[str, described("The team.")]
    token: Annotated[str, described("The device.")]
    name: Annotated[str, described("What the team calls it.")]


class PersonTask(msgspec.Struct, frozen=True):
    """A timed push that lists the person."""

    task_key: Annotated[str, described("The task.")]
    status: Annotated[str, described("unsent, sent, cancelled, expired or failed.")]
    created_ms: TimeMs
    due_ms: TimeMs
    content_json: _Content


class PersonDraft(msgspec.Struct, frozen=True):
    """A draft that lists the person."""

    draft_id: Annotated[str, described("The draft.")]
    status: Annotated[str, described("waiting, approved, rejected, withdrawn, sent or expired.")]
    created_ms: TimeMs
    content_json: _Content


class PersonAction(msgspec.Struct, frozen=True):
    """Something that an account or an operator did, whose record names the person."""

    time_ms: TimeMs
    action: Annotated[str, described("What was done.")]
    actor: Annotated[str, described("user/ID or token/ID; empty for an operator.")]
    interface: Annotated[str, described("console or cli.")]


class PersonPush(msgspec.Struct, frozen=True, kw_only=True):
    """A push that was addressed to a device."""

    title: Annotated[str, described("Its title, or else the beginning of its text; empty if not known.")]
    content_json: _Content
    is_waiting: Annotated[bool, described("Whether the device may still get it.")]


class PersonEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a device or to a push on it."""

    token: Annotated[str, described("The device.")]
    first_ms: TimeMs
    last_ms: TimeMs
    event: Annotated[str, described("The event, such as connected, logged in, audience or received.")]
    count: Annotated[Count, described("How often.")]
    detail: Annotated[str, described("One line about it.")]
    msgid: Annotated[int | None, described("The message or push that it is about, or null.")]
    push: Annotated[PersonPush | None, described("With the event audience: the push; null otherwise.")]


class ErasedPerson(msgspec.Struct, frozen=True):
    """What an erasure does."""

    erasure_id: Annotated[str | None, described("The id of the erasure; null in a dry run.")]
    devices: Annotated[int, described("Devices that are erased.")]
    time_ms: Annotated[int | None, described("When the erasure was recorded; null in a dry run.")]
    not_forgotten: Annotated[list[str], described("What still holds values of the person, and until when.")]
    waits_until_ms: Annotated[
        int | None,
        described("Set: nothing is erased yet. Until when the erasure waits for another administrator to confirm it."),
    ] = None


ErasureState = Literal["waiting", "done"]


class Erasure(msgspec.Struct, frozen=True):
    """An erasure of a person. It does not say who the person was."""

    erasure_id: Annotated[str, described("The id.")]
    devices: Annotated[int, described("Devices that were erased.")]
    time_ms: Annotated[int, described("When the erasure was recorded.")]
    actor: Annotated[str, described("Who asked for it: user/ID or token/ID; empty for an operator.")]
    state: Annotated[ErasureState, described("`done`: every role has forgotten the person, and the log says so.")]
    waiting_for: Annotated[
        list[str],
        described("Roles that have not forgotten the person on their disks yet, or are away at present."),
    ]
    done_ms: Annotated[int | None, described("When every role had forgotten the person; null until it is recorded.")]
    backups_until_ms: Annotated[
        int | None,
        described("Until when backups from before `done_ms` are kept; null until then, and where that is not known."),
    ]


class WaitingErasure(msgspec.Struct, frozen=True):
    """An erasure that another administrator of the team, or one of the installation, has to confirm."""

    erasure_id: Annotated[str, described("The id that the erasure has once it is confirmed.")]
    devices: Annotated[int, described("Devices that the person had when it was asked for.")]
    created_ms: Annotated[int, described("When it was asked for.")]
    expires_ms: Annotated[int, described("Until when it can be confirmed.")]
    actor: Annotated[str, described("Who asked for it: user/ID or token/ID.")]


class ErasureList(msgspec.Struct, frozen=True):
    """Erasures of an app, the latest first."""

    erasures: Annotated[list[Erasure], described("The erasures.")]
    unconfirmed: Annotated[
        list[WaitingErasure], described("Those that wait for another administrator; on the first page alone.")
    ] = []
    next: Next = ""


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is held about the devices of a person."""

    devices: Annotated[list[Device], described("The records of the devices.")] = []
    test_devices: Annotated[list[TestDevice], described("The devices among those that teams test with.")] = []
    tasks: Annotated[list[PersonTask], described("Timed pushes that list the person.")] = []
    drafts: Annotated[list[PersonDraft], described("Drafts that list the person.")] = []
    actions: Annotated[list[PersonAction], described("What accounts did that names the person, the newest first.")] = []
    history: Annotated[list[PersonEvent], described("What happened to each device, the latest first.")] = []


class PersonPage(Person, frozen=True, kw_only=True):
    """A page of everything that is held about a person; the lists of all pages together are the whole."""

    next: Next = ""


class StatisticsRow(msgspec.Struct, frozen=True):
    """The numbers of a day, of a value of the category, or of a push."""

    date: Annotated[str, described("The day; empty for the whole period.")]
    info: Annotated[str | None, described("The value of the category; null without one.")]
    msgid: Annotated[int | None, described("The push; null for none.")]
    counts: Annotated[dict[str, float], described("The numbers by their names.")]
    channels: Annotated[
        list[ChannelCounts],
        described("By channel; none where all rows left by own connections only, or by Apple's own service only."),
    ] = []


class Statistics(msgspec.Struct, frozen=True):
    """Statistics of an app."""

    kind: Annotated[str, described("The type.")]
    rows: Annotated[list[StatisticsRow], described("The rows.")]


def erasure_answer(erasure: KnownErasure, installation: InstallationState, backup_days: int | None) -> Erasure:
    return Erasure(
        erasure.erasure_id,
        erasure.devices,
        erasure.time_ms,
        erasure.actor,
        "waiting" if erasure.done_ms is None else "done",
        waiting_for(installation, erasure),
        erasure.done_ms,
        backups_until_ms(erasure, backup_days),
    )


def waiting_erasure(change: PendingChange) -> WaitingErasure:
    erase = change.erase
    return WaitingErasure(erase.erasure_id, erase.devices, change.created_ms, change.expires_ms, change.proposed_by)


def listed_address(found: registry_pb2.ListedAddress) -> ListedAddress:
    return ListedAddress(
        token=found.token,
        channel=channel_name(found.channel),
        fingerprint=fingerprint(found.hash),
        since_ms=found.since_ms or None,
        dead_ms=found.dead_ms or None,
        dead_reason=found.dead_reason,
    )


def device_record(device: StoredDevice) -> Device:
    found = {field.name: value for field, value in device.attributes.ListFields()}
    return Device(
        appkey=device.appkey,
        token=device.token,
        platform=PLATFORMS[device.platform],
        registered_ms=device.registered_ms,
        alias=device.alias or None,
        tags=list(device.tags),
        stags=list(device.stags),
        attributes=found,
        addresses=[
            ChannelAddress(
                channel_name(each.channel), fingerprint(address_hash(each.channel, each.address)), each.since_ms
            )
            for each in device.addresses
        ],
        addresses_lost=[
            LostAddress(
                channel_name(each.channel), fingerprint(each.hash), each.lost_ms, each.dead_reason, each.to_token
            )
            for each in device.addresses_lost
        ],
        removed_ms=device.removed_ms or None,
        removed_reason=device.removed_reason,
    )
