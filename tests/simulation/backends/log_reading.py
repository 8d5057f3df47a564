"""Reading the log of a world: its records, decoded, without delays and faults."""

from collections.abc import Iterator
from typing import Any

from services.domain.topics import decode
from services.runtime.log.port import Partition
from services.runtime.projection.epochs import Epochs
from tests.simulation.kernel.log.broker import Broker


def messages(broker: Broker, topic: str) -> Iterator[Any]:
    """Yield the messages of a topic that count, partition by partition.

    Those that compaction has removed are not there, nor those of former owners. The topic is not `apps`, which has
    several writers.
    """
    epochs = Epochs()
    for number in range(broker.topics[topic].partitions(broker.partitions)):
        partition = Partition(topic, number)
        for record in broker.records(partition):
            message = decode(record)
            if epochs.admits(partition, message.meta.epoch):
                yield message
