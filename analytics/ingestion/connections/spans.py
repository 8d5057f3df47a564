"""Folds openings and ends of connections into changes of the number of connections, minute by minute.

A connection counts from the first full minute at or after its opening until the first one at or after its end, under
the attributes that its device has SETTLES_MS after the welcome: a change counts from the opening on if the device
requested it by then, and else not before the next connection. It ends when it is closed or when the device connects
again, whichever is earlier.

The latest connection of every device is stored in dense arrays: 41 bytes a device. For up to MAX_BEFORE devices that
connected again last, the connection before it is stored too, so that records of two gateways may come in any order. An
opening that comes after a later one counts only while the connection before that one is stored or there was none; the
end of a connection that is not stored changes nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analytics.ingestion.attributes import GREATEST_NUMBER, DictionaryEncoder
from analytics.store.columns import ATTRIBUTES

MINUTE_MS = 60_000
SETTLES_MS = 60_000
"""Time after the welcome, ms, in which a change of the device's attributes still applies to the connection."""

OPEN = 2**32 - 1
"""The end of a connection that is still open."""

MAX_BEFORE = 50_000
"""For how many devices the connection before the latest one is stored."""

_LAST_MINUTE = 71_582_787
LATEST = np.dtype(
    [("id", np.uint64), ("opened_ms", np.int64), ("closed", np.uint32), ("gateway", np.uint32), ("is_second", np.bool_)]
)
"""A device's latest connection (id 0: none), and whether there was one before it."""


class NumberedDevice(NamedTuple):
    appkey: str
    partition: int
    number: int


class ConnectionSpan(NamedTuple):
    """One connection: `closed` is a minute as of `minute_of`; `gateway` and `values` (attributes) are codes."""

    id: int
    opened_ms: int
    closed: int
    gateway: int
    values: tuple[int, ...]

    @property
    def opened(self) -> int:
        """The first minute in which it counts."""
        return minute_of(self.opened_ms)


class ConnectionDelta(NamedTuple):
    """From `minute` on there are `change` more connections with the gateway and the attribute values of `span`."""

    minute: int
    change: int
    span: ConnectionSpan


def minute_of(time_ms: int) -> int:
    """Return the first full minute at or after a time, in minutes since 1970, within the range of DateTime."""
    return max(0, min(-(-time_ms // MINUTE_MS), _LAST_MINUTE))


def minutes_of(times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return `minute_of` many times at once."""
    return np.clip(-(-times_ms // MINUTE_MS), 0, _LAST_MINUTE)


def _opening(span: ConnectionSpan, following: ConnectionSpan | None) -> list[ConnectionDelta]:
    end = _end(span, following)
    first = ConnectionDelta(span.opened, 1, span)
    return [first] if end == OPEN else [first, ConnectionDelta(end, -1, span)]


def _moved_end(span: ConnectionSpan, before: int, end: int) -> list[ConnectionDelta]:
    """Return what changes when the end of a connection moves; a `before` of OPEN means that it had none."""
    if before == end:
        return []
    last = ConnectionDelta(end, -1, span)
    return [last] if before == OPEN else [last, ConnectionDelta(before, 1, span)]


def _end(span: ConnectionSpan, following: ConnectionSpan | None) -> int:
    end = span.closed if following is None else min(span.closed, following.opened)
    return max(end, span.opened)


class LatestConnections:
    """The latest connections of every device, for one thread."""

    def __init__(self) -> None:
        self.gateways = DictionaryEncoder()
        self._partitions: dict[tuple[str, int], _PartitionConnections] = {}
        self._before: OrderedDict[NumberedDevice, ConnectionSpan] = OrderedDict()

    def opened(self, device: NumberedDevice, span: ConnectionSpan) -> list[ConnectionDelta]:
        """Apply the opening of a connection; return what it changes. A known connection changes nothing."""
        known = self._known(device)
        index = sum(other.id < span.id for other in known)
        following = known[index] if index < len(known) else None
        if (following and following.id == span.id) or not self._may_insert(device, known, index):
            return []
        before = known[index - 1] if index else None
        self._store(device, [*known[:index], span, *known[index:]])
        deltas = _opening(span, following)
        return deltas + _moved_end(before, _end(before, following), _end(before, span)) if before else deltas

    def closed(self, device: NumberedDevice, connection_id: int, minute: int) -> list[ConnectionDelta]:
        """Apply the end of a connection; return what it changes. The earliest of several ends counts."""
        known = self._known(device)
        for index, span in enumerate(known):
            if span.id == connection_id and minute < span.closed:
                following = known[index + 1] if index + 1 < len(known) else None
                closed = span._replace(closed=minute)
                self._store(device, [*known[:index], closed, *known[index + 1 :]])
                return _moved_end(closed, _end(span, following), _end(closed, following))
        return []

    def attributes_changed(
        self, device: NumberedDevice, time_ms: int, values: tuple[int, ...]
    ) -> list[ConnectionDelta]:
        """Apply a change that the device requested at this time; return what it changes."""
        known, deltas = self._known(device), []
        for index, span in enumerate(known):
            if time_ms <= span.opened_ms + SETTLES_MS and span.values != values:
                following = known[index + 1] if index + 1 < len(known) else None
                known[index] = span._replace(values=values)
                deltas += [delta._replace(change=-delta.change) for delta in _opening(span, following)]
                deltas += _opening(known[index], following)
        if deltas:
            self._store(device, known)
        return deltas

    def settle(self, device: NumberedDevice, connection_id: int, values: tuple[int, ...]) -> None:
        """Store the attributes under which a connection that was loaded counts."""
        known = self._known(device)
        settled = [span._replace(values=values) if span.id == connection_id else span for span in known]
        if settled != known:
            self._store(device, settled)

    def note_all(
        self, appkey: str, partition: int, numbers: npt.NDArray[Any], latest: npt.NDArray[Any], values: npt.NDArray[Any]
    ) -> None:
        """Store the latest connections of many devices of one partition: LATEST, and a row of codes for each."""
        if len(numbers):
            connections = self._partition(appkey, partition, int(numbers.max()))
            connections.reserve_code(int(values.max()))
            connections.latest[numbers] = latest
            connections.values[numbers] = values

    def note_before(self, device: NumberedDevice, span: ConnectionSpan) -> None:
        """Store the connection before the latest one, which is stored already."""
        self._before.pop(device, None)
        self._before[device] = span
        self._partition(*device).latest["is_second"][device.number] = True
        if len(self._before) > MAX_BEFORE:
            self._before.popitem(last=False)

    def mark_values(self, attribute: int, is_used: npt.NDArray[np.bool_]) -> None:
        """Mark the codes of an attribute's values, by its index in ATTRIBUTES, that stored connections have."""
        for connections in self._partitions.values():
            is_used[connections.values[:, attribute]] = True
        is_used[[span.values[attribute] for span in self._before.values()]] = True

    def _known(self, device: NumberedDevice) -> list[ConnectionSpan]:
        """Return the stored connections of a device in the order of their ids, the latest last."""
        if device.number > GREATEST_NUMBER:
            return []
        latest = self._partition(*device).span(device.number)
        before = self._before.get(device)
        return [span for span in (before, latest) if span]

    def _may_insert(self, device: NumberedDevice, known: Sequence[ConnectionSpan], index: int) -> bool:
        """Return whether the connection before this index of `known` is stored, or there was none."""
        if device.number > GREATEST_NUMBER:
            return False
        if index > 0 or not known:
            return True
        return len(known) == 1 and not self._partition(*device).latest["is_second"][device.number]

    def _store(self, device: NumberedDevice, known: Sequence[ConnectionSpan]) -> None:
        self._partition(*device).put(device.number, known[-1])
        if len(known) > 1:
            self.note_before(device, known[-2])

    def _partition(self, appkey: str, partition: int, number: int) -> "_PartitionConnections":
        connections = self._partitions.get((appkey, partition))
        if connections is None:
            connections = self._partitions[appkey, partition] = _PartitionConnections()
        connections.reserve_number(number)
        return connections


class _PartitionConnections:
    """The latest connection of each device of one app and partition, in arrays indexed by device number."""

    def __init__(self) -> None:
        self.latest = np.zeros(0, LATEST)
        self.values = np.zeros((0, len(ATTRIBUTES)), np.uint16)

    def reserve_number(self, number: int) -> None:
        """Extend the arrays to the device number."""
        length = len(self.latest)
        if number >= length:
            missing = max(number + 1, length * 3 // 2, 64) - length
            self.latest = np.concatenate([self.latest, np.zeros(missing, LATEST)])
            self.values = np.concatenate([self.values, np.zeros((missing, len(ATTRIBUTES)), self.values.dtype)])

    def reserve_code(self, code: int) -> None:
        """Convert the values to a type that holds the code."""
        if code > np.iinfo(self.values.dtype).max:
            self.values = self.values.astype(np.uint32)

    def span(self, number: int) -> ConnectionSpan | None:
        id_, opened_ms, closed, gateway, _ = self.latest[number].item()
        return ConnectionSpan(id_, opened_ms, closed, gateway, tuple(self.values[number].tolist())) if id_ else None

    def put(self, number: int, span: ConnectionSpan) -> None:
        self.reserve_code(max(span.values))
        is_second = self.latest["is_second"][number]
        self.latest[number] = (span.id, span.opened_ms, span.closed, span.gateway, is_second)
        self.values[number] = span.values
