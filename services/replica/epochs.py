"""Epochs of owners: which facts of a partition count is decided by the order of the log alone.

An owner writes every fact with its epoch, and announces a new epoch by a record without a fact before it decides
anything. Epochs of a partition only rise. So a fact that comes after a record with a higher epoch is that of a former
owner, which was paused or cut off and does not know of its successor; every reader ignores it.

Not every number can be an epoch. Each owner counts on by one, and its announcement takes an offset of the partition, so
at an offset no epoch can count more owners than there are offsets before it. And only an announcement has an epoch
above all earlier ones. A record whose epoch breaks these rules is no owner's: every reader leaves it out, and it
fences no owner. So whatever a forger appends, a later owner has an epoch above it.
"""

import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from services.log.port import Partition, Record

_RANDOM_BITS = 24

_UNCOUNTED = 1 << 20
"""By how many owners an epoch's count may exceed the offsets before it: the epochs in topic `apps` are counted in
another topic, and topic `instances` is younger than epochs."""


class ImpossibleEpochError(ValueError):
    """The record's epoch does not follow from the records before it, so no owner has written it."""


class Epochs:
    """The highest epoch of each partition among the records read so far."""

    def __init__(
        self,
        highest: Mapping[Partition, int] = MappingProxyType({}),
        on_raised: Callable[[Partition, int], None] = lambda partition, epoch: None,
    ) -> None:
        """`on_raised` is called with a partition and its new highest epoch, before `admits` returns."""
        self._highest = dict(highest)
        self._on_raised = on_raised

    def admits(self, record: Record, message: Any) -> bool:
        """Return whether the next record of its partition counts; note its epoch if it is higher.

        ImpossibleEpochError: no owner can have written it.
        """
        partition, epoch = Partition(record.topic, record.partition), message.meta.epoch
        highest = self._highest.get(partition, 0)
        if epoch > highest:
            self.check_higher(record, message)
            self.note(partition, epoch)
        return bool(epoch >= highest)

    def check_higher(self, record: Record, message: Any) -> None:
        """Check a record whose epoch may be higher than all read before it. ImpossibleEpochError: no owner wrote it.

        Where no epoch is known, an announcement is not demanded: it may have been removed from the log.
        """
        epoch, highest = message.meta.epoch, self.of(Partition(record.topic, record.partition))
        check_count(epoch, record.offset)
        if 0 < highest < epoch and not is_announcement(message):
            raise ImpossibleEpochError(
                f"a fact of epoch {epoch}, which nobody has announced: the last one is {highest}"
            )

    def note(self, partition: Partition, epoch: int) -> None:
        """Note an epoch that is known to be the partition's, such as one from a snapshot, if it is higher."""
        if epoch > self._highest.get(partition, 0):
            self._highest[partition] = epoch
            self._on_raised(partition, epoch)

    def highest(self) -> dict[Partition, int]:
        """Return the highest epoch of each partition that has one."""
        return dict(self._highest)

    def of(self, partition: Partition) -> int:
        return self._highest.get(partition, 0)


def check_count(epoch: int, offset: int) -> None:
    """Check that the epoch of the record at this offset counts no more owners than there can have been before it.

    ImpossibleEpochError: the epoch counts more.
    """
    if epoch >> _RANDOM_BITS > offset + _UNCOUNTED:
        raise ImpossibleEpochError(f"epoch {epoch} counts more owners than the {offset} records before it can announce")


def is_announcement(message: Any) -> bool:
    """Return whether an envelope announces an epoch: it has a meta and no fact."""
    return len(message.ListFields()) == 1


def next_epoch(highest: int, random_bits: Callable[[int], int] = secrets.randbits) -> int:
    """Return an epoch above the highest: a number that counts on, and random bits, which tell apart two instances that
    announce an epoch at the same moment. The higher one of these becomes the owner."""
    return ((highest >> _RANDOM_BITS) + 1 << _RANDOM_BITS) | random_bits(_RANDOM_BITS)
