"""Follows the topic `instances`, so that callers find the owner of a shard."""

import asyncio
from collections.abc import Callable

from google.protobuf.message import DecodeError

from protos.runtime.v1.instances_pb2 import InstanceFact
from services.runtime.log.port import LOG_UNAVAILABLE, Log, Partition
from services.runtime.ownership.instances import Instances
from services.runtime.process.logs import logger
from services.runtime.process.retries import retry_until_available

INSTANCES_TOPIC = "instances"
_PARTITION = Partition(INSTANCES_TOPIC, 0)

RECENT_RECORDS = 2_000
"""How many of the latest records a start reads. Instances that are present write more at short intervals."""


class InstanceDirectory:
    """The instances that the log tells of. `run` follows the log; nothing is known before."""

    def __init__(
        self, own: str = "", on_record: Callable[[InstanceFact, int], None] = lambda fact, offset: None
    ) -> None:
        """`on_record` is called with each record and its offset, once it is applied."""
        self.instances = Instances(own)
        self._on_record = on_record
        self._changed = asyncio.Event()

    @property
    def change(self) -> asyncio.Event:
        """An event that the next record sets. Get it before asking, then wait for it."""
        return self._changed

    def address(self, role: str, shard: int) -> str | None:
        """Return where the owner of the shard takes calls; None where no owner is known."""
        owner = self.instances.owner(role, shard)
        return owner.alive.address if owner else None

    async def run(self, log: Log, on_start: Callable[[], None] = lambda: None) -> None:
        """Follow the log until cancelled; call `on_start` once the reader is open."""
        end = (await retry_until_available(LOG_UNAVAILABLE, lambda: log.ends([_PARTITION])))[_PARTITION]
        start = {_PARTITION: max(0, end - RECENT_RECORDS)}
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: log.open(start))
        try:
            on_start()
            while True:
                for record in await retry_until_available(LOG_UNAVAILABLE, reader.read):
                    try:
                        fact = InstanceFact.FromString(record.value)
                    except DecodeError as error:
                        logger.error("a record of instances cannot be read", offset=record.offset, error=str(error))
                        continue
                    self.instances.apply(fact)
                    self._on_record(fact, record.offset)
                self._changed.set()
                self._changed = asyncio.Event()
        finally:
            await reader.close()
