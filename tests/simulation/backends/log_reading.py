"""Reading the log of a world: its records, decoded, without delays and faults."""

from collections.abc import Iterator
from typing import Any

from services.domain.topics import decode
from services.runtime.log.port import Partition
from tests.simulation.kernel.log.broker import Broker


def messages(broker: Broker, topic: str) -> Iterator[Any]:
    """Yield the messages of a topic, partition by partition; those that compaction has removed are not there."""
    for number in range(broker.topics[topic].partitions(broker.partitions)):
        for record in broker.records(Partition(topic, number)):
            yield decode(record)
