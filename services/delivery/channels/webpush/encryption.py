"""Encryption of Web Push messages: one aes128gcm record (RFC 8188), with a key shared with the browser (RFC 8291)."""

import hmac
import os
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

MAX_BODY_BYTES = 4096
"""The largest body that every push service must take (RFC 8030, section 7.2), and the size of its only record."""

_SALT_BYTES = 16
_TAG_BYTES = 16
_LAST_RECORD = b"\x02"
_HEADER_BYTES = _SALT_BYTES + 4 + 1 + 65  # salt, record size, length of the key id, key id: the sender's public key
_PADDED_TO = 256
_CURVE = ec.SECP256R1()


class Subscription(NamedTuple):
    """Where a push service takes messages for a browser or an app, and the keys of that receiver.

    `p256dh`: its public key, an uncompressed point of P-256. `auth`: its secret, 16 bytes.
    """

    endpoint: str
    p256dh: bytes
    auth: bytes


def max_plaintext_bytes(max_body_bytes: int = MAX_BODY_BYTES) -> int:
    """Return the longest plaintext that fits into a body of this size: 3,993 bytes for the largest body."""
    return max_body_bytes - _HEADER_BYTES - len(_LAST_RECORD) - _TAG_BYTES


def encrypt(
    plaintext: bytes,
    subscription: Subscription,
    max_body_bytes: int = MAX_BODY_BYTES,
    sender_key: ec.EllipticCurvePrivateKey | None = None,
    salt: bytes | None = None,
) -> bytes:
    """Return the body of a request, padded to one of a few lengths, so that its length tells little about the message.

    `sender_key` and `salt`: made for this message if not given; no two messages may share both. ValueError: the
    plaintext is too long for the body, or the subscription's key is no point of the curve.
    """
    room = max_plaintext_bytes(max_body_bytes) - len(plaintext)
    if room < 0:
        raise ValueError(f"the plaintext is {-room} bytes too long for a body of {max_body_bytes}")
    sender_key = sender_key or ec.generate_private_key(_CURVE)
    salt = salt or os.urandom(_SALT_BYTES)
    receiver = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, subscription.p256dh)
    sender = sender_key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    shared = sender_key.exchange(ec.ECDH(), receiver)
    input_key = _expand(_extract(subscription.auth, shared), b"WebPush: info\0" + subscription.p256dh + sender, 32)
    pseudorandom_key = _extract(salt, input_key)
    key = _expand(pseudorandom_key, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _expand(pseudorandom_key, b"Content-Encoding: nonce\0", 12)
    record = plaintext + _LAST_RECORD + bytes(min(-(len(plaintext) + 1) % _PADDED_TO, room))
    header = salt + MAX_BODY_BYTES.to_bytes(4, "big") + bytes([len(sender)]) + sender
    return header + AESGCM(key).encrypt(nonce, record, None)


def _extract(salt: bytes, key: bytes) -> bytes:
    """Return the pseudorandom key of HKDF-SHA256 (RFC 5869, section 2.2)."""
    return hmac.digest(salt, key, "sha256")


def _expand(pseudorandom_key: bytes, info: bytes, length: int) -> bytes:
    """Return up to 32 bytes of HKDF-SHA256 (RFC 5869, section 2.3): that is a single block."""
    return hmac.digest(pseudorandom_key, info + b"\x01", "sha256")[:length]
