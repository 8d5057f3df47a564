"""When devices were connected, and how each opening or end of a connection changes that.

A connection counts at each full minute from its opening's on until that of its end, under what the device was like when
it connected. It ends when it is closed or when the device connects again, whichever is earlier. Kept of each device is
its latest connection, in dense arrays: 37 bytes a device. Of those that connected again last, the one before it is kept
too, so that records of two gateways may come in any order. An opening that comes after a later one counts while the one
before that is kept or there was none; otherwise it does not, nor does the end of a connection that is not kept.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analytics.ingestion.attributes import ATTRIBUTES, GREATEST_NUMBER, DictionaryEncoder

MINUTE_MS = 60_000
OPEN = 2**32 - 1
"""The end of a connection that has none yet."""

MAX_BEFORE = 50_000
"""Of so many devices the connection before the latest is kept."""

_LAST_MINUTE = 71_582_787
LATEST = np.dtype(
    [("id", np.uint64), ("opened", np.uint32), ("closed", np.uint32), ("gateway", np.uint32), ("is_second", np.bool_)]
)
"""A device's latest connection, and whether there was one before it; id 0: it has none."""


class Device(NamedTuple):
    appkey: str
    partition: int
    number: int


class Connection(NamedTuple):
    """One connection; minutes are those of `minute_of`, `gateway` and `values` are codes."""

    id: int
    opened: int
    closed: int
    gateway: int
    values: tuple[int, ...]


class Change(NamedTuple):
    """So many more connections like this one from a minute on."""

    minute: int
    more: int
    connection: Connection


def minute_of(time_ms: int) -> int:
    """The first full minute at or after a time, in minutes since 1970; one that ClickHouse's DateTime can hold."""
    return max(0, min(-(-time_ms // MINUTE_MS), _LAST_MINUTE))


def minutes_of(times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The same of many times."""
    return np.clip(-(-times_ms // MINUTE_MS), 0, _LAST_MINUTE)


def _began(connection: Connection, following: Connection | None) -> list[Change]:
    end = _end(connection, following)
    first = Change(connection.opened, 1, connection)
    return [first] if end == OPEN else [first, Change(end, -1, connection)]


def _ended(connection: Connection, was: int, end: int) -> list[Change]:
    """Its end moved; OPEN: it had none."""
    if was == end:
        return []
    last = Change(end, -1, connection)
    return [last] if was == OPEN else [last, Change(was, 1, connection)]


def _end(connection: Connection, following: Connection | None) -> int:
    end = connection.closed if following is None else min(connection.closed, following.opened)
    return max(end, connection.opened)


class Spans:
    """The latest connections of every device, for one thread."""

    def __init__(self) -> None:
        self.gateways = DictionaryEncoder()
        self._blocks: dict[tuple[str, int], _Block] = {}
        self._before: OrderedDict[Device, Connection] = OrderedDict()

    def opened(self, device: Device, connection: Connection) -> list[Change]:
        """A connection was opened; what that changes. One that is known already changes nothing."""
        known = self._known(device)
        at = sum(other.id < connection.id for other in known)
        following = known[at] if at < len(known) else None
        if (following and following.id == connection.id) or not self._may_come(device, known, at):
            return []
        before = known[at - 1] if at else None
        self._keep(device, [*known[:at], connection, *known[at:]])
        made = _began(connection, following)
        return made + _ended(before, _end(before, following), _end(before, connection)) if before else made

    def closed(self, device: Device, connection_id: int, minute: int) -> list[Change]:
        """A connection was closed; what that changes. Of several ends the earliest counts."""
        known = self._known(device)
        for at, connection in enumerate(known):
            if connection.id == connection_id and minute < connection.closed:
                following = known[at + 1] if at + 1 < len(known) else None
                closed = connection._replace(closed=minute)
                self._keep(device, [*known[:at], closed, *known[at + 1 :]])
                return _ended(closed, _end(connection, following), _end(closed, following))
        return []

    def note_all(
        self, appkey: str, partition: int, numbers: npt.NDArray[Any], latest: npt.NDArray[Any], values: npt.NDArray[Any]
    ) -> None:
        """Remember the latest connections of many devices of one partition: LATEST, and a row of codes for each."""
        if len(numbers):
            block = self._block(appkey, partition, int(numbers.max()))
            block.hold(int(values.max()))
            block.latest[numbers] = latest
            block.values[numbers] = values

    def note_before(self, device: Device, connection: Connection) -> None:
        """Remember the connection before the latest, which is known."""
        self._before.pop(device, None)
        self._before[device] = connection
        self._block(*device).latest["is_second"][device.number] = True
        if len(self._before) > MAX_BEFORE:
            self._before.popitem(last=False)

    def _known(self, device: Device) -> list[Connection]:
        """In the order of their ids, the latest last."""
        if device.number > GREATEST_NUMBER:
            return []
        latest = self._block(*device).connection(device.number)
        before = self._before.get(device)
        return [connection for connection in (before, latest) if connection]

    def _may_come(self, device: Device, known: Sequence[Connection], at: int) -> bool:
        """Whether a connection may be put there among those that are known."""
        if device.number > GREATEST_NUMBER:
            return False
        return at > 0 or not known or (len(known) == 1 and not self._block(*device).latest["is_second"][device.number])

    def _keep(self, device: Device, known: Sequence[Connection]) -> None:
        self._block(*device).put(device.number, known[-1])
        if len(known) > 1:
            self.note_before(device, known[-2])

    def _block(self, appkey: str, partition: int, number: int) -> "_Block":
        block = self._blocks.get((appkey, partition))
        if block is None:
            block = self._blocks[appkey, partition] = _Block()
        block.reach(number)
        return block


class _Block:
    """The latest connection of each device of one partition, by number."""

    def __init__(self) -> None:
        self.latest = np.zeros(0, LATEST)
        self.values = np.zeros((0, len(ATTRIBUTES)), np.uint16)

    def reach(self, number: int) -> None:
        """Have room for the number."""
        have = len(self.latest)
        if number >= have:
            missing = max(number + 1, have * 3 // 2, 64) - have
            self.latest = np.concatenate([self.latest, np.zeros(missing, LATEST)])
            self.values = np.concatenate([self.values, np.zeros((missing, len(ATTRIBUTES)), self.values.dtype)])

    def hold(self, code: int) -> None:
        """Have a type that holds the code."""
        if code > np.iinfo(self.values.dtype).max:
            self.values = self.values.astype(np.uint32)

    def connection(self, number: int) -> Connection | None:
        id_, opened, closed, gateway, _ = self.latest[number].item()
        return Connection(id_, opened, closed, gateway, tuple(self.values[number].tolist())) if id_ else None

    def put(self, number: int, connection: Connection) -> None:
        self.hold(max(connection.values))
        is_second = self.latest["is_second"][number]
        self.latest[number] = (connection.id, connection.opened, connection.closed, connection.gateway, is_second)
        self.values[number] = connection.values
