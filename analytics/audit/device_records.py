"""The records of a device's states over time, and the changes from each state to the next."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from analytics.audit.details.device_command import DESCRIPTION, stags, tags
from analytics.audit.details.parts import platform, reasons
from analytics.audit.timeline import entry
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import TimelineEntry
from protos.analytics.v1.details_pb2 import AliasCleared, AttributeValue, Detail
from services.domain.ios_tokens import spellings

LATEST = 1000
"""Audits read at most this many states, commands, session events, pushes and outcomes: the latest ones."""

_STATES = f"""
SELECT partition, number, toUnixTimestamp64Milli(time), platform, toUnixTimestamp64Milli(registered),
  toUnixTimestamp64Milli(removed), removed_reason, has_alias, alias, tags, stags, {", ".join(DESCRIPTION)}
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
    nothing = first._replace(alias=None, tags=frozenset(), stags=frozenset(), description=("",) * len(DESCRIPTION))
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
        *(
            Detail(attribute=AttributeValue(name=name, value=new))
            for name, old, new in zip(DESCRIPTION, before.description, after.description, strict=True)
            if old != new
        ),
    ]


def _alias(alias: str | None) -> Detail:
    return Detail(alias_cleared=AliasCleared()) if alias is None else Detail(alias=alias)


def _state(row: Sequence[Any]) -> DeviceRecord:
    has_alias, alias, tags_, stags_, *description = row[7:]
    known = (alias if has_alias else None, frozenset(tags_), frozenset(stags_), tuple(description))
    return DeviceRecord._make((*row[:7], *known))
