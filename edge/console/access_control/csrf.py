"""The CSRF token of a session as forms carry it.

Each page shows the token combined with another random pad (XOR), because pages are compressed: from the sizes of pages
that show the token itself beside text of a request, an attacker could guess it byte by byte (the BREACH attack).
"""

import base64
import binascii
import hmac
import secrets


def padded(token: str) -> str:
    """Return a new pad, and the token XORed with it, in one text."""
    pad = secrets.token_bytes(len(token))
    return base64.urlsafe_b64encode(pad + _xor(pad, token.encode())).decode()


def is_token(given: str, token: str) -> bool:
    """Return whether a form has sent this token, with any pad."""
    try:
        decoded = base64.urlsafe_b64decode(given)
    except (binascii.Error, ValueError):
        return False
    half = len(decoded) // 2
    return hmac.compare_digest(_xor(decoded[:half], decoded[half : 2 * half]), token.encode())


def _xor(pad: bytes, text: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(pad, text, strict=True))
