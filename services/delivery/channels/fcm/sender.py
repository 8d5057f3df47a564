"""Sends FCM requests: one sender for each service account, shared by apps; and asks Google's token server."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from services.delivery.channels import CredentialsError
from services.delivery.channels.access_tokens import AccessTokens, TokenResponse
from services.delivery.channels.fcm.responses import (
    ACCOUNT_REFUSED,
    NO_ACCESS_TOKEN,
    QUOTA_WAIT_MS,
    UNKNOWN,
    FcmAction,
    FcmAnswer,
    handling_of,
    label,
    parse_answer,
)
from services.delivery.channels.fcm.tokens import account_tokens
from services.delivery.channels.http2.frames import Response
from services.delivery.channels.http2.headers import POST_HTTPS, literal
from services.delivery.channels.http2.sender import ConnectionSlot, Http2Sender
from services.delivery.channels.http2.service_connection import ServiceConnection, Timeouts, WireRequest
from services.delivery.channels.shared_senders import SharedSenders
from services.domain.channel_credentials.fcm import GOOGLE_TOKEN_URI, ServiceAccount
from services.errors import UnavailableError
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import CHANNEL_ANSWERS

GOOGLE_URL = "https://fcm.googleapis.com"
_MAX_STREAMS = 100
_TOKEN_ANSWER_S = 15.0


@dataclass(frozen=True, slots=True)
class FcmEndpoint:
    """Where requests go. `token_url`: the server of access tokens. `authority`: PEM text of trusted certificates."""

    url: str = GOOGLE_URL
    token_url: str = GOOGLE_TOKEN_URI
    authority: str | None = None


class FcmRequest(NamedTuple):
    """The body of `messages:send` for a project."""

    project_id: str
    body: bytes


class _Answers:
    """Reads Google's responses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def read(self, response: Response) -> FcmAnswer:
        return parse_answer(response.status, response.retry_after, response.body, self._clock.now_ms())

    def unknown(self, reason: str) -> FcmAnswer:
        return FcmAnswer(UNKNOWN, reason)

    def proves(self, answer: FcmAnswer) -> bool:
        """Any answer does: the service's own limit of concurrent requests holds from the beginning."""
        return True


class FcmSender(Http2Sender[FcmRequest, FcmAnswer]):
    """Sends the requests of one service account. Without an access token they are answered, and not sent.

    After an answer that the project's quota is used up, nothing is sent for as long as Google says, a day at most.
    Requests are kept meanwhile. A request is not sent afterwards if its message was shown by another way, or has ended.
    """

    def __init__(
        self, endpoint: FcmEndpoint, tokens: AccessTokens, clock: Clock, timeouts: Timeouts | None = None
    ) -> None:
        super().__init__(
            "FCM",
            "fcm",
            endpoint.url,
            _Answers(clock),
            clock,
            endpoint.authority,
            timeouts,
            max_unproven=_MAX_STREAMS,
        )
        self._tokens = tokens
        self._token = ""
        self._authorising: asyncio.Task[None] | None = None
        self._held_until_ms = 0
        self._holding: asyncio.Task[None] | None = None

    @property
    def held_ms(self) -> int:
        """For how long Google wants no requests of the account; 0 if it takes them."""
        return max(0, self._held_until_ms - self._clock.now_ms())

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not self.held_ms

    async def close(self) -> None:
        await self._tokens.close()
        tasks = [task for task in (self._authorising, self._holding) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().close()

    def _is_authorised(self) -> bool:
        if self.held_ms:
            if self._holding is None:
                self._holding = background.start("quota of FCM", self._hold())
            return False
        token = self._tokens.current()
        if token is None:
            if self._authorising is None:
                self._authorising = background.start("access token of FCM messages", self._authorise())
            return False
        self._token = token
        return True

    async def _hold(self) -> None:
        await self._clock.sleep_until(self._held_until_ms)
        self._holding = None
        self._schedule()

    async def _authorise(self) -> None:
        try:
            await self._tokens.text()
        except CredentialsError:
            self._answer_all(FcmAnswer(401, ACCOUNT_REFUSED))
        except UnavailableError:
            self._answer_all(FcmAnswer(503, NO_ACCESS_TOKEN))
        finally:
            self._authorising = None
            self._schedule()

    def _wire(self, request: FcmRequest) -> WireRequest | FcmAnswer:
        shared = _shared_headers(self._authority, self._token, request.project_id)
        length = literal(b"content-length", b"%d" % len(request.body))
        return WireRequest(shared + length, request.body, self._token)

    def _maintain(
        self,
        slot: ConnectionSlot[FcmRequest, FcmAnswer],
        connection: ServiceConnection[FcmRequest, FcmAnswer],
        token: str,
        answer: FcmAnswer,
    ) -> None:
        CHANNEL_ANSWERS.labels("fcm", label(answer)).inc()
        if handling_of(answer).action is FcmAction.RENEW_TOKEN:
            self._tokens.refuse(token)
        if answer.status == 429:
            wait_ms = answer.retry_after_ms or QUOTA_WAIT_MS
            if not self.held_ms:
                logger.warning("FCM's quota is used up", project=self._tokens.owner.project, wait_s=wait_ms // 1000)
            self._held_until_ms = max(self._held_until_ms, self._clock.now_ms() + wait_ms)
        if not answer.is_unknown:
            slot.circuit.close()


@lru_cache(maxsize=256)
def _shared_headers(authority: str, token: str, project_id: str) -> bytes:
    """Encoded headers that are the same for an account's messages while it has one access token."""
    return b"".join(
        (
            POST_HTTPS,
            literal(b":path", f"/v1/projects/{quote(project_id, safe='')}/messages:send".encode()),
            literal(b":authority", authority.encode()),
            literal(b"authorization", f"Bearer {token}".encode(), secret=True),
            literal(b"content-type", b"application/json"),
            literal(b"x-goog-api-format-version", b"2"),
        )
    )


# Google's token server.


class _TokenAnswers:
    def read(self, response: Response) -> TokenResponse:
        return TokenResponse(response.status, response.body)

    def unknown(self, reason: str) -> TokenResponse:
        return TokenResponse(0, b"")

    def proves(self, answer: TokenResponse) -> bool:
        return True


class TokenServer(Http2Sender[bytes, TokenResponse]):
    """Posts forms to the token server; accounts share it."""

    def __init__(self, endpoint: FcmEndpoint, clock: Clock, timeouts: Timeouts | None = None) -> None:
        super().__init__(
            "Google's token server",
            "fcm",
            endpoint.token_url,
            _TokenAnswers(),
            clock,
            endpoint.authority,
            timeouts,
            connections=1,
            max_unproven=_MAX_STREAMS,
        )
        self._path = urlsplit(endpoint.token_url).path

    async def post(self, url: str, form: Mapping[str, str]) -> TokenResponse:
        """Post a form; status 0: there was no answer in time. `url` may be of Google also where a simulator answers."""
        try:
            return await self.ask(urlencode(form).encode(), _TOKEN_ANSWER_S)
        except TimeoutError:
            return TokenResponse(0, b"")

    def _wire(self, request: bytes) -> WireRequest | TokenResponse:
        fields = (
            literal(b":path", self._path.encode()),
            literal(b":authority", self._authority.encode()),
            literal(b"content-type", b"application/x-www-form-urlencoded"),
            literal(b"content-length", b"%d" % len(request)),
        )
        return WireRequest(POST_HTTPS + b"".join(fields), request, "")

    def _maintain(
        self,
        slot: ConnectionSlot[bytes, TokenResponse],
        connection: ServiceConnection[bytes, TokenResponse],
        token: str,
        answer: TokenResponse,
    ) -> None:
        if answer.status:
            slot.circuit.close()


class FcmSenderPool:
    """Makes and shares the senders of service accounts."""

    def __init__(self, endpoint: FcmEndpoint, clock: Clock, timeouts: Timeouts | None = None) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._timeouts = timeouts
        self._token_server: TokenServer | None = None
        self._senders: SharedSenders[ServiceAccount, FcmSender] = SharedSenders("FCM", clock)

    def get(self, account: ServiceAccount) -> FcmSender:
        """Return the sender of the account, to send by it now."""
        return self._senders.get(account, partial(self._make, account))

    def _make(self, account: ServiceAccount) -> FcmSender:
        if self._token_server is None:  # most installations have no account, and trusted certificates take 30 ms
            self._token_server = TokenServer(self._endpoint, self._clock, self._timeouts)
        tokens = account_tokens(account, self._token_server.post, self._clock)
        return FcmSender(self._endpoint, tokens, self._clock, self._timeouts)

    async def close(self) -> None:
        await self._senders.close()
        if self._token_server is not None:
            await self._token_server.close()
