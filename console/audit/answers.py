"""Audits of pushes, devices and apps in answers and in the output of commands."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from console.apps.answers import TimeMs
from edge.core.parsing.fields import Count, described
from protos.analytics.v1 import analytics_pb2 as stored

Behind = Annotated[Count, described("Newest records of the log that the answer does not include yet.")]
_Appkey = Annotated[str, described("The app.")]
Next = Annotated[str, described("The `cursor` of the next page; empty: this was the last one.")]


class TimelineEntry(msgspec.Struct, frozen=True):
    """An event that happened once or several times between two moments."""

    first_ms: TimeMs
    last_ms: TimeMs
    event: Annotated[str, described("The event.")]
    count: Annotated[Count, described("How often.")]
    detail: Annotated[str, described("One line about it.")]


class PartitionSize(msgspec.Struct, frozen=True):
    """Devices of the audience in a partition."""

    partition: Annotated[Count, described("The partition.")]
    devices: Annotated[Count, described("The devices; one that a list names twice counts twice.")]


class StateCount(msgspec.Struct, frozen=True):
    """Devices that a push has left in one state, for one reason."""

    state: Annotated[str, described("The state, such as received.")]
    reason: Annotated[str, described("The reason; empty for none.")]
    devices: Annotated[Count, described("The devices.")]


class ChannelCounts(msgspec.Struct, frozen=True):
    """Devices that one channel was sent a push for. Each count includes devices with a later outcome."""

    channel: Annotated[str, described("own for Carillon's connections, apns for Apple, else its name, as webpush.")]
    simulated: Annotated[
        bool, described("A simulator answered in the place of its service: nothing left the installation.")
    ]
    sent: Annotated[Count, described("Devices to which it was sent, or for which the service took it over.")]
    received: Annotated[Count, described("Of these, devices that received it.")]
    shown: Annotated[Count, described("Of these, devices that showed it.")]
    clicked: Annotated[Count, described("Of these, devices on which it was clicked.")]


ByChannel = Annotated[
    list[ChannelCounts],
    described("By channel; none where only own connections, or only Apple's own service, were sent it."),
]


class Clause(msgspec.Struct, frozen=True):
    """A condition of the push's filter."""

    text: Annotated[str, described("The condition.")]
    holds: Annotated[bool, described("Whether it held for the device when the push started.")]
    found: Annotated[str, described("The device's value then.")]


class PushOnDevice(msgspec.Struct, frozen=True):
    """A push on one device."""

    token: Annotated[str, described("The device.")]
    in_audience: Annotated[bool, described("Whether it was in the audience.")]
    verdict: Annotated[str, described("Why, in one line.")]
    clauses: Annotated[list[Clause], described("The conditions of the filter.")]
    timeline: Annotated[list[TimelineEntry], described("The outcomes on the device.")]


class PushAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a push."""

    msgid: Annotated[int, described("The message id.")]
    appkey: _Appkey
    kind: Annotated[str, described("broadcast, multicast or unicast.")]
    audience: Annotated[str, described("The audience as text.")]
    audience_count: Annotated[Count, described("Devices of the audience.")]
    partitions: Annotated[list[PartitionSize], described("The audience by partition.")]
    request_json: Annotated[str, described("The request as accepted.")]
    timeline: Annotated[list[TimelineEntry], described("What happened, in order.")]
    states: Annotated[list[StateCount], described("Each device of the audience is in one state.")]
    device: Annotated[PushOnDevice | UnsetType, described("The push on the device that was asked for.")] = UNSET
    records_behind: Behind
    channels: ByChannel = []


class DeviceAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a device."""

    appkey: _Appkey
    token: Annotated[str, described("The device.")]
    timeline: Annotated[list[TimelineEntry], described("What happened, in order.")]
    records_behind: Behind


class AppTimeline(msgspec.Struct, frozen=True):
    """A page of what happened to an app, the oldest first."""

    timeline: Annotated[list[TimelineEntry], described("The entries.")]
    next: Next
    records_behind: Behind


class ActionEntry(msgspec.Struct, frozen=True):
    """Something that an account or an operator did."""

    time_ms: TimeMs
    actor: Annotated[str, described("user/ID or token/ID; empty for an operator.")]
    who: Annotated[str, described("The log-in name of the user or the name of the token.")]
    action: Annotated[str, described("What was done.")]
    team_id: Annotated[str, described("The team that it concerns, or empty.")]
    appkey: Annotated[str, described("The app that it concerns, or empty.")]
    detail: Annotated[str, described("One line about it.")]
    interface: Annotated[str, described("console or cli.")]
    address: Annotated[str, described("Where it came from.")]
    request_id: Annotated[str, described("The id of the request.")]


class ActionList(msgspec.Struct, frozen=True):
    """A page of what accounts and operators did, the newest first."""

    actions: Annotated[list[ActionEntry], described("The actions.")]
    next: Next
    records_behind: Behind


def timeline_answer(entries: Iterable[stored.TimelineEntry]) -> list[TimelineEntry]:
    return [TimelineEntry(e.first_ms, e.last_ms, e.event, e.count, e.detail) for e in entries]


def push_answer(answer: stored.AuditPushResponse) -> PushAudit:
    """Return the audit of a push as answers and commands show it."""
    return PushAudit(
        msgid=answer.msgid,
        appkey=answer.appkey,
        kind=answer.kind,
        audience=answer.audience,
        audience_count=answer.audience_count,
        partitions=[PartitionSize(size.partition, size.devices) for size in answer.partitions],
        request_json=answer.request_json,
        timeline=timeline_answer(answer.timeline),
        states=[StateCount(count.state, count.reason, count.devices) for count in answer.states],
        device=on_device_answer(answer.device) if answer.HasField("device") else UNSET,
        records_behind=answer.records_behind,
        channels=channels_answer(answer.channels),
    )


def channels_answer(channels: Iterable[stored.ChannelCounts]) -> list[ChannelCounts]:
    return [ChannelCounts(*(getattr(each, name) for name in ChannelCounts.__struct_fields__)) for each in channels]


def on_device_answer(push: stored.PushOnDevice) -> PushOnDevice:
    clauses = [Clause(clause.text, clause.holds, clause.found) for clause in push.clauses]
    return PushOnDevice(push.token, push.in_audience, push.verdict, clauses, timeline_answer(push.timeline))


def device_answer(answer: stored.AuditDeviceResponse) -> DeviceAudit:
    """Return the audit of a device as answers and commands show it."""
    return DeviceAudit(
        appkey=answer.appkey,
        token=answer.token,
        timeline=timeline_answer(answer.timeline),
        records_behind=answer.records_behind,
    )
