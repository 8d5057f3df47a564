"""Possession codes: a silent push brings one to a phone, and with it the app proves that an APNs token is its own.

A code is the second in which it was made, and a MAC over it, the app, the token and the device number. So every edge
can check it without a look-up, it expires after LIFETIME_S, and it is valid once: the device that shows it gets a new
number. In the log it is sealed, because a reader of the log could otherwise take devices over.
"""

import base64
import hmac
from collections.abc import Sequence

from services.domain.master_key import Keys

LIFETIME_S = 600
"""Time for which a code is accepted."""

_AHEAD_S = 60
"""How far the clock of the edge that made a code may be ahead of the clock of the one that checks it."""

_TIME_BYTES = 4


def possession_code(keys: Keys, appkey: str, token: str, number: int, now_ms: int) -> str:
    """Return a code of the device: 27 characters that are safe in URLs."""
    return _codes(keys, appkey, token, number, now_ms // 1000)[0]


def proves_possession(keys: Keys, code: str, appkey: str, token: str, number: int, now_ms: int) -> bool:
    """Return whether this is a code of the device that is still accepted."""
    try:
        given = code.encode("ascii")
        made_s = int.from_bytes(base64.urlsafe_b64decode(given[:8])[:_TIME_BYTES], "big")
    except ValueError:
        return False
    codes = _codes(keys, appkey, token, number, made_s)
    is_right = any(hmac.compare_digest(given, code.encode()) for code in codes)
    return is_right and -_AHEAD_S <= now_ms // 1000 - made_s < LIFETIME_S


def sealed_code(keys: Keys, code: str, appkey: str) -> bytes:
    """Encrypt a code for the log."""
    return keys.seal(code, _context(appkey))


def opened_code(keys: Keys, sealed: bytes, appkey: str) -> str:
    """Decrypt a code from the log. CarillonError: it was sealed with another master key."""
    return keys.open(sealed, _context(appkey))


def _codes(keys: Keys, appkey: str, token: str, number: int, made_s: int) -> Sequence[str]:
    """Return the code by each key that is accepted, that by the key in force first."""
    packed = made_s.to_bytes(_TIME_BYTES, "big")
    macs = keys.possession_macs(f"{made_s}/{number}/{appkey}/{token}")
    return [base64.urlsafe_b64encode(packed + mac).decode().rstrip("=") for mac in macs]


def _context(appkey: str) -> str:
    return f"{appkey}/possession"
