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
from protos.analytics.v1.analytics_pb2 import AuditDeviceResponse, TimelineEntry
from protos.analytics.v1.details_pb2 import AliasCleared, AttributeValue, Detail, RequestedChange
from services.domain.ios_tokens import spellings
from services.errors import Code, NotFoundError

# The records of a device's states over time, and the changes from each state to the next.

LATEST = 1000
"""Audits read at most this many states, commands, session events, pushes and outcomes: the latest ones."""

_STATES = f"""
SELECT partition, number, toUnixTimestamp64Milli(time), platform, toUnixTimestamp64Milli(registered),
  toUnixTimestamp64Milli(removed), removed_reason, has_alias, alias, tags, stags, addresses,
  {", ".join(DESCRIPTION)}
FROM devices FINAL WHERE appkey = {{appkey:String}} AND token = {{token:String}}
ORDER BY _offset DESC LIMIT {{limit:UInt32}}
"""  # noqa: S608


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
    """Return the ingested records in order. The log keeps earlier ones only until it is compacted."""
    rows = await clickhouse.rows(_STATES, {"appkey": appkey, "token": token, "limit": LATEST})
    return [_state(row) for row in reversed(rows)]


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


_COMMANDS = """
SELECT partition, toUnixTimestamp64Milli(time), command, base64Encode(details),
  writer, interface, address, request_id
FROM device_commands FINAL WHERE appkey = {appkey:String} AND token = {token:String}
ORDER BY time DESC, _offset DESC LIMIT {limit:UInt32}
"""
_COMMANDS_TO_ALL = """
SELECT partition, toUnixTimestamp64Milli(time), command, base64Encode(details),
  writer, interface, address, request_id
FROM device_commands FINAL WHERE appkey = {appkey:String} AND token = '' AND partition = {partition:UInt16}
ORDER BY time DESC, _offset DESC LIMIT {limit:UInt32}
"""
_SESSIONS = """
SELECT kind, toUnixTimestamp64Milli(time), reason FROM sessions FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND number IN {numbers:Array(UInt32)}
ORDER BY time DESC LIMIT {limit:UInt32}
"""
_MESSAGES = """
SELECT kind, toUnixTimestamp64Milli(time), msgid, reason, via, simulated FROM deliveries FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND number IN {numbers:Array(UInt32)}
ORDER BY time DESC LIMIT {limit:UInt32}
"""
_AUDIENCES = """
SELECT toUnixTimestamp64Milli(time), msgid, base64Encode(audience) FROM push_partitions FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND event = 'started' AND count > 0
ORDER BY time DESC LIMIT {limit:UInt32}
"""
_PUSHES = """
SELECT msgid, if(title = '', text, title), kind = 'unicast', arraySort(arrayDistinct(arrayFilter(
  (id_offset, number, partition) -> partition = {partition:UInt16} AND has({numbers:Array(UInt32)}, number),
  target_offsets, target_numbers, target_partitions)))
FROM pushes FINAL WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)}
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


async def audit_device(clickhouse: ClickHouse, appkey: str, token: str, zone: ZoneInfo) -> AuditDeviceResponse:
    """Return the device's timeline. NotFoundError: the store has neither the device nor a command to it."""
    registered, states = await find_device(clickhouse, appkey, token)
    if states:
        token, commands = registered, await _commands(clickhouse, appkey, registered, states)
    else:
        token, commands = await _commands_to_unknown(clickhouse, appkey, token)
    entries = _with_origins(state_entries(states) if states else [], commands)
    events = await _events(clickhouse, appkey, states) if states else []
    return AuditDeviceResponse(appkey=appkey, token=token, timeline=by_time([*entries, *events], zone))


async def _commands_to_unknown(clickhouse: ClickHouse, appkey: str, given: str) -> tuple[str, list[CommandRecord]]:
    """Return the first spelling of an unregistered token that has commands, and these. NotFoundError: none has."""
    for token in spellings(given):
        if commands := await _commands(clickhouse, appkey, token, []):
            return token, commands
    raise NotFoundError(Code.LOG_WITHOUT_DEVICE)


async def _commands(
    clickhouse: ClickHouse, appkey: str, token: str, states: Sequence[DeviceRecord]
) -> list[CommandRecord]:
    """Return the commands to the device, and those to all devices of its partition since it registered."""
    parameters = {"appkey": appkey, "token": token, "limit": LATEST}
    rows = [*await clickhouse.rows(_COMMANDS, parameters)]
    if states:
        to_all = await clickhouse.rows(_COMMANDS_TO_ALL, {**parameters, "partition": states[0].partition})
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


async def _events(clickhouse: ClickHouse, appkey: str, states: Sequence[DeviceRecord]) -> list[TimelineEntry]:
    """Return entries of the device's sessions, of the audiences it was in, and of outcomes of its messages."""
    numbers = {state.number for state in states}
    parameters = {"appkey": appkey, "partition": states[-1].partition, "numbers": sorted(numbers), "limit": LATEST}
    return [
        *(
            entry(_SESSION_EVENTS.get(kind, kind), time_ms, details=reasons(reason))
            for kind, time_ms, reason in await clickhouse.rows(_SESSIONS, parameters)
        ),
        *await _audience_entries(clickhouse, parameters, numbers),
        *(
            of_outcome(*outcome, simulated=simulated)
            for *outcome, simulated in await clickhouse.rows(_MESSAGES, parameters)
        ),
    ]


async def _audience_entries(
    clickhouse: ClickHouse, parameters: Mapping[str, Any], numbers: AbstractSet[int]
) -> list[TimelineEntry]:
    """Return an entry for each push with the device in its audience, whether it was delivered or not.

    Each entry of a list is a message of its own: for a push to a list, return one for each time it names the device.
    """
    found = [
        (time_ms, msgid)
        for time_ms, msgid, audience in await clickhouse.rows(_AUDIENCES, parameters)
        if BitMap(numbers).intersect(BitMap.deserialize(b64decode(audience)))
    ]
    pushes = await clickhouse.rows(_PUSHES, {**parameters, "msgids": [msgid for _, msgid in found]})
    titles = {msgid: title for msgid, title, _, _ in pushes}
    messages = {msgid: [msgid + offset for offset in offsets] for msgid, _, is_list, offsets in pushes if is_list}
    entries = []
    for time_ms, msgid in found:
        for message in messages.get(msgid, [msgid]):
            made = of_message("audience", time_ms, message, is_push=msgid not in messages)
            made.push_title = titles.get(msgid, "")
            entries.append(made)
    return entries
