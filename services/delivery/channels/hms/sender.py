"""Sends HMS requests, each for up to 1,000 devices: one sender for each set of credentials, shared by apps."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

from services.delivery.channels import CredentialsError, PendingRequest, backoff_ms
from services.delivery.channels.access_tokens import AccessTokens, TokenOwner, TokenResponse
from services.delivery.channels.hms.request import MAX_TOKENS, HmsMessage, HmsRequest
from services.delivery.channels.hms.responses import (
    ALL_INVALID,
    CREDENTIALS_REFUSED,
    FLOW_CONTROL,
    NO_ACCESS_TOKEN,
    UNKNOWN,
    AnswerAction,
    BatchAnswer,
    HmsAnswer,
    action_of,
    label,
    parse_answer,
)
from services.delivery.channels.http1 import Http1Server
from services.delivery.channels.shared_senders import SharedSenders
from services.domain.channel_credentials.hms import HUAWEI_TOKEN_URL, HUAWEI_URL, HmsCredentials
from services.errors import UnavailableError
from services.net.http.client import NoAnswerError
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import CHANNEL_ANSWERS

CONNECTIONS = 4
"""Requests of a sender at a time."""

_MAX_ANSWER_BYTES = 4 << 20
"""An answer may repeat all tokens of a request, and a token may have 2,048 characters."""

_SUSPICIOUS = 20
"""From so many tokens on, all of which Huawei calls invalid, the credentials may be those of another app."""

PendingHms: TypeAlias = PendingRequest[HmsRequest, HmsAnswer]


@dataclass(frozen=True, slots=True)
class HmsEndpoint:
    """Where requests go. `token_url`: the server of access tokens. `authority`: PEM text of trusted certificates."""

    url: str = HUAWEI_URL
    token_url: str = HUAWEI_TOKEN_URL
    authority: str | None = None


class _Way(NamedTuple):
    """What requests must have in common to be sent as one."""

    msgid: int
    is_plain: bool


class BatchSender:
    """Sends the messages of one set of credentials, those of one push together.

    While Huawei asks for fewer requests, or cannot be reached, nothing is sent. Messages are kept meanwhile: those that
    are shown by another way, or end, are not sent afterwards. Without an access token they are answered, and not sent.
    """

    def __init__(self, credentials: HmsCredentials, server: Http1Server, tokens: AccessTokens, clock: Clock) -> None:
        self._server = server
        self._path = send_path(credentials)
        self._tokens = tokens
        self._clock = clock
        self._queue: dict[_Way, deque[PendingHms]] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._max_tokens = MAX_TOKENS
        self._token = ""
        self._failures = 0
        self._held_until_ms = 0
        self._is_scheduled = False
        self._closed = False

    @property
    def held_ms(self) -> int:
        """For how long nothing is sent; 0 if it is."""
        return max(0, self._held_until_ms - self._clock.now_ms())

    @property
    def is_idle(self) -> bool:
        return not (self._queue or self._requests or self.held_ms)

    def submit(self, pending: PendingHms, *, is_plain: bool) -> None:
        """Send the message with others of its push, as soon as a request may be made."""
        self._queue.setdefault(_Way(pending.request.msgid, is_plain), deque()).append(pending)
        self._schedule()

    async def check(self, message: HmsMessage, token: str) -> HmsAnswer:
        """Have Huawei validate a message to an address, without sending it; return the answer."""
        now_ms = self._clock.now_ms()
        if self.held_ms:
            return HmsAnswer(503, why=f"no requests for {self.held_ms // 1000} s, after refusals")
        try:
            access_token = await self._tokens.text()
            connection = await self._server.connect()
            body = message.body(0, [token], now_ms, dry=True)
            answer = await self._server.post(connection, self._path, _headers(access_token), body)
        except CredentialsError:
            return HmsAnswer(401, CREDENTIALS_REFUSED)
        except (UnavailableError, NoAnswerError) as error:
            return HmsAnswer(UNKNOWN, why=str(error))
        return parse_answer(answer.status, answer.headers.get("retry-after", ""), answer.body, now_ms).answer

    async def close(self) -> None:
        """End all requests without an answer."""
        self._closed = True
        tasks = [*self._requests, *self._waiting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._tokens.close()

    # --- from the queue to requests

    def _schedule(self) -> None:
        """Send what is queued, once in the next turn of the event loop, so that messages submitted now go together."""
        if not self._is_scheduled and not self._closed:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_queued)

    def _send_queued(self) -> None:
        self._is_scheduled = False
        while self._queue and not self._closed and len(self._requests) < CONNECTIONS and self._may_send():
            task = background.start("HMS request", self._send(*self._take(), self._token))
            self._requests.add(task)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._requests.discard(task)
        self._schedule()

    def _may_send(self) -> bool:
        """Whether there is an access token, and Huawei takes requests; if not, one task waits for it."""
        if not self.held_ms and (token := self._tokens.current()) is not None:
            self._token = token
            return True
        if not self._waiting:
            work = self._hold() if self.held_ms else self._authorise()
            task = background.start("wait of HMS", work)
            self._waiting.add(task)
            task.add_done_callback(self._on_waited)
        return False

    def _on_waited(self, task: "asyncio.Task[None]") -> None:
        self._waiting.discard(task)
        self._schedule()

    async def _hold(self) -> None:
        await self._clock.sleep_until(self._held_until_ms)

    async def _authorise(self) -> None:
        try:
            await self._tokens.text()
        except CredentialsError:
            self._answer_all(HmsAnswer(401, CREDENTIALS_REFUSED))
        except UnavailableError:
            self._answer_all(HmsAnswer(503, NO_ACCESS_TOKEN))

    def _answer_all(self, answer: HmsAnswer) -> None:
        queue, self._queue = self._queue, {}
        for pending in (pending for of_way in queue.values() for pending in of_way):
            pending.answered(answer)

    def _take(self) -> tuple[_Way, list[PendingHms]]:
        """Take the next messages of one push; pushes take turns."""
        way = next(iter(self._queue))
        queued = self._queue.pop(way)
        batch = [queued.popleft() for _ in range(min(len(queued), self._max_tokens))]
        if queued:
            self._queue[way] = queued
        return way, batch

    def _put_back(self, way: _Way, batch: Sequence[PendingHms]) -> None:
        self._queue.setdefault(way, deque()).extendleft(reversed(batch))

    # --- one request

    async def _send(self, way: _Way, batch: Sequence[PendingHms], access_token: str) -> None:
        try:
            connection = await self._server.connect()
        except UnavailableError:
            self._put_back(way, batch)
            self._fail()
            return
        wanted = [pending for pending in batch if _is_wanted(pending)]
        if not wanted:
            self._server.put_back(connection)
            return
        tokens = [pending.request.token for pending in wanted]
        body = wanted[0].request.message.body(way.msgid, tokens, self._clock.now_ms(), is_plain=way.is_plain)
        try:
            answer = await self._server.post(connection, self._path, _headers(access_token), body)
        except NoAnswerError as error:
            self._note(way, wanted, access_token, BatchAnswer(HmsAnswer(UNKNOWN, why=str(error))))
            return
        retry_after = answer.headers.get("retry-after", "")
        found = parse_answer(answer.status, retry_after, answer.body, self._clock.now_ms())
        self._note(way, wanted, access_token, found)

    def _note(self, way: _Way, batch: Sequence[PendingHms], access_token: str, found: BatchAnswer) -> None:
        """Apply what an answer means for the sender, then answer each message."""
        answer, action = found.answer, action_of(found.answer)
        CHANNEL_ANSWERS.labels("hms", label(answer)).inc()
        if action is AnswerAction.SPLIT and len(batch) > 1:
            self._max_tokens = max(1, min(self._max_tokens, len(batch) // 2))
            self._put_back(way, batch)
            return
        if action is AnswerAction.RENEW_TOKEN:
            self._tokens.refuse(access_token)
        if answer.code == ALL_INVALID and len(batch) >= _SUSPICIOUS:
            logger.warning("Huawei calls all addresses invalid: is the client id that of their app?", path=self._path)
        if answer.status in FLOW_CONTROL:
            self._fail(answer.retry_after_ms)
        elif answer.status != UNKNOWN:
            self._failures = 0
        for pending in batch:
            pending.answered(found.of(pending.request.token))

    def _fail(self, wait_ms: int = 0) -> None:
        """Send nothing for a time, which grows with each failure."""
        self._failures += 1
        wait_ms = max(wait_ms, backoff_ms(self._failures))
        self._held_until_ms = max(self._held_until_ms, self._clock.now_ms() + wait_ms)


class HmsSender:
    """Sends messages with one app's credentials; `is_plain`: without asking for high importance."""

    def __init__(self, batches: BatchSender, *, is_plain: bool = False) -> None:
        self.batches = batches
        self._is_plain = is_plain

    def submit(self, pending: PendingHms, /) -> None:
        self.batches.submit(pending, is_plain=self._is_plain)


def send_path(credentials: HmsCredentials) -> str:
    """Return the path of the call: that of version 2 names the project, that of version 1 the app."""
    if credentials.project_id:
        return f"/v2/{quote(credentials.project_id, safe='')}/messages:send"
    return f"/v1/{quote(credentials.client_id, safe='')}/messages:send"


def _headers(access_token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {access_token}", "content-type": "application/json"}


def _is_wanted(pending: PendingHms) -> bool:
    if pending.is_wanted():
        return True
    pending.skipped()
    return False


class SenderPool:
    """Makes and shares the senders of credentials; all go to the same two servers."""

    def __init__(self, endpoint: HmsEndpoint, clock: Clock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._servers: tuple[Http1Server, Http1Server] | None = None
        self._senders: SharedSenders[HmsCredentials, BatchSender] = SharedSenders("HMS", clock)

    def get(self, credentials: HmsCredentials) -> BatchSender:
        """Return the sender of the credentials, to send by it now."""
        return self._senders.get(credentials, partial(self._make, credentials))

    async def close(self) -> None:
        await self._senders.close()
        for server in self._servers or ():
            server.close()

    def _make(self, credentials: HmsCredentials) -> BatchSender:
        endpoint, clock = self._endpoint, self._clock
        if self._servers is None:  # most installations have no credentials, and trusted certificates take 30 ms
            self._servers = (
                Http1Server("hms", endpoint.url, clock, endpoint.authority, _MAX_ANSWER_BYTES),
                Http1Server("hms", endpoint.token_url, clock, endpoint.authority),
            )
        server, token_server = self._servers
        tokens = client_tokens(credentials, token_server, urlsplit(endpoint.token_url).path, clock)
        return BatchSender(credentials, server, tokens, clock)


def client_tokens(credentials: HmsCredentials, server: Http1Server, path: str, clock: Clock) -> AccessTokens:
    """Return the access tokens of a client (OAuth 2.0, client credentials grant)."""
    form = urlencode(
        {
            "grant_type": "client_credentials",
            "client_id": credentials.client_id,
            "client_secret": credentials.client_secret,
        }
    ).encode()

    async def request() -> TokenResponse:
        try:
            connection = await server.connect()
            answer = await server.post(connection, path, {"content-type": "application/x-www-form-urlencoded"}, form)
        except (UnavailableError, NoAnswerError):
            return TokenResponse(0, b"")
        return TokenResponse(answer.status, answer.body)

    hint = "are they those of this app in AppGallery Connect?"
    owner = TokenOwner("hms", "Huawei", credentials.client_id, "client ID and secret", hint)

    return AccessTokens(owner, request, clock)
