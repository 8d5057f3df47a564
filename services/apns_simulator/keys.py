"""Apple's side of provider tokens: whose keys it knows, and which tokens it takes."""

import base64

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

LIFE_MS = 3_600_000
REST_MS = 20 * 60_000
_AHEAD_MS = 60_000
_REMEMBERED = 10


class _Header(msgspec.Struct):
    alg: str
    kid: str


class _Claims(msgspec.Struct):
    iss: str
    iat: int


class AppleKeys:
    """Public keys by (team id, key id). While there is none, every token is taken, and none is needed."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], ec.EllipticCurvePublicKey] = {}
        self._checked: dict[str, tuple[str, int]] = {}
        self._seen: dict[str, list[str]] = {}
        self._changed_ms: dict[str, int] = {}

    def register(self, team_id: str, key_id: str, public_pem: str) -> None:
        """ValueError: the PEM text is no public key on the curve P-256."""
        key = serialization.load_pem_public_key(public_pem.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("not an elliptic curve key")  # noqa: TRY004  # like text that is no key at all
        self._keys[team_id, key_id] = key

    def refusal(self, authorization: str | None, now_ms: int) -> tuple[int, str] | None:
        """Apple's status and reason for the value of an authorization header, or None: it is good."""
        if not self._keys:
            return None
        if authorization is None:
            return 403, "MissingProviderToken"
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return 403, "InvalidProviderToken"
        try:
            team_id, issued_ms = self._checked.get(token) or self._check(token)
        except (ValueError, InvalidSignature):
            return 403, "InvalidProviderToken"
        if issued_ms > now_ms + _AHEAD_MS:
            return 403, "InvalidProviderToken"
        if now_ms - issued_ms > LIFE_MS:
            return 403, "ExpiredProviderToken"
        return None if self._is_known(team_id, token, now_ms) else (429, "TooManyProviderTokenUpdates")

    def _check(self, token: str) -> tuple[str, int]:
        signed, _, signature = token.rpartition(".")
        header, _, claims = signed.partition(".")
        kid = msgspec.json.decode(_bytes(header), type=_Header)
        said = msgspec.json.decode(_bytes(claims), type=_Claims)
        key = self._keys.get((said.iss, kid.kid))
        raw = _bytes(signature)
        if key is None or kid.alg != "ES256" or len(raw) != 64:
            raise ValueError("not a token of a key that is known")
        der = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        key.verify(der, signed.encode(), ec.ECDSA(hashes.SHA256()))
        if len(self._checked) >= 1000:
            self._checked.clear()
        self._checked[token] = said.iss, said.iat * 1000
        return self._checked[token]

    def _is_known(self, team_id: str, token: str, now_ms: int) -> bool:
        """Whether the team has used it before, or may have a new one by now."""
        seen = self._seen.setdefault(team_id, [])
        if token in seen:
            return True
        if now_ms - self._changed_ms.get(team_id, now_ms - REST_MS) < REST_MS:
            return False
        self._changed_ms[team_id] = now_ms
        seen.append(token)
        del seen[:-_REMEMBERED]
        return True


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
