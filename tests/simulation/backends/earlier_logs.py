"""Stored logs of released versions, with which some worlds begin: today's roles must read them, and go on.

`store_log.py` stores that of a version. What was stored once is never changed: each later version has to read it.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path

import msgspec

from services.log.port import Record
from tests.simulation.kernel.log.broker import Broker

_DIRECTORY = Path(__file__).with_name("logs")
_END = ".json.gz"

PARTITIONS = 2
"""The number of partitions of each stored log."""


def versions() -> list[str]:
    """Return the versions whose logs are stored."""
    return sorted(path.name.removesuffix(_END) for path in _DIRECTORY.glob(f"*{_END}"))


def fill(broker: Broker, version: str) -> None:
    """Put the records that this version wrote into an empty log."""
    for record in msgspec.json.decode(gzip.decompress(_path(version).read_bytes()), type=list[Record]):
        broker.put(record)


def store(version: str, records: Sequence[Record]) -> int:
    """Store the log of a version, of each partition in the order of its offsets; return its bytes.

    FileExistsError: one is stored.
    """
    _DIRECTORY.mkdir(exist_ok=True)
    with _path(version).open("xb") as file:
        return file.write(gzip.compress(msgspec.json.encode(records), mtime=0))


def _path(version: str) -> Path:
    return _DIRECTORY / f"{version}{_END}"
