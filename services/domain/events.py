"""Events for other systems, made of the records of the log: the same record makes the same events, with the same ids.

An event's id is the event id of its fact, with the row behind it where a fact makes several. Records of a compacted
topic hold the whole state of a device, of which one part is new: what happened is recognised by its time, which is the
record's, and its id is a hash of what happened, so another record that tells of it makes an event with the same id.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple, assert_never

import numpy

from protos.accounts.v1.drafts_pb2 import DraftFact
from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, PushFact
from protos.push.v1.push_pb2 import Kind, PushCommand
from protos.registry.v1.apps_pb2 import App, AppFact, EventKind
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from protos.webhooks.v1.push_ends_pb2 import PushEnded, PushEndFact, PushEnding
from services.domain.addresses import channel_name
from services.domain.topics import APPS, DELIVERIES, DEVICES, DRAFTS, PUSH_COMMANDS, PUSH_ENDS, PUSHES, decode
from services.domain.webhooks import KIND_NAMES, team_of_scope, team_scope
from services.log.port import LOG_UNAVAILABLE, Log, Partition, Record
from services.log.topics import Topic
from services.process.retries import retry_until_available
from services.replica.catch_up import read_until
from services.replica.dead_letters import UNUSABLE

SOURCES: Sequence[Topic] = (PUSH_COMMANDS, APPS, DRAFTS, DEVICES, PUSHES, DELIVERIES, PUSH_ENDS)
"""The topics whose records make events."""

NO_DEVICE = (-1, -1)

_OUTCOMES: Mapping[int, "EventKind.ValueType"] = MappingProxyType(
    {
        OutcomeKind.OUTCOME_KIND_SENT: EventKind.EVENT_KIND_MESSAGE_SENT,
        OutcomeKind.OUTCOME_KIND_RECEIVED: EventKind.EVENT_KIND_MESSAGE_RECEIVED,
        OutcomeKind.OUTCOME_KIND_SHOWN: EventKind.EVENT_KIND_MESSAGE_SHOWN,
        OutcomeKind.OUTCOME_KIND_CLICKED: EventKind.EVENT_KIND_MESSAGE_CLICKED,
        OutcomeKind.OUTCOME_KIND_DISMISSED: EventKind.EVENT_KIND_MESSAGE_DISMISSED,
        OutcomeKind.OUTCOME_KIND_FAILED: EventKind.EVENT_KIND_MESSAGE_FAILED,
        OutcomeKind.OUTCOME_KIND_EXPIRED: EventKind.EVENT_KIND_MESSAGE_EXPIRED,
        OutcomeKind.OUTCOME_KIND_CANCELLED: EventKind.EVENT_KIND_MESSAGE_CANCELLED,
        OutcomeKind.OUTCOME_KIND_DROPPED: EventKind.EVENT_KIND_MESSAGE_DROPPED,
        OutcomeKind.OUTCOME_KIND_HANDED_OVER: EventKind.EVENT_KIND_MESSAGE_HANDED_OVER,
    }
)
"""The kind of event that an outcome makes. Claims and returns are steps between two of these."""

_DECISIONS = ("approved", "rejected", "withdrawn")
_PUSH_KINDS = {Kind.KIND_BROADCAST: "broadcast", Kind.KIND_MULTICAST: "multicast", Kind.KIND_UNICAST: "unicast"}

DRAFT_KINDS: Collection["EventKind.ValueType"] = frozenset(
    {EventKind.EVENT_KIND_DRAFT_WAITS, EventKind.EVENT_KIND_DRAFT_DECIDED, EventKind.EVENT_KIND_DRAFT_EXPIRED}
)
"""The kinds of events about drafts: a record makes one event for each app of the draft, and one for its team."""

Wanted = Mapping[str, Collection["EventKind.ValueType"]]
"""The kinds of events that are wanted, by scope: of an app, or of a team as a whole. Nothing is made of the others."""


class Event(NamedTuple):
    """Something that happened in an app. `data` names the device by its token, unless `device` does: see `as_json`.

    `msgid`: the message that it is about, 0 for none. `device`: the partition and number of a device whose token is to
    be looked up, or NO_DEVICE. `team_id`: that of an event of a team as a whole, whose `appkey` is empty.
    """

    kind: "EventKind.ValueType"
    id: str
    time_ms: int
    appkey: str
    data: Mapping[str, Any]
    msgid: int = 0
    device: tuple[int, int] = NO_DEVICE
    team_id: str = ""

    @property
    def scope(self) -> str:
        """The app or the team that it is about, as webhooks have them."""
        return team_scope(self.team_id) if self.team_id else self.appkey

    def as_json(self, token: str | None = None, *, with_app: bool = False) -> dict[str, Any]:
        """Return the event as receivers get it. `token`: that of `device`; None if the device is removed.

        `with_app`: it names its app, for a receiver of the events of several.
        """
        data = dict(self.data)
        if with_app and self.appkey:
            data = {"appkey": self.appkey, **data}
        if self.device != NO_DEVICE:
            data["token"] = token
        return {"id": self.id, "type": KIND_NAMES[self.kind], "timestamp": timestamp(self.time_ms), "data": data}


def timestamp(time_ms: int) -> str:
    """Return the time in UTC as ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Draft(NamedTuple):
    """The team of a draft, and the apps to which its pushes go."""

    team_id: str = ""
    appkeys: tuple[str, ...] = ()


class DraftApps:
    """The teams and apps of drafts, by draft id: the facts that decide on a draft name it by its id alone."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next = 0
        self._drafts: dict[str, _Draft] = {}

    async def catch_up(self, end: int) -> None:
        """Note the drafts in the records of `drafts` before this offset."""
        partition = Partition(DRAFTS.name, 0)
        begins = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.begins([partition]), role="webhooks")
        self._next = max(self._next, begins[partition])
        async with aclosing(read_until("webhooks", self._log, {partition: self._next}, {partition: end})) as batches:
            async for records, offsets in batches:
                for record in records:
                    with suppress(*UNUSABLE):  # whoever decides on drafts has recorded it as a dead letter
                        self.note(decode(record))
                self._next = offsets[partition]

    def note(self, fact: DraftFact) -> None:
        if fact.HasField("submitted"):
            draft = fact.submitted.draft
            appkeys = tuple(dict.fromkeys(push.appkey for push in draft.task.pushes))
            self._drafts[fact.draft_id] = _Draft(draft.team_id, appkeys)

    def of(self, draft_id: str) -> _Draft:
        """Return what is known of a draft; an unknown one has neither a team nor apps."""
        return self._drafts.get(draft_id, _Draft())


class EventTranslator:
    """Makes the events of records, read in the order of each partition. `app` returns an app by its appkey."""

    def __init__(self, app: Callable[[str], App | None], drafts: DraftApps) -> None:
        self._app = app
        self._drafts = drafts

    def events(self, record: Record, message: Any, wanted: Wanted) -> Iterator[Event]:
        """Yield the wanted events of a record, which counts: its writer was the owner. `message`: its envelope."""
        source = _Source(message.meta, record)
        match message:
            case PushCommand():
                found = _of_push_command(source, message)
            case PushFact():
                found = _of_push(source, message)
            case DeliveryFact():
                yield from _of_outcomes(source, message, wanted)
                return
            case DeviceFact():
                found = _of_device(source, message)
            case PushEndFact():
                found = _of_push_end(source, message)
            case DraftFact():
                self._drafts.note(message)
                found = self._of_draft(source, message)
            case AppFact():
                found = self._of_app(source, message, wanted)
            case _:
                found = iter(())
        yield from (event for event in found if event.kind in wanted.get(event.scope, ()))

    def _of_draft(self, source: "_Source", fact: DraftFact) -> Iterator[Event]:
        name = fact.WhichOneof("fact") or ""
        if name == "submitted":
            kind, submitted = EventKind.EVENT_KIND_DRAFT_WAITS, fact.submitted.draft
            data: dict[str, Any] = {
                "draft": fact.draft_id,
                "version": submitted.version,
                "devices": submitted.estimated_devices,
                "expires_at": timestamp(submitted.expires_ms),
            }
        elif name in _DECISIONS:
            kind = EventKind.EVENT_KIND_DRAFT_DECIDED
            data = {"draft": fact.draft_id, "decision": name}
            if fact.rejected.reason:
                data["reason"] = fact.rejected.reason
        elif name == "expired":
            kind = EventKind.EVENT_KIND_DRAFT_EXPIRED
            data = {"draft": fact.draft_id, "expires_at": timestamp(fact.expired.expires_ms)}
        else:
            return
        draft = self._drafts.of(fact.draft_id)
        for appkey in draft.appkeys:
            yield source.event(kind, appkey, data, suffix=appkey)
        if draft.team_id:
            of_team = source.event(kind, "", {"appkeys": list(draft.appkeys), **data}, suffix=draft.team_id)
            yield of_team._replace(team_id=draft.team_id)

    def _of_app(self, source: "_Source", fact: AppFact, wanted: Wanted) -> Iterator[Event]:
        match fact.WhichOneof("fact"):
            case "changed" if fact.changed.action in ("paused", "resumed"):
                is_pause, appkey = fact.changed.action == "paused", fact.changed.appkey
                kind = EventKind.EVENT_KIND_APP_PAUSED if is_pause else EventKind.EVENT_KIND_APP_RESUMED
                data: dict[str, Any] = {"reason": "\n".join(fact.changed.settings), "all_apps": not appkey}
                for each in [appkey] if appkey else [scope for scope in wanted if not team_of_scope(scope)]:
                    yield source.event(kind, each, data, suffix=each)
            case "broadcasts":
                count, app = fact.broadcasts, self._app(fact.broadcasts.appkey)
                if app is not None and count.count and count.count == app.quotas.broadcasts_per_day:
                    data = {"quota": "broadcasts_per_day", "limit": count.count, "day": count.day}
                    kind = EventKind.EVENT_KIND_QUOTA_REACHED
                    yield source.happened(kind, count.appkey, source.time_ms, data, count.day)
            case "quota_reached":
                reached = fact.quota_reached
                data = {"quota": reached.quota, "limit": reached.limit, "day": reached.day}
                yield source.event(EventKind.EVENT_KIND_QUOTA_REACHED, reached.appkey, data)
            case _:
                return


class _Source:
    """The record that events are made of."""

    def __init__(self, meta: Meta, record: Record) -> None:
        self.time_ms = meta.time_ms
        self.partition = record.partition
        self._id = meta.event_id.hex() or f"{record.topic}-{record.partition}-{record.offset}"

    def id(self, row: int | str) -> str:
        return f"{self._id}.{row}"

    def event(
        self, kind: "EventKind.ValueType", appkey: str, data: Mapping[str, Any], msgid: int = 0, suffix: str = ""
    ) -> Event:
        """Return the event of this record; `suffix` tells apart several of them."""
        return Event(kind, self.id(suffix) if suffix else self._id, self.time_ms, appkey, data, msgid)

    def happened(
        self, kind: "EventKind.ValueType", appkey: str, time_ms: int, data: Mapping[str, Any], *names: object
    ) -> Event:
        """Return an event that other records may report too; the names and the time identify it."""
        text = "\0".join(map(str, (kind, appkey, time_ms, *names)))
        return Event(kind, hashlib.blake2b(text.encode(), digest_size=16).hexdigest(), time_ms, appkey, data)


def _of_push_command(source: _Source, command: PushCommand) -> Iterator[Event]:
    if not command.HasField("send"):
        return
    send = command.send
    data: dict[str, Any] = {"msgid": send.msgid, "kind": _PUSH_KINDS.get(send.kind, ""), "messages": send.id_count or 1}
    if send.task_key:
        data["task"] = send.task_key
    if send.label:
        data["label"] = send.label
    yield source.event(EventKind.EVENT_KIND_PUSH_ACCEPTED, send.appkey, data, send.msgid)


def _of_push(source: _Source, fact: PushFact) -> Iterator[Event]:
    data: dict[str, Any] = {"msgid": fact.msgid, "partition": fact.partition}
    match fact.WhichOneof("fact"):
        case "started":
            if fact.started.count:
                data |= {"devices": fact.started.count, "expires_at": timestamp(fact.started.expires_ms)}
                yield source.event(EventKind.EVENT_KIND_PUSH_STARTED, fact.appkey, data, fact.msgid)
        case "cancelled":
            yield source.event(EventKind.EVENT_KIND_PUSH_CANCELLED, fact.appkey, data, fact.msgid)
        case "failed":
            data["reason"] = fact.failed.reason
            yield source.event(EventKind.EVENT_KIND_PUSH_FAILED, fact.appkey, data, fact.msgid)
        case "finished" | None:
            return
        case never:
            assert_never(never)


_COUNTS = tuple(
    field.name for field in PushEnded.DESCRIPTOR.fields if field.name not in ("msgid", "appkey", "kind", "ending")
)


def _of_push_end(source: _Source, fact: PushEndFact) -> Iterator[Event]:
    if not fact.HasField("ended"):
        return
    ended = fact.ended
    data: dict[str, Any] = {
        "msgid": ended.msgid,
        "kind": _PUSH_KINDS.get(ended.kind, ""),
        "ending": PushEnding.Name(ended.ending).removeprefix("PUSH_ENDING_").lower(),
        **{name: getattr(ended, name) for name in _COUNTS},
    }
    yield source.event(EventKind.EVENT_KIND_PUSH_FINISHED, ended.appkey, data, ended.msgid)


def _of_outcomes(source: _Source, fact: DeliveryFact, wanted: Wanted) -> Iterator[Event]:
    first_row = 0
    for outcomes in fact.outcomes.apps:
        kinds = wanted.get(outcomes.appkey, ())
        if any(_OUTCOMES.get(kind) in kinds for kind in set(outcomes.kinds)):
            yield from _of_app_outcomes(source, outcomes, first_row, kinds)
        first_row += len(outcomes.kinds)


def _of_app_outcomes(
    source: _Source, outcomes: AppOutcomes, first_row: int, wanted: Collection["EventKind.ValueType"]
) -> Iterator[Event]:
    """ValueError: the columns do not have one length."""
    rows = len(outcomes.kinds)
    columns = (
        numpy.frombuffer(outcomes.msgids, "<u8").tolist(),
        numpy.frombuffer(outcomes.numbers, "<u4").tolist(),
        outcomes.kinds,
        numpy.frombuffer(outcomes.times_ms, "<i8").tolist(),
        outcomes.reason_indexes,
        outcomes.channels or bytes(rows),
    )
    for row, (msgid, number, outcome, time_ms, reason, channel) in enumerate(zip(*columns, strict=True), first_row):
        kind = _OUTCOMES.get(outcome)
        if kind is None or kind not in wanted:
            continue
        data: dict[str, Any] = {"msgid": msgid}
        if reason:
            data["reason"] = outcomes.reasons[reason - 1]
        if channel:
            data["channel"] = channel_name(channel)
        yield Event(kind, source.id(row), time_ms, outcomes.appkey, data, msgid, (source.partition, number))


def _of_device(source: _Source, fact: DeviceFact) -> Iterator[Event]:
    if not fact.HasField("device"):
        return
    device, time_ms = fact.device, source.time_ms

    def happened(kind: "EventKind.ValueType", at_ms: int, *names: object, **data: object) -> Event:
        data = {"token": device.token} | data
        return source.happened(kind, device.appkey, at_ms, data, device.token, device.number, *names)

    if device.removed_ms:
        removed = EventKind.EVENT_KIND_DEVICE_REMOVED
        yield happened(removed, device.removed_ms, reason=device.removed_reason)
    elif device.registered_ms == time_ms:
        yield happened(EventKind.EVENT_KIND_DEVICE_REGISTERED, time_ms)
    yield from _losses(device, time_ms, happened)


def _losses(device: Device, time_ms: int, happened: Callable[..., Event]) -> Iterator[Event]:
    lost = device.alias_lost
    if device.HasField("alias_lost") and lost.lost_ms == time_ms:
        evicted = EventKind.EVENT_KIND_ALIAS_EVICTED
        yield happened(evicted, time_ms, lost.alias, alias=lost.alias, to_token=lost.to_token or None)
    for address in device.addresses_lost:
        if address.dead_reason and address.lost_ms == time_ms:
            name, reason = channel_name(address.channel), address.dead_reason
            yield happened(EventKind.EVENT_KIND_ADDRESS_DEAD, time_ms, name, channel=name, reason=reason)
