"""Generation of ids: events, device tokens, appkeys and secrets."""

import itertools
import os
import secrets
import string

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
