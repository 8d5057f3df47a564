"""The topic `erasures`: its records, and how far the roles of this process have applied it, as statuses announce."""

from google.protobuf.message import DecodeError

from protos.registry.v1.erasures_pb2 import ErasureFact
from services.domain.topics import ERASURES_PARTITION
from services.log.port import Record
from services.process.logs import logger
from services.process.metrics import ERASURES_APPLIED
from services.replica.positions import AppliedPositions


def erasure_fact(record: Record) -> ErasureFact | None:
    """Return the fact of a record of `erasures`; None if it cannot be read."""
    try:
        return ErasureFact.FromString(record.value)
    except DecodeError as error:
        logger.error("a record of erasures cannot be read", offset=record.offset, error=str(error))
        return None


def erasure_of(record: Record) -> ErasureFact | None:
    """Return the erasure of a person that a record is; None for any other fact, and one that cannot be read."""
    fact = erasure_fact(record)
    return fact if fact is not None and fact.HasField("erased") else None


def export_applied_erasures(role: str, part: str, applied: AppliedPositions) -> None:
    """Export how many erasures a part of a role has applied, where these positions say so."""

    def until() -> float:
        return applied.next_offsets([ERASURES_PARTITION]).get(ERASURES_PARTITION, 0)

    ERASURES_APPLIED.labels(role, part).set_function(until)
