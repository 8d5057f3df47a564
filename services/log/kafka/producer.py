"""The producer of a Kafka log, replaced whenever it has failed.

An idempotent producer whose batch failed has used up sequence numbers that the broker never saw, and the broker would
refuse every later batch of that partition. So the producer is replaced, and the next one sends the same records again.
They may then be in the log twice: readers drop repeated event ids.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerClosed,
    RecordListTooLargeError,
)

from services.errors import InputError
from services.log.kafka.client import NOT_AUTHORIZED, RETRY_S, STOP_S, ClientSettings, Replaceable, stop
from services.log.port import NewRecord, Partition
from services.process.logs import logger

_BATCH_BYTES = 256 * 1024


class ReplaceableProducer:
    """Sends batches through one idempotent producer with acks=all at a time."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._producers = Replaceable(self._started, partial(_stop_producer, grace_s=STOP_S))

    async def current(self) -> AIOKafkaProducer:
        return await self._producers.current()

    async def send(
        self, partition: Partition, new_records: Sequence[NewRecord], start: int, *, removable: bool = False
    ) -> tuple[int, int]:
        """Append as many records from `start` on as one batch holds; return the first offset and their number.

        `removable`: an empty value is sent as null, with which compaction removes the key.
        The offset is -1 when a retried batch had been written already and the broker no longer knows where.
        Repeats, with one producer after the other, until it succeeds or is cancelled. One of NOT_AUTHORIZED: the user
        may not append, and repeating would not help.
        """
        while True:
            try:
                producer = await self.current()
                return await self._send_by(producer, partition, new_records, start, removable)
            except NOT_AUTHORIZED:
                raise
            except KafkaError as error:
                logger.info(
                    "a batch could not be appended to Kafka; trying again",
                    topic=partition.topic,
                    partition=partition.number,
                    error=repr(error),
                )
            await asyncio.sleep(RETRY_S)

    async def _send_by(
        self,
        producer: AIOKafkaProducer,
        partition: Partition,
        new_records: Sequence[NewRecord],
        start: int,
        removable: bool,
    ) -> tuple[int, int]:
        batch, count = _new_batch(producer, new_records, start, removable)
        try:
            sent = await producer.send_batch(batch, partition.topic, partition=partition.number)
            return (await sent).offset, count
        except (KafkaTimeoutError, ProducerClosed):  # not sent, or by a producer that was replaced
            raise
        except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
            self.replace(producer)
            raise InputError(f"the topic {partition.topic} takes no batch of this size: {error}") from error
        except KafkaError as error:
            logger.warning(
                "the producer of a Kafka log has failed and is replaced",
                topic=partition.topic,
                partition=partition.number,
                error=type(error).__name__,
            )
            self.replace(producer)
            raise
        except asyncio.CancelledError:
            self.replace(producer, at_once=True)  # or it might send this batch after later ones
            raise

    def replace(self, producer: AIOKafkaProducer, *, at_once: bool = False) -> None:
        """Let the next send start another producer; batches in flight may end, unless `at_once`."""
        self._producers.replace(producer, partial(_stop_producer, grace_s=0) if at_once else None)

    async def close(self) -> None:
        await self._producers.close()

    async def _started(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._settings, acks="all", enable_idempotence=True, max_batch_size=_BATCH_BYTES, linger_ms=0
        )
        try:
            await producer.start()
        except BaseException:
            await stop(producer)
            raise
        return producer


def _new_batch(
    producer: AIOKafkaProducer, new_records: Sequence[NewRecord], start: int, removable: bool
) -> tuple[Any, int]:
    """Return a batch with as many records from `start` on as fit, and their number; the first one always fits."""
    batch = producer.create_batch()
    count = 0
    for index in range(start, len(new_records)):
        new_record = new_records[index]
        value = None if removable and not new_record.value else new_record.value
        if batch.append(timestamp=None, key=new_record.key, value=value) is None:
            break
        count += 1
    return batch, count


async def _stop_producer(producer: AIOKafkaProducer, grace_s: float) -> None:
    """Stop the producer; batches still in flight after `grace_s` fail with ProducerClosed."""
    stopping = asyncio.ensure_future(producer.stop())
    await asyncio.wait({stopping}, timeout=grace_s)
    if not stopping.done():
        # aiokafka has no public way to stop without flushing, which never ends when the cluster is away
        producer._sender.sender_task.cancel()
        producer._message_accumulator.fail_all(ProducerClosed())
        await asyncio.wait({stopping}, timeout=STOP_S)
        stopping.cancel()
        with contextlib.suppress(TimeoutError, KafkaError, OSError):
            async with asyncio.timeout(STOP_S):
                await producer.client.close()
