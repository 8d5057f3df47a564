"""The Reader port on Kafka."""

import asyncio
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError, OffsetOutOfRangeError

from services.errors import UnavailableError
from services.log.kafka.client import (
    NOT_AUTHORIZED,
    ClientSettings,
    assign,
    new_consumer,
    not_allowed,
    stop,
    to_record,
    unavailable,
)
from services.log.port import Partition, Record, TrimmedError


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
