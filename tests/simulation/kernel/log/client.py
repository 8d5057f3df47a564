"""The Log port on a simulated broker. It promises what the Kafka adapter promises, and breaks the rest by the seed.

Appends go out by group commit, one batch a partition at a time, and are repeated until the broker has answered or the
time-out is over. So an append that failed may have been stored, and one that succeeded may have been stored twice.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import copy_context

from services.errors import ConflictError, InputError, UnavailableError
from services.log.batcher import Batcher, ByteBudget
from services.log.port import MAX_WAITING_BYTES, NewRecord, Partition, Record, TrimmedError, checked_size, trimmed
from tests.simulation.kernel.log.behaviour import Attempt
from tests.simulation.kernel.log.broker import Broker

TIMEOUT_S = 30.0
RETRY_S = 0.2


class SimulatedLog:
    """One process's client of the broker."""

    def __init__(
        self, broker: Broker, *, timeout_s: float = TIMEOUT_S, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self.topics = broker.topics
        self.identity = "simulated"
        self._broker = broker
        self._timeout_s = timeout_s
        self._budget = ByteBudget(max_waiting_bytes)
        self._batchers: dict[Partition, Batcher[NewRecord, int]] = {}
        self._readers: dict[int, SimulatedReader] = {}
        self._closed = False

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        self._check_open()
        size = checked_size(new_records, self.topics)
        groups: dict[Partition, list[int]] = {}
        for index, new_record in enumerate(new_records):
            groups.setdefault(Partition(new_record.topic, new_record.partition), []).append(index)
        for topic, number in groups:
            if number >= self.topics[topic].partitions(self._broker.partitions):
                raise InputError(f"the event log has no partition {topic}/{number}")
        self._budget.reserve(size)
        parts = {partition: [new_records[index] for index in indexes] for partition, indexes in groups.items()}
        results = await asyncio.gather(
            *(self._batcher(partition).put(part, checked_size(part, self.topics)) for partition, part in parts.items())
        )
        offsets = dict(zip((i for g in groups.values() for i in g), (o for r in results for o in r), strict=True))
        return [offsets[index] for index in range(len(new_records))]

    async def open(self, starts: Mapping[Partition, int]) -> "SimulatedReader":
        await self._answered(starts)
        check_held(self._broker, starts)
        number = len(self._readers)
        reader = self._readers[number] = SimulatedReader(self._broker, starts, self._timeout_s)
        return reader

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        await self._answered(asked := list(partitions))
        return {partition: self._broker.first(partition) for partition in asked}

    async def unarchived_from(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self.begins(partitions)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        await self._answered(asked := list(partitions))
        return {partition: self._broker.end(partition) for partition in asked}

    async def last(self, partition: Partition) -> Record | None:
        await self._answered([partition])
        return self._broker.last(partition)

    def stored(self, new_records: Sequence[NewRecord]) -> Sequence[NewRecord]:
        return new_records

    async def check_writable(self) -> None:
        await self._answered()

    async def trim(self, partition: Partition, before: int) -> None:
        """Remove the records before an offset; readers that have not read them raise TrimmedError."""
        await self._answered([partition])
        self._broker.trim(partition, before)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._batchers:
            drains = [asyncio.create_task(batcher.drain()) for batcher in self._batchers.values()]
            await asyncio.wait(drains, timeout=self._timeout_s)
        for reader in self._readers.values():
            await reader.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the event log is closed")

    async def _answered(self, partitions: Collection[Partition] = ()) -> None:
        """Return once the broker has answered a question about these partitions.

        UnavailableError: it does not within the time-out.
        """
        self._check_open()
        await answered(self._broker, self._timeout_s, partitions)

    def _batcher(self, partition: Partition) -> Batcher[NewRecord, int]:
        if partition not in self._batchers:
            self._batchers[partition] = Batcher(lambda new_records: self._ship(partition, new_records), self._budget)
        return self._batchers[partition]

    async def _ship(self, partition: Partition, new_records: list[NewRecord]) -> list[int]:
        """Append the records, a page after the other."""
        offsets: list[int] = []
        while len(offsets) < len(new_records):
            count = self._broker.behaviour.page_size(len(new_records) - len(offsets))
            batch = new_records[len(offsets) : len(offsets) + count]
            try:
                async with asyncio.timeout(self._timeout_s):
                    base = await self._ship_batch(partition, batch)
            except TimeoutError:
                raise UnavailableError(f"the log does not answer within {self._timeout_s:g} s") from None
            offsets += range(base, base + len(batch))
        return offsets

    async def _ship_batch(self, partition: Partition, batch: Sequence[NewRecord]) -> int:
        behaviour = self._broker.behaviour
        while True:
            await asyncio.sleep(behaviour.delay_s())
            answers = self._broker.answers and self._broker.reaches(partition)
            attempt = behaviour.attempt() if answers else Attempt.NOT_STORED
            self._broker.reached(is_stored=False)
            base = -1 if attempt is Attempt.NOT_STORED else self._broker.store(partition, batch)
            if attempt is not Attempt.NOT_STORED:
                self._broker.reached(is_stored=True)
            await asyncio.sleep(behaviour.delay_s())
            if attempt is Attempt.ANSWERED:
                return base
            await asyncio.sleep(RETRY_S)


class SimulatedReader:
    """Reads a page of some partitions at a time; those that were read last come last in the next page."""

    def __init__(self, broker: Broker, starts: Mapping[Partition, int], timeout_s: float) -> None:
        self._broker = broker
        self._positions = dict(sorted(starts.items()))  # not in the order of a set
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._waiting: asyncio.Future[None] | None = None
        self._is_told = False
        self._stop_listening = broker.listen(self._positions, self._on_grown)
        self._closed = False

    async def read(self, max_records: int = 5000) -> list[Record]:
        broker = self._broker
        while not self._closed:
            if asked := broker.behind(self._positions):
                await answered(broker, self._timeout_s, asked)
            else:
                await self._until_told()
                asked = broker.behind(self._positions)
                if asked and not (broker.answers and not broker.extra_s(asked)):
                    await answered(broker, self._timeout_s, asked)
            if self._closed:
                break
            if not (behind := broker.behind(self._positions)):
                continue
            if broker.behaviour.read_fails():
                raise UnavailableError("the connection to the log was lost")
            check_held(broker, behind)
            records, reached = broker.page(behind, broker.page_size(max_records, behind))
            for partition, position in reached.items():
                del self._positions[partition]
                self._positions[partition] = position  # last in the order of the next page
            if records:
                return records
        raise UnavailableError("the reader was closed")

    async def close(self) -> None:
        self._closed = True
        self._stop_listening()
        self._end_waiting()

    async def _until_told(self) -> None:
        """Wait until a partition has grown, and for the time that the broker's message about it takes."""
        self._is_told = False
        self._waiting = self._loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _on_grown(self) -> None:
        """Let the broker's message arrive later, in the process of the reader."""
        if self._waiting is not None and not self._is_told:
            self._is_told = True
            self._loop.call_later(self._broker.behaviour.delay_s(), self._end_waiting, context=self._context)

    def _end_waiting(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


async def answered(broker: Broker, timeout_s: float, partitions: Collection[Partition] = ()) -> None:
    """Return after the time that a question and its answer take. UnavailableError: the broker does not answer."""
    await asyncio.sleep(broker.behaviour.delay_s() + broker.extra_s(partitions))
    waited_s = 0.0
    while not (broker.answers and all(map(broker.reaches, partitions))):
        await asyncio.sleep(RETRY_S)
        waited_s += RETRY_S
        if waited_s >= timeout_s:
            raise UnavailableError(f"the log does not answer within {timeout_s:g} s")


def check_held(broker: Broker, positions: Mapping[Partition, int]) -> None:
    """TrimmedError: a position lies before the first record that the log holds. ConflictError: behind the last one."""
    for partition, start in positions.items():
        first, end = broker.first(partition), broker.end(partition)
        if start < first:
            raise TrimmedError(trimmed(partition, start, first))
        if start > end:
            raise ConflictError(f"{partition} ends at {end}, but {start} was asked for")
