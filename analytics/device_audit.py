"""What happened to one device: its states, sessions and messages."""

from base64 import b64decode
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Any, NamedTuple

from pyroaring import BitMap

from analytics.attributes import ATTRIBUTES
from analytics.clickhouse import ClickHouse
from analytics.timeline import entry, in_order, joined
from protos.analytics.v1.analytics_pb2 import AuditDeviceResponse, TimelineEntry
from services.runtime.errors import NotFoundError

LATEST = 1000
"""Of states, session events, pushes and outcomes, at most so many are looked at: the latest ones."""

_DESCRIPTION = ("model", *ATTRIBUTES)
_STATES = f"""
SELECT partition, number, toUnixTimestamp64Milli(time), platform, toUnixTimestamp64Milli(registered),
  toUnixTimestamp64Milli(removed), removed_reason, has_alias, alias, tags, stags, {", ".join(_DESCRIPTION)}
FROM devices FINAL WHERE appkey = {{appkey:String}} AND token = {{token:String}}
ORDER BY _offset DESC LIMIT {{limit:UInt32}}
"""  # noqa: S608
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


class State(NamedTuple):
    """A row of `devices`."""

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
    description: tuple[str, ...]


async def audit_device(clickhouse: ClickHouse, appkey: str, token: str) -> AuditDeviceResponse:
    """NotFoundError: the log knows no such device."""
    rows = await clickhouse.rows(_STATES, {"appkey": appkey, "token": token, "limit": LATEST})
    if not rows:
        raise NotFoundError("the event log knows no device with this token in this app")
    states = [_state(row) for row in reversed(rows)]
    numbers = {state.number for state in states}
    place = {"appkey": appkey, "partition": states[-1].partition, "numbers": sorted(numbers), "limit": LATEST}
    entries = [
        *state_entries(states),
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
    return AuditDeviceResponse(appkey=appkey, token=token, timeline=in_order(entries))


def _audience_entries(rows: Sequence[Sequence[Any]], numbers: AbstractSet[int]) -> list[TimelineEntry]:
    """The pushes that the device was meant to get, whether it did or not."""
    return [
        entry("audience", time_ms, detail=f"push {msgid}")
        for time_ms, msgid, audience in rows
        if BitMap(numbers).intersect(BitMap.deserialize(b64decode(audience)))
    ]


def state_entries(states: Sequence[State]) -> list[TimelineEntry]:
    """The registration, then what changed from each state to the next.

    The log keeps the latest state of a device for certain, and earlier ones for a while: the first known may be later.
    """
    first = states[0]
    nothing = first._replace(alias=None, tags=frozenset(), stags=frozenset(), description=("",) * len(_DESCRIPTION))
    if first.time_ms > first.registered_ms:
        entries = [entry("registered", first.registered_ms, detail=first.platform)]
        states = [nothing._replace(removed_ms=0), *states]
    else:
        entries = [entry("registered", first.registered_ms, detail=joined(first.platform, _difference(nothing, first)))]
    return [*entries, *(change for before, after in pairwise(states) for change in _changes(before, after))]


def _changes(before: State, after: State) -> list[TimelineEntry]:
    difference = _difference(before, after)
    if after.removed_ms and not before.removed_ms:
        return [entry("removed", after.removed_ms, detail=after.removed_reason)]
    if (before.removed_ms and not after.removed_ms) or before.number != after.number:
        return [entry("registered again", after.time_ms, detail=difference)]
    return [entry("changed", after.time_ms, detail=difference)] if difference else []


def _difference(before: State, after: State) -> str:
    alias = "" if before.alias == after.alias else "no alias" if after.alias is None else f"alias {after.alias}"
    return joined(
        alias,
        *(f"+tag {tag}" for tag in sorted(after.tags - before.tags)),
        *(f"-tag {tag}" for tag in sorted(before.tags - after.tags)),
        *(f'+stag "{stag}"' for stag in sorted(after.stags - before.stags)),
        *(f'-stag "{stag}"' for stag in sorted(before.stags - after.stags)),
        *(
            f"{name} {new or 'unknown'}"
            for name, old, new in zip(_DESCRIPTION, before.description, after.description, strict=True)
            if old != new
        ),
    )


def _state(row: Sequence[Any]) -> State:
    has_alias, alias, tags, stags, *description = row[7:]
    known = (alias if has_alias else None, frozenset(tags), frozenset(stags), tuple(description))
    return State._make((*row[:7], *known))
