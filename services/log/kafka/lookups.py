"""Look-ups in a partition: its first offset, its end, its last record, and a batch whose offset was not returned."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from services.errors import UnavailableError
from services.log.kafka.client import ClientSettings, Replaceable, assign, new_consumer, stop, to_record
from services.log.port import NewRecord, Partition, Record
from services.log.topics import Topics

_POLL_MS = 100
_WIDEN = 16
_FIRST_WINDOW = 64


async def last_record(settings: ClientSettings, partition: Partition, first: int, end: int) -> Record | None:
    """Return the last record between the offsets. Reading starts ever further before the end until it finds one.

    The offsets right before the end may belong to the marker of a transaction, which is no record.
    """
    if first == end:
        return None
    async with _consumer(settings) as consumer:
        window, found = 1, None
        while found is None and window < _WIDEN * (end - first):
            assign(consumer, {partition: max(first, end - window)})
            found = next(reversed(await _read_until(consumer, partition, end)), None)
            window *= _WIDEN
        return found


async def find_batch(
    settings: ClientSettings, partition: Partition, batch: Sequence[NewRecord], first: int, end: int
) -> int:
    """Return the offset of a written batch: its last occurrence between the offsets, searched from the end backwards.

    UnavailableError: the log does not hold it.
    """
    async with _consumer(settings) as consumer:
        window = max(_FIRST_WINDOW, len(batch))
        while True:
            start = max(first, end - window)
            assign(consumer, {partition: start})
            records = await _read_until(consumer, partition, end)
            for base in range(len(records) - len(batch), -1, -1):
                if _is_batch(records[base : base + len(batch)], batch):
                    return records[base].offset
            if start == first:
                raise UnavailableError(
                    f"Kafka reports a batch of {partition.topic}/{partition.number} as written that cannot be found"
                )
            window *= _WIDEN


@asynccontextmanager
async def _consumer(settings: ClientSettings) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = new_consumer(settings, _POLL_MS)
    try:
        await consumer.start()
        yield consumer
    finally:
        await stop(consumer)


async def _read_until(consumer: AIOKafkaConsumer, partition: Partition, end: int) -> list[Record]:
    topic_partition = TopicPartition(*partition)
    records: list[Record] = []
    while await consumer.position(topic_partition) < end:
        for page in (await consumer.getmany(topic_partition, timeout_ms=_POLL_MS)).values():
            records += [to_record(fetched) for fetched in page if fetched.offset < end]
    return records


def _is_batch(records: Sequence[Record], batch: Sequence[NewRecord]) -> bool:
    return all(
        (record.key, record.value) == (new_record.key, new_record.value) and record.offset == records[0].offset + index
        for index, (record, new_record) in enumerate(zip(records, batch, strict=True))
    )


# Look-ups of the first offsets and the ends of partitions, through one consumer, replaced whenever one has failed.
#
# A consumer asks the brokers that it knows. Where all have moved to other addresses, only a new one finds them, at
# the addresses of the settings.

_Offsets = Awaitable[Mapping[TopicPartition, int]]


class Bounds:
    """Looks up the bounds of partitions. Its methods raise the errors of aiokafka."""

    def __init__(self, settings: ClientSettings, topics: Topics) -> None:
        self._settings = settings
        self._topics = topics
        self._consumers = Replaceable(self._started, stop)

    async def start(self) -> None:
        await self._consumers.current()

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset of each partition."""
        return await self._look_up(lambda consumer, wanted: consumer.beginning_offsets(wanted), partitions)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset of each partition's next record."""
        return await self._look_up(lambda consumer, wanted: consumer.end_offsets(wanted), partitions)

    async def close(self) -> None:
        await self._consumers.close()

    async def _look_up(
        self, look_up: Callable[[AIOKafkaConsumer, list[TopicPartition]], _Offsets], partitions: Iterable[Partition]
    ) -> dict[Partition, int]:
        consumer = await self._consumers.current()
        try:
            offsets = await look_up(consumer, [TopicPartition(*partition) for partition in partitions])
        except KafkaError:
            self._consumers.replace(consumer)
            raise
        return {Partition(*each): offset for each, offset in offsets.items()}

    async def _started(self) -> AIOKafkaConsumer:
        consumer = new_consumer(self._settings)
        try:
            await consumer.start()
        except BaseException:
            await stop(consumer)
            raise
        assign(consumer, {Partition(topic, 0): 0 for topic in self._topics})
        consumer.pause(*consumer.assignment())  # assigned to know the topics, paused to fetch nothing
        return consumer
