"""The CSRF token of a session as forms carry it.

Each page shows it under another pad: pages are compressed, and the size of one that shows the token itself beside what
a request has given could tell the token byte by byte.
"""

import base64
import binascii
import hmac
import secrets


def padded(token: str) -> str:
    """Return the token under a new pad."""
    pad = secrets.token_bytes(len(token))
    return base64.urlsafe_b64encode(pad + _under(pad, token.encode())).decode()


def is_token(given: str, token: str) -> bool:
    """Return whether a form has sent this token, under any pad."""
    try:
        decoded = base64.urlsafe_b64decode(given)
    except (binascii.Error, ValueError):
        return False
    half = len(decoded) // 2
    return hmac.compare_digest(_under(decoded[:half], decoded[half : 2 * half]), token.encode())


def _under(pad: bytes, text: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(pad, text, strict=True))
