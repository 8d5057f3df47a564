"""Signing keys of teams, and the public keys with which the simulator checks provider tokens."""

import base64

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from services.push_simulator.certificates import pem

# Apple's rules: a provider token is valid for an hour, and a team may change its own at most every 20 minutes.
TOKEN_LIFETIME_MS = 3_600_000
MIN_TOKEN_CHANGE_MS = 20 * 60_000
_MAX_CLOCK_SKEW_MS = 60_000
_TOKENS_PER_TEAM = 10
_MAX_VERIFIED = 1000


class _Header(msgspec.Struct):
    alg: str
    kid: str


class _Claims(msgspec.Struct):
    iss: str
    iat: int


class AppleKeys:
    """The public keys that check provider tokens. While no key is registered, requests need no token."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], ec.EllipticCurvePublicKey] = {}
        self._verified: dict[str, tuple[str, int]] = {}
        self._used_tokens: dict[str, list[str]] = {}
        self._changed_ms: dict[str, int] = {}

    def register(self, team_id: str, key_id: str, public_pem: str) -> None:
        """Accept tokens signed with this key. ValueError: the PEM text is no elliptic-curve public key."""
        key = serialization.load_pem_public_key(public_pem.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("not an elliptic curve key")  # noqa: TRY004  # the same error as for invalid PEM text
        self._keys[team_id, key_id] = key

    def refusal(self, authorization: str | None, now_ms: int) -> tuple[int, str] | None:
        """Return Apple's (status, reason) for an authorization header, or None if the provider token is valid."""
        if not self._keys:
            return None
        if authorization is None:
            return 403, "MissingProviderToken"
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return 403, "InvalidProviderToken"
        try:
            team_id, issued_ms = self._verified.get(token) or self._verify(token)
        except (ValueError, InvalidSignature):
            return 403, "InvalidProviderToken"
        if issued_ms > now_ms + _MAX_CLOCK_SKEW_MS:
            return 403, "InvalidProviderToken"
        if now_ms - issued_ms > TOKEN_LIFETIME_MS:
            return 403, "ExpiredProviderToken"
        return None if self._may_use(team_id, token, now_ms) else (429, "TooManyProviderTokenUpdates")

    def _verify(self, token: str) -> tuple[str, int]:
        """Check the signature; return the team id and the time of issue in ms."""
        signed, _, signature = token.rpartition(".")
        encoded_header, _, encoded_claims = signed.partition(".")
        header = msgspec.json.decode(_decoded(encoded_header), type=_Header)
        claims = msgspec.json.decode(_decoded(encoded_claims), type=_Claims)
        key = self._keys.get((claims.iss, header.kid))
        raw = _decoded(signature)
        if key is None or header.alg != "ES256" or len(raw) != 64:
            raise ValueError("not a token of a registered key")
        der = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        key.verify(der, signed.encode(), ec.ECDSA(hashes.SHA256()))
        if len(self._verified) >= _MAX_VERIFIED:
            self._verified.clear()
        self._verified[token] = claims.iss, claims.iat * 1000
        return self._verified[token]

    def _may_use(self, team_id: str, token: str, now_ms: int) -> bool:
        """Return whether the team has used the token before, or last changed it long enough ago."""
        used = self._used_tokens.setdefault(team_id, [])
        if token in used:
            return True
        if now_ms - self._changed_ms.get(team_id, now_ms - MIN_TOKEN_CHANGE_MS) < MIN_TOKEN_CHANGE_MS:
            return False
        self._changed_ms[team_id] = now_ms
        used.append(token)
        del used[:-_TOKENS_PER_TEAM]
        return True


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


# P-256 signing keys in the format of Apple's .p8 files.


def new_key() -> str:
    """Return a new private key on the curve P-256, as Apple makes them for teams, as PEM text."""
    return pem(ec.generate_private_key(ec.SECP256R1()))


def public_key(key_pem: str) -> str:
    """Return the public key of a private key; both are PEM text."""
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )
