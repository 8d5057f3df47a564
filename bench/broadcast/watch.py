"""Follows the progress of a broadcast in the event log."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import numpy

from protos.delivery.v1.delivery_pb2 import DeliveryFact, OutcomeKind, PushFact
from services.domain.topics import DELIVERIES, PUSHES
from services.log.port import Log, Partition, Reader, Record
from services.log.sqlite.log import SqliteLog

PARTITIONS = 32

_POLL_S = 0.002


class Watch:
    """Reads the records of one broadcast; notes when the log had its whole audience, and all its receipts.

    `started` and `received` are these moments, in ns of the monotonic clock.
    """

    def __init__(self, log: Log, devices: int) -> None:
        self.started = asyncio.get_running_loop().create_future()
        self.received = asyncio.get_running_loop().create_future()
        self._log = log
        self._devices = devices
        self._audience = 0
        self._outcomes = 0

    async def run(self, ready: asyncio.Event) -> None:
        topics = (PUSHES.name, DELIVERIES.name)
        partitions = [Partition(topic, number) for topic in topics for number in range(PARTITIONS)]
        async with _reading(self._log, partitions) as reader:
            ready.set()
            while not self.received.done():
                for record in await reader.read():
                    self._take(record)

    def _take(self, record: Record) -> None:
        if record.topic == PUSHES.name:
            self._audience += PushFact.FromString(record.value).started.count
            _note_moment(self.started, self._audience >= self._devices)
        else:
            for app in DeliveryFact.FromString(record.value).outcomes.apps:
                kinds = numpy.frombuffer(app.kinds, "u1")
                self._outcomes += int(numpy.count_nonzero(kinds == OutcomeKind.OUTCOME_KIND_RECEIVED))
            _note_moment(self.received, self._outcomes >= self._devices)


def _note_moment(moment: "asyncio.Future[int]", is_complete: bool) -> None:
    if is_complete and not moment.done():
        moment.set_result(time.monotonic_ns())


@contextlib.asynccontextmanager
async def _reading(log: Log, partitions: list[Partition]) -> AsyncIterator[Reader]:
    """Read from the end on, polling often: the embedded log's reader beside its writer polls only every 100 ms."""
    ends = await log.ends(partitions)
    polling = None
    if isinstance(log, SqliteLog):
        reader: Reader = (embedded := await log.open(ends))
        polling = asyncio.create_task(_poll(log, embedded.notify, partitions))
    else:
        reader = await log.open(ends)
    try:
        yield reader
    finally:
        if polling:
            polling.cancel()
        await reader.close()


async def _poll(log: Log, notify: Callable[[dict[Partition, int]], None], partitions: list[Partition]) -> None:
    while True:
        notify(await log.ends(partitions))
        await asyncio.sleep(_POLL_S)
