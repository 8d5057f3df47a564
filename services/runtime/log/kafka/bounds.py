"""Look-ups of the first offsets and the ends of partitions, through one consumer, replaced whenever one has failed.

A consumer asks the brokers that it knows. Where all have moved to other addresses, only a new one finds them, at the
addresses of the settings.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from services.runtime.log.kafka.client import ClientSettings, assign, new_consumer, stop
from services.runtime.log.kafka.replaceable import Replaceable
from services.runtime.log.port import Partition
from services.runtime.log.topics import Topics

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
