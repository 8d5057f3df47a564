"""Access tokens (OAuth 2.0) by which a push service knows whose messages it gets, kept in memory."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from services.delivery.channels import CredentialsError
from services.errors import UnavailableError
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import CHANNEL_TOKENS

REFRESHED_AT = 0.8
"""The part of a token's life after which another one is fetched, while it is still used."""

_FIRST_BACKOFF_MS = 1_000
_MAX_BACKOFF_MS = 300_000


class TokenResponse(NamedTuple):
    """The token server's answer; status 0: there was none."""

    status: int
    body: bytes

    @property
    def reason(self) -> str:
        """The reason of a failure; "" for an answer with a token."""
        if self.status == 200:
            return ""
        return f"HTTP {self.status}" if self.status else "no answer"


class TokenOwner(NamedTuple):
    """Whose tokens they are, in logs, errors and metrics.

    `channel`: its name. `vendor`: who grants them. `project`: the owner's id there. `credentials`, `hint`: what the
    vendor may refuse, and what to look for then.
    """

    channel: str
    vendor: str
    project: str
    credentials: str
    hint: str


class _Granted(msgspec.Struct):
    access_token: str
    expires_in: int


class _Refused(msgspec.Struct):
    error: str | int = ""
    error_description: str = ""


_TOKEN = re.compile(r"[!-~]+")
"""What can stand in a header."""

_granted = msgspec.json.Decoder(_Granted)
_refused = msgspec.json.Decoder(_Refused)


class _Token(NamedTuple):
    text: str
    refresh_ms: int
    expires_ms: int


class AccessTokens:
    """The access token of one owner: fetched once for all that wait, and again before it expires.

    One request is in flight at most. A refusal backs off, so broken credentials cost a request a few minutes apart.
    """

    def __init__(self, owner: TokenOwner, request: Callable[[], Awaitable[TokenResponse]], clock: Clock) -> None:
        """`request` asks the token server once."""
        self.owner = owner
        self._request = request
        self._clock = clock
        self._token: _Token | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before_ms = 0
        self._error: Exception | None = None

    async def text(self) -> str:
        """Return a token that is valid now.

        CredentialsError: the vendor does not accept the credentials. UnavailableError: its server does not answer.
        """
        if (text := self.current()) is not None:
            return text
        fetching = self._fetch(self._clock.now_ms())
        if fetching is not None:
            await asyncio.shield(fetching)
        if (text := self.current()) is not None:
            return text
        raise self._error or UnavailableError(f"{self.owner.vendor}'s token server has not answered yet")

    def current(self) -> str | None:
        """Return a token that is valid now, if there is one; if it ends soon, another one is fetched meanwhile."""
        now_ms, token = self._clock.now_ms(), self._token
        if token is None or now_ms >= token.expires_ms:
            return None
        if now_ms >= token.refresh_ms:
            self._fetch(now_ms)
        return token.text

    def refuse(self, text: str) -> None:
        """Note that a token was refused: the next call of `text` fetches another. A former one is ignored."""
        if self._token is not None and self._token.text == text:
            self._token = None

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _fetch(self, now_ms: int) -> "asyncio.Task[None] | None":
        """Return the request that is in flight, or a new one; None while it backs off."""
        if self._fetching is None and now_ms >= self._not_before_ms:
            self._fetching = background.start(f"access token of {self.owner.channel}", self._take_next())
        return self._fetching

    async def _take_next(self) -> None:
        try:
            self._take(await self._request())
        finally:
            self._fetching = None

    def _take(self, response: TokenResponse) -> None:
        now_ms = self._clock.now_ms()
        try:
            granted = _granted.decode(response.body) if response.status == 200 else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            granted = None
        if granted is not None and _TOKEN.fullmatch(granted.access_token) and granted.expires_in > 0:
            life_ms = granted.expires_in * 1000
            self._token = _Token(granted.access_token, now_ms + int(life_ms * REFRESHED_AT), now_ms + life_ms)
            self._failures, self._not_before_ms, self._error = 0, 0, None
            CHANNEL_TOKENS.labels(self.owner.channel, "granted").inc()
            return
        self._failures += 1
        self._not_before_ms = now_ms + min(_FIRST_BACKOFF_MS << min(self._failures - 1, 20), _MAX_BACKOFF_MS)
        self._error = _error_of(response, self.owner)
        result = "refused" if isinstance(self._error, CredentialsError) else "failed"
        CHANNEL_TOKENS.labels(self.owner.channel, result).inc()
        logger.warning(
            "no access token for a channel",
            channel=self.owner.channel,
            project=self.owner.project,
            error=str(self._error),
        )


def _error_of(response: TokenResponse, owner: TokenOwner) -> Exception:
    """Return the error of an answer without a token; its text has the vendor's words, and nothing of the request."""
    if response.status not in (400, 401, 403):
        return UnavailableError(
            f"{owner.vendor}'s token server does not give a token ({response.reason or 'HTTP 200'})"
        )
    try:
        refused = _refused.decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        refused = _Refused()
    words = " ".join(filter(None, (str(refused.error), refused.error_description)))[:200] or f"HTTP {response.status}"
    return CredentialsError(f"{owner.vendor} does not accept the app's {owner.credentials} ({words}): {owner.hint}")
