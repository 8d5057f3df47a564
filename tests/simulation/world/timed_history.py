"""The event log of a world, folded for the checks."""

from collections import defaultdict

from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import DELIVERIES, decode
from services.log.port import Log, Record
from tests.simulation.kernel.log.broker import Broker
from tests.soak.history import DeviceNumber, History, rows


class TimedHistory(History):
    """The folded event log with the true times of its records: those in the records are of their writers' clocks."""

    def __init__(self, broker: Broker, log: Log) -> None:
        super().__init__(log, broker.partitions)
        self._broker = broker
        self.reasons: defaultdict[tuple[int, DeviceNumber], set[str]] = defaultdict(set)
        """The reasons with which messages failed on devices, by message id."""

    def _fold(self, record: Record) -> None:
        super()._fold(record)
        if record.topic == DELIVERIES.name:
            for outcomes in decode(record).outcomes.apps:
                for (_, msgid, number), index in zip(
                    rows(record.partition, outcomes), outcomes.reason_indexes, strict=True
                ):
                    if index:
                        self.reasons[msgid, number].add(outcomes.reasons[index - 1])

    def time_ms(self, record: Record, meta: Meta) -> int:
        return self._broker.stored_ms(record)
