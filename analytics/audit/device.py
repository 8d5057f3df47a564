"""The audit of one device: the commands to it with their origins, its states, sessions, pushes and messages."""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from pyroaring import BitMap

from analytics.audit.details import (
    DESCRIPTION,
    addresses,
    origins,
    platform,
    read_details,
    reasons,
    stags,
    tags,
)
from analytics.audit.timeline import by_time, entry, of_message, of_outcome
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditDeviceRequest, AuditDeviceResponse, TimelineEntry
from protos.analytics.v1.details_pb2 import AliasCleared, AttributeValue, Detail, RequestedChange
from services.domain.ios_tokens import spellings
from services.errors import Code, InputError, NotFoundError

# The records of a device's states over time, and the changes from each state to the next.

LATEST = 1000
"""Audits read at most this many states, commands, session events, pushes and outcomes: the latest ones."""

_STATES = f"""
SELECT * EXCEPT _offset FROM (
SELECT partition, number, toUnixTimestamp64Milli(time) AS time_ms, platform, toUnixTimestamp64Milli(registered),
  toUnixTimestamp64Milli(removed), removed_reason, has_alias, alias, tags, stags, addresses,
  {", ".join(DESCRIPTION)}, _offset
FROM devices FINAL WHERE appkey = {{appkey:String}} AND token = {{token:String}}
  AND time < fromUnixTimestamp64Milli({{before_ms:Int64}})
ORDER BY time DESC LIMIT {{limit:UInt32}} WITH TIES
) ORDER BY _offset
"""  # noqa: S608


_FAR_FUTURE_MS = 4_000_000_000_000


class HistoryPart(NamedTuple):
    """What happened to a device before `before_ms`: at most about `limit` entries of each kind, the latest ones."""

    before_ms: int = _FAR_FUTURE_MS
    limit: int = LATEST

    @classmethod
    def of(cls, request: AuditDeviceRequest) -> "HistoryPart":
        """Return what a request asks for. InputError: its time or its limit is out of bounds."""
        if not 0 <= request.before_ms <= _FAR_FUTURE_MS:
            raise InputError("before_ms is no time")
        if request.limit > LATEST:
            raise InputError(f"limit must be from 1 to {LATEST}")
        return cls(request.before_ms or _FAR_FUTURE_MS, request.limit or LATEST)


_LATEST_PART = HistoryPart()


class PartReader:
    """Reads the rows of one part of a history. Before `complete_from_ms` rows are missing, because of the limit."""

    def __init__(self, clickhouse: ClickHouse, part: HistoryPart) -> None:
        self.part = part
        self.complete_from_ms = 0
        self._clickhouse = clickhouse

    async def rows(
        self, query: str, parameters: Mapping[str, Any], time_at: int = 1, limit: int | None = None
    ) -> Sequence[Sequence[Any]]:
        """Return the latest rows; `time_at` is the place of their time. Rows of the same time are never divided."""
        limit = limit or self.part.limit
        rows = await self._clickhouse.rows(query, {**parameters, "before_ms": self.part.before_ms, "limit": limit})
        if len(rows) >= limit:
            self.note_from(min(row[time_at] for row in rows))
        return rows

    async def rows_at_any_time(self, query: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return await self._clickhouse.rows(query, parameters)

    def note_from(self, time_ms: int) -> None:
        """Note that rows from before this time may be missing."""
        self.complete_from_ms = max(self.complete_from_ms, time_ms)


class DeviceRecord(NamedTuple):
    """A row of `devices`: the state of a device from `time_ms` on."""

    partition: int
    number: int
    time_ms: int
    platform: str
    registered_ms: int
    removed_ms: int
    removed_reason: str
    alias: str | None
    tags: frozenset[int]
    stags: frozenset[str]
    addresses: frozenset[str]
    description: tuple[str, ...]

    def attribute(self, name: str) -> str:
        return self.description[DESCRIPTION.index(name)]


async def find_device(clickhouse: ClickHouse, appkey: str, given: str) -> tuple[str, list[DeviceRecord]]:
    """Return a token as it is registered and the device's states; the token as given and no states if it is unknown."""
    for token in spellings(given):
        if states := await device_records(clickhouse, appkey, token):
            return token, states
    return given, []


async def device_records(clickhouse: ClickHouse, appkey: str, token: str) -> list[DeviceRecord]:
    """Return the latest ingested records in order. The log keeps earlier ones only until it is compacted."""
    return await _records(PartReader(clickhouse, _LATEST_PART), appkey, token)


async def _records(reader: PartReader, appkey: str, token: str) -> list[DeviceRecord]:
    rows = await reader.rows(_STATES, {"appkey": appkey, "token": token}, time_at=2)
    return [_state(row) for row in rows]


def state_entries(states: Sequence[DeviceRecord]) -> list[TimelineEntry]:
    """Return an entry for the registration, and one for each change of the state."""
    first = states[0]
    nothing = first._replace(
        alias=None,
        tags=frozenset(),
        stags=frozenset(),
        addresses=frozenset(),
        description=("",) * len(DESCRIPTION),
    )
    details = [platform(first.platform)]
    if first.time_ms > first.registered_ms:
        states = [nothing._replace(removed_ms=0), *states]
    else:
        details += _difference(nothing, first)
    registered = entry("registered", first.registered_ms, details=details)
    return [registered, *(change for before, after in pairwise(states) for change in _changes(before, after))]


def _changes(before: DeviceRecord, after: DeviceRecord) -> list[TimelineEntry]:
    difference = _difference(before, after)
    if after.removed_ms and not before.removed_ms:
        return [entry("removed", after.removed_ms, details=reasons(after.removed_reason))]
    if (before.removed_ms and not after.removed_ms) or before.number != after.number:
        return [entry("registered again", after.time_ms, details=difference)]
    return [entry("changed", after.time_ms, details=difference)] if difference else []


def _difference(before: DeviceRecord, after: DeviceRecord) -> list[Detail]:
    return [
        *([] if before.alias == after.alias else [_alias(after.alias)]),
        *tags(after.tags - before.tags),
        *tags(before.tags - after.tags, removed=True),
        *stags(after.stags - before.stags),
        *stags(before.stags - after.stags, removed=True),
        *addresses(after.addresses - before.addresses),
        *addresses(before.addresses - after.addresses, removed=True),
        *(
            Detail(attribute=AttributeValue(name=name, value=new))
            for name, old, new in zip(DESCRIPTION, before.description, after.description, strict=True)
            if old != new
        ),
    ]


def _alias(alias: str | None) -> Detail:
    return Detail(alias_cleared=AliasCleared()) if alias is None else Detail(alias=alias)


def _state(row: Sequence[Any]) -> DeviceRecord:
    has_alias, alias, tags_, stags_, addresses_, *description = row[7:]
    known = (
        alias if has_alias else None,
        frozenset(tags_),
        frozenset(stags_),
        frozenset(addresses_),
        tuple(description),
    )
    return DeviceRecord._make((*row[:7], *known))


_OF_COMMANDS = """
SELECT * EXCEPT _offset FROM (
SELECT partition, toUnixTimestamp64Milli(time) AS time_ms, command, base64Encode(details),
  writer, interface, address, request_id, _offset
FROM device_commands FINAL WHERE appkey = {appkey:String} AND %s
  AND time < fromUnixTimestamp64Milli({before_ms:Int64})
ORDER BY time DESC LIMIT {limit:UInt32} WITH TIES
) ORDER BY time_ms DESC, _offset DESC
"""
_COMMANDS = _OF_COMMANDS % "token = {token:String}"
_COMMANDS_TO_ALL = _OF_COMMANDS % "token = '' AND partition = {partition:UInt16}"
_SESSIONS = """
SELECT kind, toUnixTimestamp64Milli(time), reason FROM sessions FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND number IN {numbers:Array(UInt32)}
  AND time < fromUnixTimestamp64Milli({before_ms:Int64})
ORDER BY time DESC LIMIT {limit:UInt32} WITH TIES
"""
_MESSAGES = """
SELECT kind, toUnixTimestamp64Milli(time), msgid, reason, via, simulated FROM deliveries FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND number IN {numbers:Array(UInt32)}
  AND time < fromUnixTimestamp64Milli({before_ms:Int64})
ORDER BY time DESC LIMIT {limit:UInt32} WITH TIES
"""
_AUDIENCES = """
SELECT toUnixTimestamp64Milli(time), msgid, toUnixTimestamp64Milli(expires), base64Encode(audience)
FROM push_partitions FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND event = 'started' AND count > 0
  AND time < fromUnixTimestamp64Milli({before_ms:Int64})
ORDER BY time DESC LIMIT {limit:UInt32} WITH TIES
"""
_PUSHES = """
SELECT msgid, if(title = '', text, title), kind = 'unicast', arraySort(arrayDistinct(arrayFilter(
  (id_offset, number, partition) -> partition = {partition:UInt16} AND has({numbers:Array(UInt32)}, number),
  target_offsets, target_numbers, target_partitions)))
FROM pushes FINAL WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)}
"""
_CANCELLED = """
SELECT msgid, toUnixTimestamp64Milli(min(time)) FROM push_partitions FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND event = 'cancelled'
  AND msgid IN {msgids:Array(UInt64)}
GROUP BY msgid
"""
_SESSION_EVENTS = {
    "opened": "connected",
    "closed": "disconnected",
    "app_opened": "app opened",
    "logged_in": "logged in",
    "logged_out": "logged out",
}


_CAUSES = ("alias_taken", "address_taken", "reason")
"""The details of a command that say why a device lost something."""


class CommandRecord(NamedTuple):
    """A row of `device_commands`; `details` are in base64."""

    partition: int
    time_ms: int
    command: str
    details: str
    writer: str
    interface: str
    address: str
    request_id: str

    @property
    def requested_change(self) -> Detail:
        return Detail(requested_change=RequestedChange(command=self.command, details=read_details(self.details)))

    @property
    def causes(self) -> list[Detail]:
        """Why the device changed: what took its alias or address, and where the command came from."""
        parts = read_details(self.details)
        return [*(part for part in parts if part.WhichOneof("detail") in _CAUSES), *self.origins]

    @property
    def origins(self) -> list[Detail]:
        return origins(self.writer, self.interface, self.address, self.request_id)


async def audit_device(
    clickhouse: ClickHouse, appkey: str, token: str, zone: ZoneInfo, part: HistoryPart = _LATEST_PART
) -> AuditDeviceResponse:
    """Return a part of the device's timeline. NotFoundError: the store has neither the device nor a command to it."""
    reader = PartReader(clickhouse, part)
    registered, known = await find_device(clickhouse, appkey, token)
    if known:
        token, commands = registered, await _commands(reader, appkey, registered, known)
    else:
        token, commands = await _commands_to_unknown(reader, appkey, token)
    is_whole = part == _LATEST_PART and len(known) < LATEST
    states = known if is_whole or not known else await _records(reader, appkey, token)
    entries = _with_origins(state_entries(states or known[:1]) if known else [], commands)
    events = await _events(reader, appkey, [*known, *states]) if known else []
    found = [one for one in (*entries, *events) if one.first_ms < part.before_ms]
    return AuditDeviceResponse(
        appkey=appkey, token=token, timeline=by_time(found, zone), complete_from_ms=reader.complete_from_ms
    )


async def _commands_to_unknown(reader: PartReader, appkey: str, given: str) -> tuple[str, list[CommandRecord]]:
    """Return the first spelling of an unregistered token that has commands, and these. NotFoundError: none has."""
    for token in spellings(given):
        if commands := await _commands(reader, appkey, token, []):
            return token, commands
    raise NotFoundError(Code.LOG_WITHOUT_DEVICE)


async def _commands(reader: PartReader, appkey: str, token: str, states: Sequence[DeviceRecord]) -> list[CommandRecord]:
    """Return the commands to the device, and the commands to all devices of its partition since it registered."""
    parameters = {"appkey": appkey, "token": token}
    rows = [*await reader.rows(_COMMANDS, parameters)]
    if states:
        to_all = await reader.rows(_COMMANDS_TO_ALL, {**parameters, "partition": states[0].partition})
        rows += [row for row in to_all if row[1] >= states[0].registered_ms]
    return [CommandRecord(*row) for row in rows]


def _with_origins(entries: Sequence[TimelineEntry], commands: Sequence[CommandRecord]) -> list[TimelineEntry]:
    """Return the changes with the causes that their commands name, and an entry for each command without a change.

    A device's record has the time of the command that it results from.
    """
    changed_ms = {change.first_ms for change in entries}
    for change in entries:
        for command in commands:
            if command.time_ms == change.first_ms:
                change.details.extend(cause for cause in command.causes if cause not in change.details)
    unchanged = [command for command in commands if command.time_ms not in changed_ms]
    return [
        *entries,
        *(entry("asked", one.time_ms, details=[one.requested_change, *one.origins]) for one in unchanged),
    ]


async def _events(reader: PartReader, appkey: str, states: Sequence[DeviceRecord]) -> list[TimelineEntry]:
    """Return entries of the device's sessions, of the audiences it was in, and of outcomes of its messages."""
    numbers, is_ios = {state.number for state in states}, states[-1].platform == "ios"
    parameters = {"appkey": appkey, "partition": states[-1].partition, "numbers": sorted(numbers)}
    return [
        *(
            entry(_SESSION_EVENTS.get(kind, kind), time_ms, details=reasons(reason))
            for kind, time_ms, reason in await reader.rows(_SESSIONS, parameters)
        ),
        *await _audience_entries(reader, parameters, numbers),
        *(
            of_outcome(*each, simulated=simulated, is_ios=is_ios)
            for *each, simulated in await reader.rows(_MESSAGES, parameters)
        ),
    ]


async def _audience_entries(
    reader: PartReader, parameters: Mapping[str, Any], numbers: AbstractSet[int]
) -> list[TimelineEntry]:
    """Return an entry for each push with the device in its audience, whether it was delivered or not.

    Each entry of a list is a message of its own: for a push to a list, return one for each time it names the device.
    """
    found = [
        (time_ms, msgid, expires_ms)
        for time_ms, msgid, expires_ms, audience in await reader.rows(_AUDIENCES, parameters, time_at=0, limit=LATEST)
        if BitMap(numbers).intersect(BitMap.deserialize(b64decode(audience)))
    ]
    if len(found) >= reader.part.limit:
        reader.note_from(found[reader.part.limit - 1][0])
        found = [row for row in found if row[0] >= reader.complete_from_ms]
    of_these = {**parameters, "msgids": [msgid for _, msgid, _ in found]}
    pushes = await reader.rows_at_any_time(_PUSHES, of_these)
    cancelled_ms = {row[0]: row[1] for row in await reader.rows_at_any_time(_CANCELLED, of_these)}
    titles = {msgid: title for msgid, title, _, _ in pushes}
    messages = {msgid: [msgid + offset for offset in offsets] for msgid, _, is_list, offsets in pushes if is_list}
    entries = []
    for time_ms, msgid, expires_ms in found:
        for message in messages.get(msgid, [msgid]):
            made = of_message("audience", time_ms, message, is_push=msgid not in messages)
            made.push_title = titles.get(msgid, "")
            made.push_expires_ms, made.push_cancelled_ms = expires_ms, cancelled_ms.get(msgid, 0)
            entries.append(made)
    return entries
