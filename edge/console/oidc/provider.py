"""The OpenID Connect provider over HTTP: its metadata, keys and endpoints, asked within bounds of time and size."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from joserfc.jwk import KeySet

from edge.console.oidc.errors import InvalidTokenError, ProviderAwayError, ProviderRefusalError
from edge.console.oidc.settings import OidcSettings, is_allowed_url
from edge.console.oidc.tokens import usable_keys
from services.runtime.process.clock import Clock

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
        """Return the provider's metadata, not older than an hour unless it does not answer meanwhile."""
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
