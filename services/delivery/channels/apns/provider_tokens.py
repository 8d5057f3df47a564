"""Provider tokens: JWTs that authenticate the app's team to Apple (ES256, RFC 7515 and RFC 7518)."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from services.delivery.channels import CredentialsError
from services.domain.apns_credentials import ApnsCredentials
from services.process.clock import Clock

ISSUE_INTERVAL_MS = 30 * 60_000
"""Time between scheduled tokens. Apple accepts a token for one hour."""

MIN_CHANGE_MS = 20 * 60_000
"""Apple refuses a team's new token sooner than this after the previous one."""

_BACKDATING_MS = 5 * 60_000
"""Minimum age of a scheduled token at first use, so that a slightly fast clock does no harm."""

_MAX_REUSE_AGE_MS = 55 * 60_000
"""Age up to which a former token is used again: less than the hour for which Apple accepts it."""


class InvalidKeyError(CredentialsError):
    """The key is not the PEM text of a private key on the curve P-256."""


@dataclass(frozen=True, slots=True)
class _Token:
    """An issued token. `issued_ms`: its `iat` claim. `used_since_ms`: when a process with the key began to use it."""

    text: str
    issued_ms: int
    used_since_ms: int


class ProviderToken:
    """The current token of one team and key.

    Scheduled times of issue depend on the time of day only, and signatures are deterministic. So all processes with the
    key, and restarted ones, use the same token: Apple limits how often a team's token changes.
    """

    def __init__(self, credentials: ApnsCredentials, clock: Clock) -> None:
        self._key = signing_key(credentials.key_pem)
        self._header = {"alg": "ES256", "kid": credentials.key_id}
        self._team_id = credentials.team_id
        self._clock = clock
        self._token: _Token | None = None
        self._previous: _Token | None = None
        self._renewed_ms = -MIN_CHANGE_MS
        self._held_until_ms = 0

    def text(self) -> str:
        """Return the token to use now; issues a new one when it is due."""
        now_ms = self._clock.now_ms()
        scheduled_ms = now_ms - _BACKDATING_MS - (now_ms - _BACKDATING_MS) % ISSUE_INTERVAL_MS
        token = self._token
        if token is None or (
            scheduled_ms > token.issued_ms
            and now_ms - token.used_since_ms >= MIN_CHANGE_MS
            and now_ms >= self._held_until_ms
        ):
            token = self._issue(scheduled_ms, now_ms)
        return token.text

    def renew(self, refused: str) -> bool:
        """Replace a token that Apple calls expired; False if it is too soon for a new one."""
        now_ms = self._clock.now_ms()
        if self._token is None or self._token.text != refused:
            return True
        if now_ms - self._renewed_ms < MIN_CHANGE_MS or now_ms < self._held_until_ms:
            return False
        self._renewed_ms = now_ms
        self._issue(now_ms, now_ms)
        return True

    def hold(self, refused: str) -> None:
        """After Apple has refused the current token as too new, use an older one that Apple knows, if there is one.

        No token is issued for MIN_CHANGE_MS, or until the older one exceeds the age at which Apple accepts it.

        Apple knows the token that this process used before. It may also know the scheduled token before the current
        one: another process with the key may have begun to use that token less than MIN_CHANGE_MS ago. A refusal of a
        token that is no longer the current one changes nothing.
        """
        if self._token is None or self._token.text != refused:
            return
        now_ms = self._clock.now_ms()
        self._held_until_ms = now_ms + MIN_CHANGE_MS
        known = [self._previous, self._scheduled_before()]
        usable = [token for token in known if token and now_ms - token.issued_ms < _MAX_REUSE_AGE_MS]
        if usable:
            self._token, self._previous = usable[0], None
            self._held_until_ms = min(self._held_until_ms, usable[0].issued_ms + _MAX_REUSE_AGE_MS)

    def _scheduled_before(self) -> _Token | None:
        """Return the scheduled token before the present one, if that is a scheduled one itself."""
        if self._token is None or self._token.issued_ms % ISSUE_INTERVAL_MS:
            return None
        issued_ms = self._token.issued_ms - ISSUE_INTERVAL_MS
        return self._signed(issued_ms, issued_ms + _BACKDATING_MS)

    def _issue(self, issued_ms: int, now_ms: int) -> _Token:
        self._previous = self._token
        self._token = self._signed(issued_ms, now_ms)
        return self._token

    def _signed(self, issued_ms: int, used_since_ms: int) -> _Token:
        claims: dict[str, str | int] = {"iss": self._team_id, "iat": issued_ms // 1000}
        signed = f"{_encoded(self._header)}.{_encoded(claims)}"
        signature = _base64(_signature(self._key, signed.encode()))
        return _Token(f"{signed}.{signature}", issued_ms, used_since_ms)


def signing_key(pem: str) -> ec.EllipticCurvePrivateKey:
    """Parse the PEM text of a .p8 file. InvalidKeyError, whose text never quotes the key."""
    try:
        key = serialization.load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidKeyError("the APNs key is no private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise InvalidKeyError("the APNs key is not on the curve P-256")
    return key


def _signature(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    r, s = decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def _encoded(part: Mapping[str, str | int]) -> str:
    return _base64(json.dumps(part, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
