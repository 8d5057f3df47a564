"""Reading the log of a world: its records, decoded, without delays and faults."""

from collections.abc import Iterator
from typing import Any

from services.domain.topics import decode
from services.log.port import Partition
from services.replica.epochs import Epochs
from tests.simulation.kernel.log.broker import Broker


def messages(broker: Broker, topic: str) -> Iterator[Any]:
    """Yield the valid messages of a topic, partition by partition: without those of former owners.

    Messages that compaction has removed are missing. The topic must not be `apps`, which has several writers.
    """
    epochs = Epochs()
    for number in range(broker.topics[topic].partitions(broker.partitions)):
        partition = Partition(topic, number)
        for record in broker.records(partition):
            message = decode(record)
            if epochs.admits(record, message):
                yield message
