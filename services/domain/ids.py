"""Generation of ids: events, device tokens, appkeys and secrets."""

import os
import secrets
import string

_LETTERS = string.ascii_letters + string.digits


def event_id() -> bytes:
    """Return a new event id: 16 random bytes."""
    return os.urandom(16)


def new_appkey() -> str:
    """Return ten decimal digits below 2^31: clients in the field store an appkey in a 32-bit int."""
    return str(1_000_000_000 + secrets.randbelow(2**31 - 1_000_000_000))


def new_secret() -> str:
    """Return 64 random letters and digits."""
    return "".join(secrets.choice(_LETTERS) for _ in range(64))


def new_token() -> str:
    """Return a device token: 32 hexadecimal digits."""
    return secrets.token_hex(16)
