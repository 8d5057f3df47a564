"""The last badge sent to each iOS device; pushes that increment badges continue from it."""

import numpy
from numpy.typing import NDArray

from protos.delivery.v1.delivery_pb2 import AppOutcomes
from services.delivery.state.addresses import AppPartition

BadgeRow = tuple[str, int, bytes, bytes]
"""Appkey, partition, badges (uint32 each) and times (int64 each, milliseconds since 1970), by device number."""


class Badges:
    """The last badge and its time by device, folded from outcomes; columns over the dense device numbers, 12 bytes a
    device."""

    def __init__(self) -> None:
        self._columns: dict[AppPartition, tuple[NDArray[numpy.uint32], NDArray[numpy.int64]]] = {}

    def fold(self, partition: int, outcomes: AppOutcomes) -> None:
        """Store the badges of these outcomes; of several for one device the last row counts."""
        badges = numpy.frombuffer(outcomes.badges, "<u4")
        if not len(badges):
            return
        sent = badges > 0
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")[sent]
        values, times_ms = self._grown((outcomes.appkey, partition), int(numbers.max(initial=0)) + 1)
        values[numbers] = badges[sent] - 1
        times_ms[numbers] = numpy.frombuffer(outcomes.times_ms, "<i8")[sent]

    def last(self, app_partition: AppPartition, number: int, active_ms: int) -> int:
        """Return the badge that the device shows: 0 if the app was used (`active_ms`) since the last one was sent."""
        values, times_ms = self._columns.get(app_partition, ((), ()))
        if number >= len(values) or active_ms >= times_ms[number]:
            return 0
        return int(values[number])

    def dump(self) -> list[BadgeRow]:
        return [
            (*app_partition, values.tobytes(), times_ms.tobytes())
            for app_partition, (values, times_ms) in sorted(self._columns.items())
        ]

    def load(self, rows: list[BadgeRow]) -> None:
        for appkey, partition, values, times_ms in rows:
            columns = numpy.frombuffer(values, numpy.uint32).copy(), numpy.frombuffer(times_ms, numpy.int64).copy()
            self._columns[appkey, partition] = columns

    def _grown(self, app_partition: AppPartition, size: int) -> tuple[NDArray[numpy.uint32], NDArray[numpy.int64]]:
        """Return columns of at least this size. Sizes are powers of two, so equal contents have equal columns."""
        values, times_ms = self._columns.get(app_partition, (numpy.zeros(0, numpy.uint32), numpy.zeros(0, numpy.int64)))
        if size > len(values):
            more = (1 << (size - 1).bit_length()) - len(values)
            self._columns[app_partition] = numpy.pad(values, (0, more)), numpy.pad(times_ms, (0, more))
        return self._columns[app_partition]
