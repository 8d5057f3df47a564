"""Keys of persons for tests, and the erasure of one."""

from collections.abc import Collection, Sequence
from pathlib import Path

from protos.registry.v1.devices_pb2 import Device
from protos.registry.v1.erasures_pb2 import ErasureFact
from protos.runtime.v1.log_pb2 import Meta
from services.domain.person_keys import BLOCKS, NAMES, SECRET, KeyFiles, KeyRing, PersonKeySet
from services.domain.sealing import SEALED_TOPICS, Sealer
from services.domain.topics import ERASURES, TOPICS
from services.log.port import NewRecord
from services.process.metrics import ERASURES_APPLIED
from services.registry.erasures import person_erased

READERS_AND_WRITERS = {role for name in SEALED_TOPICS for role in (*TOPICS[name].read_by, *TOPICS[name].written_by)}
"""The roles that read or append personal values, and so need the keys of persons."""


def key_ring(directory: Path) -> KeyRing:
    """Return the keys in a directory, which are made if there are none."""
    directory.parent.mkdir(exist_ok=True)
    return KeyRing(KeyFiles(directory) if directory.exists() else KeyFiles.create(directory))


def counted_keys(directory: Path) -> KeyRing:
    """Return new keys that are the same each time: bytes and roots that count up."""
    blocks = [bytes(4) + number.to_bytes(SECRET, "big") for number in range(1, BLOCKS + 1)]
    return KeyRing(KeyFiles.fill(directory, PersonKeySet(bytes(range(NAMES)), blocks)))


def erasure(
    sealer: Sealer | None, appkey: str, devices: Sequence[Device], aliases: Collection[str] = (), *, time_ms: int
) -> NewRecord:
    """Return the record of an erasure, as the registry appends it."""
    assert sealer is not None
    erased = person_erased(sealer, appkey, devices, aliases)
    fact = ErasureFact(meta=Meta(event_id=bytes(16), time_ms=time_ms, writer="registry"), erased=erased)
    return NewRecord(ERASURES.name, 0, erased.erasure_id.encode(), fact.SerializeToString())


def applied_erasures(role: str, part: str) -> float:
    """Return how many erasures the part of a role of this process says that it has applied."""
    samples = [sample for family in ERASURES_APPLIED.collect() for sample in family.samples]
    wanted = {"role": role, "part": part}
    return next((sample.value for sample in samples if sample.labels == wanted), 0)
