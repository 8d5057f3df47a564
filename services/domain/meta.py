"""The metadata that every record of the log carries."""

from protos.runtime.v1.log_pb2 import Meta, Origin
from services.domain.ids import EventIds


class RecordStamp:
    """Completes the meta of the new records of one writer, such as a role."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self._event_ids = EventIds()

    def complete(self, meta: Meta, now_ms: int, origin: Origin | None = None) -> None:
        """Set the writer and the origin, and the event id and the time that the meta does not have yet."""
        meta.writer = self._writer
        meta.event_id = meta.event_id or self._event_ids.take()
        meta.time_ms = meta.time_ms or now_ms
        if origin is not None:
            meta.origin.CopyFrom(origin)
