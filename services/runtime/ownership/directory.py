"""Follows the topic `instances`, so that callers find the owner of a shard."""

import asyncio
from collections.abc import Callable

from google.protobuf.message import DecodeError

from protos.runtime.v1.instances_pb2 import InstanceFact
from services.runtime.log.port import LOG_UNAVAILABLE, Log, Partition
from services.runtime.ownership.instances import Instance, Instances
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
        owner = self.owner(role, shard)
        return owner.alive.address if owner else None

    def owner(self, role: str, shard: int) -> Instance | None:
        return self.instances.owner(role, shard)

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
                self.note_change()
        finally:
            await reader.close()

    def note_change(self) -> None:
        """Wake those that wait for the next record: `instances` has been changed."""
        self._changed.set()
        self._changed = asyncio.Event()


class OwnerOfShard:
    """The owner of one shard, as a directory tells of it. Without a directory it is never known and never changes."""

    def __init__(self, directory: InstanceDirectory | None, role: str, shard: int) -> None:
        self._directory = directory
        self._role = role
        self._shard = shard

    @property
    def id(self) -> str | None:
        """The id of the instance that owns the shard; None where no owner is known."""
        owner = self._directory.owner(self._role, self._shard) if self._directory else None
        return owner.id if owner else None

    async def wait_other(self, known: str | None) -> None:
        """Return once an owner is known that is not the instance of this id."""
        while self._directory is not None:
            change = self._directory.change
            if self.id not in (None, known):
                return
            await change.wait()
        await asyncio.Event().wait()
