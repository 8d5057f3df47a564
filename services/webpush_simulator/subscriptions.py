"""Subscriptions as browsers make them, and what a browser does with a message: it decrypts it (RFC 8188, RFC 8291)."""

import base64
import hmac
import os
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_CURVE = ec.SECP256R1()
_HEADER = 16 + 4 + 1
_POINT = 65
_TAG = 16


class UndecryptableError(Exception):
    """A browser cannot decrypt the message; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class BrowserSubscription:
    """A subscription with the secrets that only the browser has. `application_key`: the app's VAPID key it is bound to.

    `token`: the last part of the endpoint, by which the service knows it.
    """

    token: str
    application_key: str
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    auth: bytes = field(repr=False)

    @classmethod
    def make(cls, token: str, application_key: str) -> "BrowserSubscription":
        return cls(token, application_key, ec.generate_private_key(_CURVE), os.urandom(16))

    @property
    def p256dh(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def to_json(self, endpoint: str) -> dict[str, object]:
        """Return it as a browser's `PushSubscription.toJSON()`."""
        keys = {"p256dh": base64url(self.p256dh), "auth": base64url(self.auth)}
        return {"endpoint": endpoint, "expirationTime": None, "keys": keys}

    def decrypt(self, body: bytes) -> bytes:
        """Return the plaintext of a message of one or more records. UndecryptableError."""
        if len(body) < _HEADER + _POINT + _TAG + 1:
            raise UndecryptableError("the body is shorter than a header and a record")
        salt, record_size, length = body[:16], int.from_bytes(body[16:20]), body[20]
        sender, records = body[_HEADER : _HEADER + length], body[_HEADER + length :]
        if length != _POINT or record_size < _TAG + 2:
            raise UndecryptableError("the key id is no public key, or the record size is too small")
        try:
            shared = self.key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, sender))
        except ValueError:
            raise UndecryptableError("the key id is no point of the curve P-256") from None
        input_key = _derived(self.auth, shared, b"WebPush: info\0" + self.p256dh + sender, 32)
        cipher = AESGCM(_derived(salt, input_key, b"Content-Encoding: aes128gcm\0", 16))
        nonce = int.from_bytes(_derived(salt, input_key, b"Content-Encoding: nonce\0", 12))
        pieces = [records[start : start + record_size] for start in range(0, len(records), record_size)]
        return b"".join(
            _content(cipher, nonce ^ number, piece, is_last=number == len(pieces) - 1)
            for number, piece in enumerate(pieces)
        )


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _content(cipher: AESGCM, nonce: int, record: bytes, *, is_last: bool) -> bytes:
    try:
        padded = cipher.decrypt(nonce.to_bytes(12), record, None).rstrip(b"\0")
    except (InvalidTag, ValueError):
        raise UndecryptableError("the tag of a record is wrong") from None
    if padded[-1:] != (b"\x02" if is_last else b"\x01"):
        raise UndecryptableError("the padding of a record has a wrong delimiter")
    return padded[:-1]


def _derived(salt: bytes, key: bytes, info: bytes, length: int) -> bytes:
    """HKDF-SHA256 of one block."""
    extracted = hmac.digest(salt, key, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")[:length]
