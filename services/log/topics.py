"""Topics of the event log: their properties, and which partition a key belongs to."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.message import Message


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of the log. `envelope` is the message type of its records.

    A `single` topic has one partition and so one order; every other topic has the installation's number of partitions.
    Every start folds a `kept` topic from its first record on, so its records stay in the log at every age.
    A compacted topic that `forgets` loses replaced records within hours; the others when the log gets to it.
    `written_by` and `read_by` name the roles that append records to the topic, and those that read them: no other may.
    `answered_by` names the roles that must have applied a record before its writer's caller is answered. Instance n of
    N of such a role reads the partitions p with p mod N = n, as `owned` says. But a `single` topic is read by every
    instance, and all partitions are read by every instance of the roles in `whole_read_by`.

    `removable`: of a compacted topic, where an empty value may remove what was stored under its key, and the key.
    `key_of` returns the key of a message in whose key a person's token stands, and None for one without; a sealed
    record has the key of its message without what is sealed.
    """

    name: str
    envelope: type[Message]
    single: bool = False
    compacted: bool = False
    kept: bool = False
    forgets: bool = False
    written_by: tuple[str, ...] = ()
    read_by: tuple[str, ...] = ()
    answered_by: tuple[str, ...] = ()
    whole_read_by: tuple[str, ...] = ()
    removable: bool = False
    key_of: Callable[[Any], bytes | None] | None = None

    @property
    def archived(self) -> bool:
        """Whether old records of the topic leave the log for its archive."""
        return not self.compacted and not self.kept

    def partitions(self, installation: int) -> int:
        return 1 if self.single else installation

    def readers(self, role: str, partition: int, instances: int) -> Sequence[int]:
        """Return which of the role's instances read the partition; the role is one in `answered_by`."""
        if self.single or role in self.whole_read_by or not instances:
            return range(instances)
        return (partition % instances,)


Topics: TypeAlias = Mapping[str, Topic]
"""All topics of a log, by name."""


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key: its CRC-32 modulo the number of partitions. This must never change."""
    return zlib.crc32(key) % partitions


def owned(partitions: int, shard: int, shards: int) -> list[int]:
    """Return the partitions that instance `shard` of `shards` owns."""
    return list(range(shard, partitions, shards))
