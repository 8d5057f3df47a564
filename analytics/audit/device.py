"""What happened to one device: what was asked for and by whom, its states, sessions and messages."""

from base64 import b64decode
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from pyroaring import BitMap

from analytics.audit.device_states import LATEST, State, device_states, state_entries
from analytics.audit.timeline import entry, in_order, joined, source
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditDeviceResponse, TimelineEntry
from services.runtime.errors import NotFoundError

_COMMANDS = """
SELECT partition, toUnixTimestamp64Milli(time), command, detail, writer, door, address, request_id
FROM device_commands FINAL WHERE appkey = {appkey:String} AND token = {token:String}
ORDER BY time DESC, _offset DESC LIMIT {limit:UInt32}
"""
_COMMANDS_TO_ALL = """
SELECT partition, toUnixTimestamp64Milli(time), command, detail, writer, door, address, request_id
FROM device_commands FINAL WHERE appkey = {appkey:String} AND token = '' AND partition = {partition:UInt16}
ORDER BY time DESC, _offset DESC LIMIT {limit:UInt32}
"""
_SESSIONS = """
SELECT kind, toUnixTimestamp64Milli(time), reason FROM sessions FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND number IN {numbers:Array(UInt32)}
ORDER BY time DESC LIMIT {limit:UInt32}
"""
_MESSAGES = """
SELECT kind, toUnixTimestamp64Milli(time), msgid, reason FROM deliveries FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND number IN {numbers:Array(UInt32)}
ORDER BY time DESC LIMIT {limit:UInt32}
"""
_AUDIENCES = """
SELECT toUnixTimestamp64Milli(time), msgid, base64Encode(audience) FROM push_partitions FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND event = 'started' AND count > 0
ORDER BY time DESC LIMIT {limit:UInt32}
"""
_SESSION_EVENTS = {
    "opened": "connected",
    "closed": "disconnected",
    "app_opened": "app opened",
    "logged_in": "logged in",
    "logged_out": "logged out",
}


class Command(NamedTuple):
    """A row of `device_commands`."""

    partition: int
    time_ms: int
    command: str
    detail: str
    writer: str
    door: str
    address: str
    request_id: str

    @property
    def source(self) -> str:
        return source(self.writer, self.door, self.address, self.request_id)


async def audit_device(clickhouse: ClickHouse, appkey: str, token: str) -> AuditDeviceResponse:
    """NotFoundError: the log knows no such device, and nobody asked for anything about it."""
    states = await device_states(clickhouse, appkey, token)
    commands = await _commands(clickhouse, appkey, token, states)
    if not states and not commands:
        raise NotFoundError("the event log knows no device with this token in this app")
    entries = _explained(state_entries(states) if states else [], commands)
    happened = await _happened(clickhouse, appkey, states) if states else []
    return AuditDeviceResponse(appkey=appkey, token=token, timeline=in_order([*entries, *happened]))


async def _commands(clickhouse: ClickHouse, appkey: str, token: str, states: Sequence[State]) -> list[Command]:
    """What was asked for: of the device, and since it is there of all devices of its partition."""
    parameters = {"appkey": appkey, "token": token, "limit": LATEST}
    rows = [*await clickhouse.rows(_COMMANDS, parameters)]
    if states:
        to_all = await clickhouse.rows(_COMMANDS_TO_ALL, {**parameters, "partition": states[0].partition})
        rows += [row for row in to_all if row[1] >= states[0].registered_ms]
    return [Command(*row) for row in rows]


def _explained(entries: Sequence[TimelineEntry], commands: Sequence[Command]) -> list[TimelineEntry]:
    """The changes, each with who asked for it, and what was asked for without a record of its own that came of it.

    A record bears the time of the command that it comes from.
    """
    changed_ms = {change.first_ms for change in entries}
    for change in entries:
        sources = dict.fromkeys(command.source for command in commands if command.time_ms == change.first_ms)
        change.detail = joined(change.detail, *sources)
    asked = [command for command in commands if command.time_ms not in changed_ms]
    return [
        *entries,
        *(
            entry("asked", command.time_ms, detail=joined(f"{command.command}: {command.detail}", command.source))
            for command in asked
        ),
    ]


async def _happened(clickhouse: ClickHouse, appkey: str, states: Sequence[State]) -> list[TimelineEntry]:
    """Its sessions, and what became of its messages."""
    numbers = {state.number for state in states}
    place = {"appkey": appkey, "partition": states[-1].partition, "numbers": sorted(numbers), "limit": LATEST}
    return [
        *(
            entry(_SESSION_EVENTS.get(kind, kind), time_ms, detail=reason)
            for kind, time_ms, reason in await clickhouse.rows(_SESSIONS, place)
        ),
        *_audience_entries(await clickhouse.rows(_AUDIENCES, place), numbers),
        *(
            entry(kind, time_ms, detail=joined(f"message {msgid}", reason))
            for kind, time_ms, msgid, reason in await clickhouse.rows(_MESSAGES, place)
        ),
    ]


def _audience_entries(rows: Sequence[Sequence[Any]], numbers: AbstractSet[int]) -> list[TimelineEntry]:
    """The pushes that the device was meant to get, whether it did or not."""
    return [
        entry("audience", time_ms, detail=f"push {msgid}")
        for time_ms, msgid, audience in rows
        if BitMap(numbers).intersect(BitMap.deserialize(b64decode(audience)))
    ]
