"""The badge that each iOS device was last sent, so that a push can ask to count on from it."""

import numpy
from numpy.typing import NDArray

from protos.delivery.v1.delivery_pb2 import AppOutcomes

Place = tuple[str, int]
"""An app's partition."""

Row = tuple[str, int, bytes, bytes]


class Badges:
    """Part of the fold over outcomes: columns over the device numbers, which are dense; 12 bytes a device."""

    def __init__(self) -> None:
        self._columns: dict[Place, tuple[NDArray[numpy.uint32], NDArray[numpy.int64]]] = {}

    def fold(self, partition: int, outcomes: AppOutcomes) -> None:
        """Take over the badges of outcomes that have some; later rows are later badges."""
        badges = numpy.frombuffer(outcomes.badges, "<u4")
        if not len(badges):
            return
        sent = badges > 0
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")[sent]
        values, times_ms = self._room((outcomes.appkey, partition), int(numbers.max(initial=0)) + 1)
        values[numbers] = badges[sent] - 1
        times_ms[numbers] = numpy.frombuffer(outcomes.times_ms, "<i8")[sent]

    def last(self, place: Place, number: int, active_ms: int) -> int:
        """The badge that the device shows: 0 when its app was in use after it was sent the last one."""
        values, times_ms = self._columns.get(place, ((), ()))
        if number >= len(values) or active_ms >= times_ms[number]:
            return 0
        return int(values[number])

    def dump(self) -> list[Row]:
        return [
            (*place, values.tobytes(), times_ms.tobytes())
            for place, (values, times_ms) in sorted(self._columns.items())
        ]

    def load(self, rows: list[Row]) -> None:
        for appkey, partition, values, times_ms in rows:
            columns = numpy.frombuffer(values, numpy.uint32).copy(), numpy.frombuffer(times_ms, numpy.int64).copy()
            self._columns[appkey, partition] = columns

    def _room(self, place: Place, size: int) -> tuple[NDArray[numpy.uint32], NDArray[numpy.int64]]:
        """Columns for so many numbers, in steps of two, so that the same devices always make the same columns."""
        values, times_ms = self._columns.get(place, (numpy.zeros(0, numpy.uint32), numpy.zeros(0, numpy.int64)))
        if size > len(values):
            more = (1 << (size - 1).bit_length()) - len(values)
            self._columns[place] = numpy.pad(values, (0, more)), numpy.pad(times_ms, (0, more))
        return self._columns[place]
