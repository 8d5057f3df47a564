"""The metadata that every record of the log carries."""

from protos.runtime.v1.log_pb2 import Meta, Origin
from services.domain.ids import event_id


def stamp(meta: Meta, writer: str, now_ms: int, origin: Origin | None = None) -> None:
    """Complete the meta of a new record: set its writer and origin, and the event id and time it does not have yet."""
    meta.writer = writer
    meta.event_id = meta.event_id or event_id()
    meta.time_ms = meta.time_ms or now_ms
    if origin is not None:
        meta.origin.CopyFrom(origin)
