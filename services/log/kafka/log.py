"""The Log port on Apache Kafka. Appends go out by group commit, one batch a partition at a time."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from services.errors import ConflictError, InputError, UnavailableError
from services.log.batcher import Batcher, ByteBudget
from services.log.kafka.client import (
    NOT_AUTHORIZED,
    REFUSALS,
    RETRY_S,
    ClientSettings,
    assign,
    client_settings,
    new_consumer,
    not_allowed,
    stop,
    to_record,
    unavailable,
)
from services.log.kafka.lookups import Bounds, find_batch, last_record
from services.log.kafka.producer import ReplaceableProducer
from services.log.kafka.security import PLAINTEXT, KafkaSecurity
from services.log.kafka.topics import check_replicas, delete_before, prepare_topics
from services.log.port import (
    MAX_WAITING_BYTES,
    NewRecord,
    Partition,
    Record,
    TrimmedError,
    checked_size,
    trimmed,
    went_back,
)
from services.log.topics import Topics

# The Reader port on Kafka.


class KafkaReader:
    """Reads with a consumer of its own, which it replaces when the cluster is silent for the time-out."""

    def __init__(
        self,
        settings: ClientSettings,
        timeout_s: float,
        positions: dict[Partition, int],
        on_close: Callable[["KafkaReader"], None],
    ) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._positions = positions
        self._on_close = on_close
        self._consumer: AIOKafkaConsumer | None = None
        self._closed = False

    async def read(self, max_records: int = 5000) -> list[Record]:
        while not self._closed:
            consumer = self._consumer or await self._start()
            last_polls = _last_polls(consumer)
            try:
                pages = await consumer.getmany(timeout_ms=int(self._timeout_s * 1000), max_records=max_records)
            except OffsetOutOfRangeError as error:
                raise TrimmedError(
                    f"records of the event log were removed before they were read, or the log was replaced: {error}."
                    " Start the process again, which says what to do"
                ) from error
            except ConsumerStoppedError:
                break
            except NOT_AUTHORIZED as error:
                await self._drop_consumer()
                raise not_allowed("read", ",".join(error.args), self._settings) from error
            except KafkaError as error:
                await self._drop_consumer()
                raise unavailable(error, self._settings) from error
            records = [to_record(fetched) for page in pages.values() for fetched in page]
            if records:
                self._positions |= {Partition(r.topic, r.partition): r.offset + 1 for r in records}
                return records
            if not self._closed and _last_polls(consumer) == last_polls:
                await self._drop_consumer()
                raise UnavailableError(f"Kafka has not answered for {self._timeout_s:g} s")
        raise UnavailableError("the reader was closed")

    async def close(self) -> None:
        self._closed = True
        self._on_close(self)
        await self._drop_consumer()

    async def _start(self) -> AIOKafkaConsumer:
        consumer = new_consumer(self._settings)
        try:
            async with asyncio.timeout(self._timeout_s):
                await consumer.start()
        except BaseException as error:
            await stop(consumer)
            if isinstance(error, TimeoutError | KafkaError):
                raise unavailable(error, self._settings) from error
            raise
        self._consumer = consumer
        if self._closed:
            await self._drop_consumer()
            raise UnavailableError("the reader was closed")
        assign(consumer, self._positions)
        return consumer

    async def _drop_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer:
            await stop(consumer)


def _last_polls(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """Return the time of the cluster's latest answer by partition. Unchanged times mean that the cluster is silent."""
    return {partition: consumer.last_poll_timestamp(partition) for partition in consumer.assignment()}


Result = TypeVar("Result")


class KafkaLog:
    """An event log on a Kafka cluster; made by `connect`."""

    def __init__(
        self,
        bootstrap: str,
        topics: Topics,
        partitions: int,
        security: KafkaSecurity,
        timeout_s: float,
        max_waiting_bytes: int,
    ) -> None:
        self.topics = topics
        self.identity = ""
        self._partitions = partitions
        self._settings = client_settings(bootstrap, security, timeout_s)
        self._timeout_s = timeout_s
        self._producer = ReplaceableProducer(self._settings)
        self._partition_bounds = Bounds(self._settings, topics)
        self._budget = ByteBudget(max_waiting_bytes)
        self._batchers: dict[Partition, Batcher[NewRecord, int]] = {}
        self._readers: set[KafkaReader] = set()
        self._closed = False

    @classmethod
    async def connect(
        cls,
        bootstrap: str,
        topics: Topics,
        partitions: int = 32,
        replication: int = 1,
        *,
        security: KafkaSecurity = PLAINTEXT,
        timeout_s: float = 30,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        read_only: bool = False,
    ) -> "KafkaLog":
        """Connect to `host:port[,host:port...]` and create the topics that are missing, in `replication` copies.

        `read_only`: nothing will be appended, so that the user needs no right to write any topic.
        `timeout_s` bounds this call, and later each batch and look-up: UnavailableError when the cluster cannot be
        reached within it. ConflictError: a topic exists with another number of partitions or with settings that
        would lose records, or the cluster refuses a call or a client with this `security`.
        """
        log = cls(bootstrap, topics, partitions, security, timeout_s, max_waiting_bytes)
        try:
            await log._bounded(log._start(replication, read_only))
        except BaseException:
            await log.close()
            raise
        return log

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        self._check_open()
        size = checked_size(new_records, self.topics)
        groups: dict[Partition, list[int]] = {}
        for index, new_record in enumerate(new_records):
            groups.setdefault(Partition(new_record.topic, new_record.partition), []).append(index)
        for topic, number in groups:
            if number >= self.topics[topic].partitions(self._partitions):
                raise InputError(f"the event log has no partition {topic}/{number}")
        self._budget.reserve(size)
        if len(groups) == 1:
            return list(await self._batcher(next(iter(groups))).put(new_records, size))
        parts = [[new_records[index] for index in indexes] for indexes in groups.values()]
        batchers = [self._batcher(partition) for partition in groups]
        results = await asyncio.gather(
            *(batcher.put(part, checked_size(part, self.topics)) for batcher, part in zip(batchers, parts, strict=True))
        )
        offsets = dict(zip((i for g in groups.values() for i in g), (o for r in results for o in r), strict=True))
        return [offsets[index] for index in range(len(new_records))]

    async def open(self, starts: Mapping[Partition, int]) -> KafkaReader:
        self._check_open()
        first, ends = await self._bounds(starts)
        for partition, start in starts.items():
            if start < first[partition]:
                raise TrimmedError(trimmed(partition, start, first[partition]))
            if start > ends[partition]:
                raise ConflictError(went_back(partition, start, ends[partition]))
        reader = KafkaReader(self._settings, self._timeout_s, dict(starts), self._readers.discard)
        self._readers.add(reader)
        return reader

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        self._check_open()
        return await self._bounded(self._partition_bounds.begins(partitions))

    async def trim(self, partition: Partition, before: int) -> None:
        """Remove the records before an offset; see TrimmableLog."""
        self._check_open()
        await self._bounded(delete_before(self._settings, partition, before))

    async def unarchived_from(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self.begins(partitions)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        self._check_open()
        return await self._bounded(self._partition_bounds.ends(partitions))

    async def last(self, partition: Partition) -> Record | None:
        self._check_open()
        first, ends = await self._bounds([partition])
        return await self._bounded(last_record(self._settings, partition, first[partition], ends[partition]))

    def stored(self, new_records: Sequence[NewRecord]) -> Sequence[NewRecord]:
        return new_records

    async def check_writable(self) -> None:
        self._check_open()
        await self._bounded(check_replicas(self._settings, self.topics))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._batchers:
            await asyncio.wait(
                [asyncio.create_task(batcher.drain()) for batcher in self._batchers.values()], timeout=self._timeout_s
            )
        for reader in list(self._readers):
            await reader.close()
        await self._producer.close()
        await self._partition_bounds.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the event log is closed")

    async def _start(self, replication: int, read_only: bool) -> None:
        while (identity := await prepare_topics(self._settings, self.topics, self._partitions, replication)) is None:
            await asyncio.sleep(RETRY_S)
        self.identity = identity
        await self._partition_bounds.start()
        if not read_only:
            await self._producer.current()

    async def _bounded(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Await the call within the time-out; translate Kafka's errors."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except REFUSALS as error:
            raise ConflictError(f"Kafka refuses what the event log needs: {error}") from error
        except (TimeoutError, KafkaError) as error:
            raise unavailable(error, self._settings) from error

    async def _bounds(self, partitions: Iterable[Partition]) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Return the first offset and the end of each partition."""
        wanted = list(partitions)
        begins = await self._bounded(self._partition_bounds.begins(wanted))
        return begins, await self._bounded(self._partition_bounds.ends(wanted))

    def _batcher(self, partition: Partition) -> Batcher[NewRecord, int]:
        if partition not in self._batchers:
            self._batchers[partition] = Batcher(lambda new_records: self._ship(partition, new_records), self._budget)
        return self._batchers[partition]

    async def _ship(self, partition: Partition, new_records: list[NewRecord]) -> list[int]:
        """Append records of one partition, one batch after the other, so that their order survives failures."""
        offsets: list[int] = []
        while len(offsets) < len(new_records):
            try:
                async with asyncio.timeout(self._timeout_s):
                    base, count = await self._ship_batch(partition, new_records, len(offsets))
            except NOT_AUTHORIZED as error:
                raise not_allowed("append to", partition.topic, self._settings) from error
            except (TimeoutError, KafkaError) as error:
                raise unavailable(error, self._settings) from error
            offsets += range(base, base + count)
        return offsets

    async def _ship_batch(self, partition: Partition, new_records: Sequence[NewRecord], start: int) -> tuple[int, int]:
        """Append one batch of the records from `start` on; return its first offset and its number of records."""
        while True:
            removable = self.topics[partition.topic].removable
            base, count = await self._producer.send(partition, new_records, start, removable=removable)
            if base >= 0:
                return base, count
            first, ends = await self._bounds([partition])
            batch = new_records[start : start + count]
            try:
                return await find_batch(self._settings, partition, batch, first[partition], ends[partition]), count
            except TopicAuthorizationFailedError:
                # A user that may only write the topic cannot look for the batch. It is appended once more, as after a
                # change of the producer: readers drop repeated event ids.
                continue
