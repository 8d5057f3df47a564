"""Service accounts that the simulator knows, and the access tokens that it grants them (RFC 7523)."""

import base64
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from services.domain.channel_credentials.fcm import GOOGLE_TOKEN_URI, ServiceAccount

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
TOKEN_LIFE_S = 3_599
_MAX_ASSERTION_S = 3_600
_MAX_CLOCK_SKEW_S = 300
_MAX_TOKENS = 10_000


class _Claims(msgspec.Struct):
    iss: str
    scope: str
    aud: str
    iat: int
    exp: int


class _Known(NamedTuple):
    project_id: str
    key: RSAKey


class _Token(NamedTuple):
    project_id: str
    expires_ms: int


class FcmGrantError(Exception):
    """Google's refusal of a token: its `error` and `error_description`."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(f"{error}: {description}")
        self.error = error
        self.description = description


def new_account(project_id: str) -> ServiceAccount:
    """Return an account with a new key, as Google's console makes them."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    email = f"carillon@{project_id}.iam.gserviceaccount.com"
    return ServiceAccount(project_id, email, secrets.token_hex(20), pem)


class ServiceAccounts:
    """The accounts and their access tokens; a registered account may send to its project alone."""

    def __init__(self) -> None:
        self.granted = 0
        self._accounts: dict[tuple[str, str], _Known] = {}
        self._tokens: OrderedDict[str, _Token] = OrderedDict()

    def register(self, account: ServiceAccount) -> None:
        """Accept assertions that are signed with the account's key."""
        public = serialization.load_pem_private_key(account.private_key.encode(), None).public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        key = RSAKey.import_key(public.public_bytes(serialization.Encoding.PEM, form))
        self._accounts[account.client_email, account.private_key_id] = _Known(account.project_id, key)

    def delete(self, account: ServiceAccount) -> None:
        """Accept the account's key no more; tokens that it was granted stay valid."""
        del self._accounts[account.client_email, account.private_key_id]

    @property
    def projects(self) -> frozenset[str]:
        """The projects that exist."""
        return frozenset(known.project_id for known in self._accounts.values()) | {
            token.project_id for token in self._tokens.values()
        }

    def grant(self, body: bytes, now_ms: int) -> Mapping[str, object]:
        """Return the answer to a form with an assertion. GrantError."""
        try:
            form = dict(parse_qsl(body.decode(), strict_parsing=True))
        except (UnicodeDecodeError, ValueError):
            form = {}
        if form.get("grant_type") != GRANT:
            raise FcmGrantError("unsupported_grant_type", "Invalid grant_type")
        project_id = self._checked(form.get("assertion", ""), now_ms // 1000)
        token = f"ya29.{secrets.token_urlsafe(64)}"
        self._tokens[token] = _Token(project_id, now_ms + 1000 * TOKEN_LIFE_S)
        while len(self._tokens) > _MAX_TOKENS:
            self._tokens.popitem(last=False)
        self.granted += 1
        return {"access_token": token, "expires_in": TOKEN_LIFE_S, "token_type": "Bearer"}

    def revoke_tokens(self) -> None:
        """Accept none of the tokens granted so far any more."""
        self._tokens = OrderedDict((text, token._replace(expires_ms=0)) for text, token in self._tokens.items())

    def project_of(self, authorization: str | None, now_ms: int) -> str | None:
        """Return the project to which the bearer of this header may send; None: no valid token."""
        scheme, _, text = (authorization or "").partition(" ")
        token = self._tokens.get(text)
        if scheme.lower() != "bearer" or token is None or token.expires_ms <= now_ms:
            return None
        return token.project_id

    def _checked(self, assertion: str, now_s: int) -> str:
        """Return the project of the account that signed an assertion. GrantError."""
        try:
            claims, key_id = _unverified(assertion)
        except (ValueError, msgspec.DecodeError):
            raise FcmGrantError("invalid_grant", "Invalid JWT: it has no valid header and claims.") from None
        emails = {email for email, _ in self._accounts}
        if claims.iss not in emails:
            raise FcmGrantError("invalid_grant", "Invalid grant: account not found")
        known = self._accounts.get((claims.iss, key_id))
        if known is None or not _is_signed(assertion, known.key):
            raise FcmGrantError("invalid_grant", "Invalid JWT Signature.")
        is_current = claims.iat - _MAX_CLOCK_SKEW_S <= now_s < claims.exp
        if not is_current or not 0 < claims.exp - claims.iat <= _MAX_ASSERTION_S:
            raise FcmGrantError(
                "invalid_grant",
                "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
                " Check your iat and exp values in the JWT claim.",
            )
        if claims.aud != GOOGLE_TOKEN_URI:
            raise FcmGrantError("invalid_grant", "Invalid JWT: Failed audience check.")
        if SCOPE not in claims.scope.split():
            raise FcmGrantError("invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        return known.project_id


def _is_signed(assertion: str, key: RSAKey) -> bool:
    try:
        jwt.decode(assertion, key, algorithms=["RS256"])
    except (JoseError, ValueError):
        return False
    return True


class _Header(msgspec.Struct):
    kid: str = ""


def _unverified(assertion: str) -> tuple[_Claims, str]:
    """Return the claims of an assertion and the id of its key, before its signature is checked."""
    header, claims, _ = assertion.split(".")
    return msgspec.json.decode(_decoded(claims), type=_Claims), msgspec.json.decode(_decoded(header), type=_Header).kid


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
