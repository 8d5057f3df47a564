"""Halves of the log's partitions, each with a name: those that a part of the log's servers leads."""

import hashlib

from services.log.port import Partition


def is_in_half(half: str, partition: Partition) -> bool:
    """Return whether the partition belongs to the half of this name."""
    return hashlib.blake2b(f"{half}/{partition.topic}/{partition.number}".encode(), digest_size=1).digest()[0] % 2 == 0
