"""Checks of what a provider signs: ID tokens (OpenID Connect Core 1.0) and log-out tokens (Back-Channel Logout 1.0).

joserfc verifies signatures and compares claims; what is checked beyond that is here.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, KeySet
from joserfc.jws import JWSRegistry

from edge.console.oidc.errors import InvalidTokenError

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Accepted signatures: with a key that the provider alone has. Neither `none` nor one made with a shared secret."""

LEEWAY_S = 60
"""How far the clocks of the provider and of this host may differ."""

MAX_AGE_S = 600
"""How old an ID token of a log-in, or a log-out token, may be."""

LOG_OUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
_MAX_TOKEN = 64 * 1024

Claims = Mapping[str, Any]


class UnknownKeyError(InvalidTokenError):
    """The token names a key that the provider has not published, or not yet when its keys were fetched."""


def usable_keys(published: Iterable[object]) -> KeySet:
    """Return the keys of a JSON Web Key Set with which signatures can be verified; the others are passed over."""
    keys = []
    for each in published:
        if not isinstance(each, dict) or each.get("kty") not in ("RSA", "EC", "OKP") or each.get("use", "sig") != "sig":
            continue
        try:
            keys.append(JWKRegistry.import_key(each))
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    return KeySet(keys)


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Checks tokens of one issuer for one client, with the issuer's present keys and the time in seconds."""

    issuer: str
    client_id: str
    keys: KeySet
    now_s: int

    def id_token(self, text: str, *, nonce: str) -> Claims:
        """Return the claims of the ID token of a log-in that was begun with this nonce. InvalidTokenError: why not."""
        claims = self._claims(text)
        if claims.get("nonce") != nonce:
            raise InvalidTokenError("the ID token has another nonce")
        self._check_age(claims)
        return claims

    def renewed_id_token(self, text: str, *, subject: str) -> Claims:
        """Return the claims of the ID token that came with a renewal: it must be of the same subject."""
        claims = self._claims(text)
        if claims["sub"] != subject:
            raise InvalidTokenError("the renewed ID token is of another subject")
        return claims

    def log_out_token(self, text: str) -> Claims:
        """Return the claims of a log-out token, which names a subject and is no ID token."""
        claims = self._claims(text, media_type="logout+jwt")
        events = claims.get("events")
        if not isinstance(events, dict) or not isinstance(events.get(LOG_OUT_EVENT), dict):
            raise InvalidTokenError("the token is no log-out token")
        if not isinstance(claims.get("jti"), str):
            raise InvalidTokenError("a log-out token has an identifier (jti)")
        if "nonce" in claims:
            raise InvalidTokenError("a log-out token has no nonce")
        self._check_age(claims)
        return claims

    def _claims(self, text: str, *, media_type: str = "") -> Claims:
        """Return the claims of a token of this issuer for this client that is signed and valid now."""
        if len(text) > _MAX_TOKEN:
            raise InvalidTokenError("the token is too long")
        registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        try:
            token = jwt.decode(text, self.keys, algorithms=list(ALGORITHMS), registry=registry)
        except InvalidKeyIdError as error:
            raise UnknownKeyError(str(error)) from None
        except (JoseError, ValueError, TypeError) as error:
            raise InvalidTokenError(f"the token cannot be read, or its signature is wrong: {error}") from None
        kind = str(token.header.get("typ", "JWT")).lower().removeprefix("application/")
        if kind not in ("jwt", media_type):
            raise InvalidTokenError(f"a token of type {kind!r} is not expected here")
        self._check(token.claims)
        return token.claims

    def _check(self, claims: Claims) -> None:
        registry = jwt.JWTClaimsRegistry(
            now=self.now_s,
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "value": self.client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
        )
        try:
            registry.validate(dict(claims))
        except JoseError as error:
            raise InvalidTokenError(str(error)) from None
        if not re.fullmatch(r"[!-~]{1,255}", claims["sub"]):
            raise InvalidTokenError("the subject is no text of 1 to 255 ASCII characters")
        audience, party = claims["aud"], claims.get("azp")
        if (isinstance(audience, list) and len(audience) > 1 and party is None) or party not in (None, self.client_id):
            raise InvalidTokenError("the token was issued to another client (azp)")

    def _check_age(self, claims: Claims) -> None:
        if self.now_s - claims["iat"] > MAX_AGE_S + LEEWAY_S:
            raise InvalidTokenError("the token is too old")
