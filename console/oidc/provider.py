"""The OpenID Connect provider over HTTP, within bounds of time and size, and checks of what it signs."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, KeySet
from joserfc.jws import JWSRegistry

from console.oidc.settings import OidcSettings, is_allowed_url
from services.errors import CarillonError, UnavailableError
from services.process.clock import Clock

# The errors of an OpenID Connect provider.
#
# CarillonError
# ├── UnavailableError
# │   └── ProviderAwayError    it does not answer, answers with a fault, or cannot be used as it is configured
# ├── ProviderRefusalError     it refuses: the code or the refresh token is not valid, or the person said no
# ├── StaleLogInError          the answer belongs to no log-in that this browser has begun lately
# └── InvalidTokenError        a token that is not for this console, or that the provider did not sign


class ProviderAwayError(UnavailableError):
    """The provider does not answer, or its answer cannot be used; ask again later."""


class ProviderRefusalError(CarillonError):
    """The provider refuses, and would refuse a repetition too."""


class StaleLogInError(CarillonError):
    """The provider's answer belongs to no log-in that this browser has begun in the last minutes."""


class InvalidTokenError(CarillonError):
    """A token is not valid for this console; the message says why, for the log."""


# Checks of what a provider signs: ID tokens (OpenID Connect Core 1.0) and log-out tokens (Back-Channel Logout 1.0).
#
# joserfc verifies signatures and compares claims; what is checked beyond that is here.

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


DEADLINE_S = 5.0
"""How long one request to the provider may take, the whole answer included."""

MAX_ANSWER = 512 * 1024
KEPT_MS = 3_600_000
"""How long the metadata and the keys are used before they are fetched again."""

PAUSE_MS = 10_000
"""How long a fetch is not repeated after a failure, and the keys are not fetched again for unknown ones."""

_REFUSALS = frozenset({"invalid_grant", "access_denied", "login_required", "consent_required", "interaction_required"})
"""Errors that concern the person or the token. The others mean a fault of the provider or of the settings."""

_AT_A_TIME = 16
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
Answer = TypeVar("Answer")


class Metadata(msgspec.Struct, frozen=True):
    """What the provider says about itself (OpenID Connect Discovery 1.0), as far as it is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    revocation_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False

    def check(self, issuer: str) -> None:
        """Check the metadata. ProviderAwayError: they are of another issuer, or an endpoint is not reached by HTTPS."""
        if self.issuer != issuer:
            raise ProviderAwayError(f"the provider says that its issuer is {self.issuer!r}, and not {issuer!r}")
        urls = (self.authorization_endpoint, self.token_endpoint, self.jwks_uri)
        optional = (self.userinfo_endpoint, self.end_session_endpoint, self.revocation_endpoint)
        for url in (*urls, *(url for url in optional if url)):
            if not is_allowed_url(url):
                raise ProviderAwayError(f"the provider names the address {url!r}, which is not https")


class _Keys(msgspec.Struct, frozen=True):
    keys: list[Any]


class Tokens(msgspec.Struct, frozen=True):
    """The answer of the token endpoint. A renewal may leave out what stays as it was."""

    access_token: str = ""
    refresh_token: str = ""
    id_token: str = ""


class _Fault(msgspec.Struct, frozen=True):
    error: str = ""


class Provider:
    """The provider of the settings. ProviderAwayError: it does not answer, or not as it should.

    `transport` is given by tests alone.
    """

    def __init__(self, settings: OidcSettings, clock: Clock, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.issuer = settings.oidc_issuer or ""
        self.client_id = settings.oidc_client_id or ""
        self._secret = settings.oidc_client_secret()
        self._clock = clock
        self._transport = transport
        self._tls = settings.oidc_tls()
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self._fetching = asyncio.Lock()
        self._metadata: Metadata | None = None
        self._keys = KeySet([])
        self._fetched_ms = {"metadata": 0, "keys": 0}
        self._tried_ms = {"metadata": 0, "keys": 0}

    async def metadata(self) -> Metadata:
        """Return the provider's metadata, at most an hour old, or older while it does not answer."""
        async with self._fetching:
            if self._is_due("metadata", is_missing=self._metadata is None):
                await self._fetch_metadata()
        if self._metadata is None:
            raise ProviderAwayError("the provider did not answer a moment ago")
        return self._metadata

    async def keys(self, *, is_one_unknown: bool = False) -> KeySet:
        """Return the provider's keys; with `is_one_unknown` fetched anew, unless that was done a moment ago."""
        uri = (await self.metadata()).jwks_uri
        async with self._fetching:
            if self._is_due("keys", is_missing=not self._keys or is_one_unknown):
                self._tried_ms["keys"] = self._clock.now_ms()
                try:
                    found = usable_keys((await self._get(uri, _Keys)).keys)
                except ProviderAwayError:
                    if not self._keys:
                        raise
                else:
                    self._keys = found or self._keys
                    self._fetched_ms["keys"] = self._clock.now_ms()
        return self._keys

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> Tokens:
        """Return the tokens of an authorization code. ProviderRefusalError: it is not valid, or used already."""
        fields = {"code": code, "code_verifier": verifier, "redirect_uri": redirect_uri}
        tokens = await self._token_request({"grant_type": "authorization_code", **fields})
        if not tokens.id_token:
            raise InvalidTokenError("the provider gave no ID token")
        return tokens

    async def renew(self, refresh_token: str) -> Tokens:
        """Return new tokens for a refresh token. ProviderRefusalError: the session at the provider is over."""
        return await self._token_request({"grant_type": "refresh_token", "refresh_token": refresh_token})

    async def user_info(self, access_token: str, subject: str) -> Mapping[str, Any]:
        """Return the claims at the UserInfo endpoint, empty if there is none. InvalidTokenError: of another subject."""
        url = (await self.metadata()).userinfo_endpoint
        if not url or not access_token:
            return {}
        claims = await self._get(url, dict[str, Any], {"Authorization": f"Bearer {access_token}"})
        if claims.get("sub") != subject:
            raise InvalidTokenError("the UserInfo endpoint answers for another subject")
        return claims

    async def revoke(self, refresh_token: str) -> None:
        """Tell the provider that a refresh token is not needed any more (RFC 7009), if it can be told."""
        url = (await self.metadata()).revocation_endpoint
        if url:
            await self._post(url, {"token": refresh_token, "token_type_hint": "refresh_token"})

    def _is_due(self, kind: str, *, is_missing: bool) -> bool:
        now_ms = self._clock.now_ms()
        is_old = now_ms - self._fetched_ms[kind] >= KEPT_MS
        return (is_missing or is_old) and now_ms - self._tried_ms[kind] >= PAUSE_MS

    async def _fetch_metadata(self) -> None:
        self._tried_ms["metadata"] = self._clock.now_ms()
        try:
            found = await self._get(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration", Metadata)
            found.check(self.issuer)
        except ProviderAwayError:
            if self._metadata is None:
                raise
        else:
            self._metadata = found
            self._fetched_ms["metadata"] = self._clock.now_ms()

    async def _token_request(self, fields: Mapping[str, str]) -> Tokens:
        url = (await self.metadata()).token_endpoint
        status, content = await self._post(url, fields)
        if status == 200:
            return _decoded(content, Tokens, url)
        try:
            error = msgspec.json.decode(content, type=_Fault).error
        except msgspec.DecodeError:
            error = ""
        if status in (400, 401, 403) and error in _REFUSALS:
            raise ProviderRefusalError(f"the provider refuses: {error}")
        raise ProviderAwayError(f"{url} answers with HTTP {status} {error[:64]!r}")

    async def _post(self, url: str, fields: Mapping[str, str]) -> tuple[int, bytes]:
        """Send a form of this client, with its secret in the way that the provider accepts."""
        methods = (await self.metadata()).token_endpoint_auth_methods_supported
        form, headers = dict(fields), dict(_HEADERS)
        if self._secret and "client_secret_basic" in methods:
            # RFC 6749, section 2.3.1: both are encoded as in a form before they are joined.
            pair = httpx.BasicAuth(quote(self.client_id, safe=""), quote(self._secret, safe=""))
            headers["Authorization"] = next(pair.auth_flow(httpx.Request("POST", url))).headers["Authorization"]
        else:
            form["client_id"] = self.client_id
            if self._secret:
                form["client_secret"] = self._secret
        return await self._ask(httpx.Request("POST", url, data=form, headers=headers))

    async def _get(self, url: str, kind: type[Answer], headers: Mapping[str, str] | None = None) -> Answer:
        request = httpx.Request("GET", url, headers={**_HEADERS, **(headers or {})})
        status, content = await self._ask(request)
        if status != 200:
            raise ProviderAwayError(f"{url} answers with HTTP {status}")
        return _decoded(content, kind, url)

    async def _ask(self, request: httpx.Request) -> tuple[int, bytes]:
        """Return the status and the content; redirects are not followed."""
        try:
            async with (
                asyncio.timeout(DEADLINE_S),
                self._slots,
                httpx.AsyncClient(verify=self._tls, transport=self._transport, timeout=DEADLINE_S) as client,
            ):
                answer = await client.send(request, stream=True)
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise ProviderAwayError(f"{request.url} answers with a compressed body, which was not asked for")
                content = bytearray()
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > MAX_ANSWER:
                        raise ProviderAwayError(f"{request.url} answers with more than {MAX_ANSWER} bytes")
                return answer.status_code, bytes(content)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProviderAwayError(f"{request.url} does not answer: {error or type(error).__name__}") from None


def _decoded(content: bytes, kind: type[Answer], url: str) -> Answer:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProviderAwayError(f"{url} answers with something else than is expected: {error}") from None
