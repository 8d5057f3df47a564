"""Epochs of owners: which facts of a partition count is decided by the order of the log alone.

An owner writes every fact with its epoch, and announces a new epoch by a record without a fact before it decides
anything. Epochs of a partition only rise. So a fact that comes after a record with a higher epoch is that of a former
owner, which was paused or cut off and does not know of its successor; every reader ignores it.
"""

import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType

from services.runtime.log.port import Partition

_RANDOM_BITS = 24


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

    def admits(self, partition: Partition, epoch: int) -> bool:
        """Return whether the partition's next record, which has this epoch, counts; note the epoch if it is higher."""
        highest = self._highest.get(partition, 0)
        if epoch > highest:
            self._highest[partition] = epoch
            self._on_raised(partition, epoch)
        return epoch >= highest

    def highest(self) -> dict[Partition, int]:
        """Return the highest epoch of each partition that has one."""
        return dict(self._highest)

    def of(self, partition: Partition) -> int:
        return self._highest.get(partition, 0)


def next_epoch(highest: int, random_bits: Callable[[int], int] = secrets.randbits) -> int:
    """Return an epoch above the highest: a number that counts on, and random bits, which tell apart two instances that
    announce an epoch at the same moment. The higher one of these becomes the owner."""
    return ((highest >> _RANDOM_BITS) + 1 << _RANDOM_BITS) | random_bits(_RANDOM_BITS)
