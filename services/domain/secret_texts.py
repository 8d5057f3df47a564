"""Random secrets in text form: one-time link tokens, API tokens and recovery codes. Only hashes are stored."""

import base64
import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

_ID_BYTES = 8
_SECRET_BYTES = 32
_RECOVERY_BYTES = 10
_ID = re.compile(r"[0-9a-f]{16}")
_TEXT = re.compile(r"(?P<prefix>[a-z]+)_(?P<id>[0-9a-f]{16})_[A-Za-z0-9_-]{43}")

LINK_PREFIX = "link"
TOKEN_PREFIX = "carillon"  # noqa: S105


class SecretText(NamedTuple):
    """A text `prefix_ID_secret`, with its id and its hash."""

    id: str
    text: str
    hash: bytes


def new_id() -> str:
    """Return an id of 16 hexadecimal digits for a user, a team, a link or an API token."""
    return secrets.token_hex(_ID_BYTES)


def is_id(text: str) -> bool:
    """Return whether the text has the form of such an id."""
    return _ID.fullmatch(text) is not None


def new_secret_text(prefix: str) -> SecretText:
    """Return a text with 256 random bits, and a new id in it by which it is found."""
    secret_id = new_id()
    text = f"{prefix}_{secret_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return SecretText(secret_id, text, hash_of(text))


def id_of(text: str, prefix: str) -> str | None:
    """Return the id in a text with this prefix; None if the text has another form."""
    match = _TEXT.fullmatch(text)
    return match["id"] if match and match["prefix"] == prefix else None


def hash_of(text: str) -> bytes:
    """Return the hash to store. The texts are random, so one round of SHA-256 is enough."""
    return hashlib.sha256(text.encode()).digest()


def matches(text: str, stored: bytes) -> bool:
    """Return in constant time whether this is the text with the stored hash."""
    return hmac.compare_digest(hash_of(text), stored)


def new_recovery_code() -> str:
    """Return a code of 80 random bits for people to keep: four groups of four letters and digits."""
    text = base64.b32encode(secrets.token_bytes(_RECOVERY_BYTES)).decode().lower()
    return "-".join(text[start : start + 4] for start in range(0, len(text), 4))


def recovery_hash(code: str) -> bytes:
    """Return the hash of a recovery code as a person types it, with or without dashes, in any case."""
    return hash_of("".join(code.split()).replace("-", "").lower())
