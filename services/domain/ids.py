"""Ids of events, device tokens, appkeys and secrets, and the metadata that every record of the log carries."""

import itertools
import os
import secrets
import string

from protos.runtime.v1.log_pb2 import Meta, Origin

_LETTERS = string.ascii_letters + string.digits


def event_id() -> bytes:
    """Return a new event id: 16 random bytes."""
    return os.urandom(16)


class EventIds:
    """Event ids of one writer: 10 bytes that were drawn at random once, and a counter of 6 bytes.

    A system call for each id would cost more than the rest of a record's meta. Each writer is made after the fork of
    its process, so no two have the same bytes.
    """

    def __init__(self) -> None:
        self._start = os.urandom(10)
        self._count = itertools.count()

    def take(self) -> bytes:
        """Return the next event id."""
        return self._start + next(self._count).to_bytes(6, "big")


def new_appkey() -> str:
    """Return ten decimal digits below 2^31: clients in the field store an appkey in a 32-bit int."""
    return str(1_000_000_000 + secrets.randbelow(2**31 - 1_000_000_000))


def new_secret() -> str:
    """Return 64 random letters and digits."""
    return "".join(secrets.choice(_LETTERS) for _ in range(64))


def new_token() -> str:
    """Return a device token: 32 hexadecimal digits."""
    return secrets.token_hex(16)


# The metadata that every record of the log carries.


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
