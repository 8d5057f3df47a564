"""Provider tokens: what proves to Apple that a push comes from the app's team (JWT with ES256, RFC 7515 and 7518)."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from services.domain.apns.credentials import ApnsCredentials
from services.runtime.errors import CarillonError
from services.runtime.process.clock import Clock

STEP_MS = 30 * 60_000
"""A new token this often. Apple takes one for an hour."""

REST_MS = 20 * 60_000
"""Apple wants no new token sooner."""

_LAG_MS = 5 * 60_000
"""A token's age at its first use, so that a clock that is a little fast does no harm."""

_OLD_MS = 55 * 60_000


class KeyFaultError(CarillonError):
    """The key is no PEM text of a private key on the curve P-256."""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    issued_ms: int
    since_ms: int


class ProviderToken:
    """The current token of one team and key.

    Its time of issue is a function of the time of day and its signature is deterministic, so every process with the
    key, and one that starts again, has the same token: Apple counts new ones.
    """

    def __init__(self, credentials: ApnsCredentials, clock: Clock) -> None:
        self._key = signing_key(credentials.key_pem)
        self._header = {"alg": "ES256", "kid": credentials.key_id}
        self._team_id = credentials.team_id
        self._clock = clock
        self._token: _Token | None = None
        self._older: _Token | None = None
        self._renewed_ms = -REST_MS
        self._not_before_ms = 0

    def text(self) -> str:
        """The token to use now."""
        now_ms = self._clock.now_ms()
        step_ms = now_ms - _LAG_MS - (now_ms - _LAG_MS) % STEP_MS
        token = self._token
        if token is None or (
            step_ms > token.issued_ms and now_ms - token.since_ms >= REST_MS and now_ms >= self._not_before_ms
        ):
            token = self._issue(step_ms, now_ms)
        return token.text

    def renew(self, refused: str) -> bool:
        """Apple says that this token has expired: whether there is another now. False: it is too soon for one."""
        now_ms = self._clock.now_ms()
        if self._token is None or self._token.text != refused:
            return True
        if now_ms - self._renewed_ms < REST_MS or now_ms < self._not_before_ms:
            return False
        self._renewed_ms = now_ms
        self._issue(now_ms, now_ms)
        return True

    def hold(self) -> None:
        """Apple has seen too many tokens: take the older one, while it is good, and issue none for a while."""
        now_ms = self._clock.now_ms()
        self._not_before_ms = now_ms + REST_MS
        if self._older is not None and now_ms - self._older.issued_ms < _OLD_MS:
            self._token, self._older = self._older, None

    def _issue(self, issued_ms: int, now_ms: int) -> _Token:
        self._older = self._token
        claims: dict[str, str | int] = {"iss": self._team_id, "iat": issued_ms // 1000}
        signed = f"{_encoded(self._header)}.{_encoded(claims)}"
        self._token = _Token(f"{signed}.{_base64(_signature(self._key, signed.encode()))}", issued_ms, now_ms)
        return self._token


def signing_key(pem: str) -> ec.EllipticCurvePrivateKey:
    """The key in the PEM text of a .p8 file; KeyFaultError without a word of what it holds."""
    try:
        key = serialization.load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFaultError("the APNs key is no private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise KeyFaultError("the APNs key is not on the curve P-256")
    return key


def _signature(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    r, s = decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def _encoded(part: Mapping[str, str | int]) -> str:
    return _base64(json.dumps(part, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
