"""Requests to a vendor, each for some devices of one push: one sender for each set of credentials."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol

from services.delivery.channels import CredentialsError, PendingRequest, backoff_ms
from services.delivery.channels.access_tokens import AccessTokens
from services.delivery.channels.batches.answers import (
    CREDENTIALS_REFUSED,
    DAILY_CAP,
    NO_ACCESS_TOKEN,
    UNKNOWN,
    Answer,
    AnswerAction,
    BatchAnswer,
)
from services.delivery.channels.batches.days import DailyCounts, next_day_ms
from services.delivery.channels.http1 import Http1Server
from services.delivery.state.audience_parts import DeviceAddress
from services.errors import UnavailableError
from services.net.http.client import HttpAnswer, HttpClientConnection, NoAnswerError
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import CHANNEL_ANSWERS

MAX_ANSWER_BYTES = 4 << 20
"""An answer may repeat all addresses of a request, and an address may have 2,048 characters."""

_BURST_MS = 100
"""Messages of so much time are sent at once, where there is a bound."""

_SUSPICIOUS = 20
"""From so many addresses on, all of which the vendor calls invalid, the credentials may be those of another app."""


class BatchMessage(Protocol):
    """The message of a push for all devices."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What its requests have besides those of all."""
        ...

    @property
    def quota(self) -> str:
        """Which of the vendor's daily quotas it counts for; "" for none."""
        ...

    @property
    def daily_cap(self) -> int:
        """How many such messages a device is to have a day; 0: any number."""
        ...

    def body(
        self, msgid: int, tokens: Sequence[str], now_ms: int, *, is_plain: bool = False, dry: bool = False
    ) -> bytes:
        """Return the body of a request. `is_plain`: without what needs a right. `dry`: for a check of credentials."""
        ...


class BatchRequest(NamedTuple):
    """A message for one device. Requests with one message id and way differ in their addresses alone."""

    message: BatchMessage
    msgid: int
    token: str
    device: DeviceAddress


class Post(NamedTuple):
    """A request as it is posted."""

    headers: Mapping[str, str]
    body: bytes


def bearing(access_token: str, body: bytes, now_ms: int) -> Post:
    """Return a request of JSON that bears an access token (RFC 6750)."""
    return Post({"authorization": f"Bearer {access_token}", "content-type": "application/json"}, body)


@dataclass(frozen=True, slots=True)
class VendorCall(Generic[Answer]):
    """A vendor's call, with one set of credentials. `channel`: its name in metrics.

    `answer` makes an answer of our own, from a status and a code or a `why`; `read` reads one of the vendor's, from the
    status, the header retry-after, the body, and the present time in ms. `authorised`: the request for an access token,
    the body of a message and the present time in ms. `max_tokens`: devices of a request. `connections`: requests at a
    time.
    """

    channel: str
    path: str
    answer: type[Answer]
    read: Callable[[int, str, bytes, int], BatchAnswer[Answer]]
    authorised: Callable[[str, bytes, int], Post] = bearing
    max_tokens: int = 1
    connections: int = 4


class _Way(NamedTuple):
    """What requests must have in common to be sent as one."""

    msgid: int
    quota: str
    is_plain: bool


class BatchSender(Generic[Answer]):
    """Sends the messages of one set of credentials, those of one push together.

    While the vendor asks for fewer requests, or cannot be reached, nothing is sent. Messages are kept meanwhile: those
    that are shown by another way, or end, are not sent afterwards. Without an access token, while their quota of the
    day is used up, or once their device has had its messages of the day, they are answered, and not sent.

    `per_s`: how many messages a second are sent at most; 0: any number.
    """

    def __init__(self, call: VendorCall[Answer], server: Http1Server, tokens: AccessTokens, clock: Clock) -> None:
        self._call = call
        self._server = server
        self._tokens = tokens
        self._clock = clock
        self._queue: dict[_Way, deque[PendingRequest[BatchRequest, Answer]]] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._max_tokens = call.max_tokens
        self._token = ""
        self._failures = 0
        self._held_until_ms = 0
        self.per_s = 0.0
        self._paced_until_ms = 0.0
        self._daily = DailyCounts()
        self._used_up: dict[str, tuple[int, Answer]] = {}
        """By quota: until when it is used up, and the vendor's answer that said so."""
        self._is_scheduled = False
        self._closed = False

    @property
    def held_ms(self) -> int:
        """For how long nothing is sent; 0 if it is."""
        return max(0, self._held_until_ms - self._clock.now_ms())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if the sender is closed: it also remembers what the vendor counts of the day."""
        now_ms = self._clock.now_ms()
        is_used_up = any(until_ms > now_ms for until_ms, _ in self._used_up.values())
        return not (self._queue or self._requests or self.held_ms or is_used_up) and self._daily.is_empty(now_ms)

    def submit(self, pending: PendingRequest[BatchRequest, Answer], *, is_plain: bool) -> None:
        """Send the message with others of its push, as soon as a request may be made."""
        request = pending.request
        self._queue.setdefault(_Way(request.msgid, request.message.quota, is_plain), deque()).append(pending)
        self._schedule()

    async def check(self, message: BatchMessage, token: str) -> Answer:
        """Have the vendor judge a message to an address that nobody has; return the answer."""
        now_ms = self._clock.now_ms()
        if self.held_ms:
            return self._call.answer(503, why=f"no requests for {self.held_ms // 1000} s, after refusals")
        try:
            access_token = await self._tokens.text()
            connection = await self._server.connect()
            body = message.body(0, [token], now_ms, dry=True)
            answer = await self._post(connection, access_token, message, body)
        except CredentialsError:
            return self._call.answer(401, CREDENTIALS_REFUSED)
        except (UnavailableError, NoAnswerError) as error:
            return self._call.answer(UNKNOWN, why=str(error))
        return self._call.read(answer.status, answer.headers.get("retry-after", ""), answer.body, now_ms).of(token)

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
        self._answer_used_up()
        while self._queue and not self._closed and len(self._requests) < self._call.connections and self._may_send():
            task = background.start(f"request of {self._call.channel}", self._send(*self._take(), self._token))
            self._requests.add(task)
            task.add_done_callback(self._on_done)

    def _answer_used_up(self) -> None:
        """Answer messages whose quota of the day is used up, as the vendor has answered before."""
        now_ms = self._clock.now_ms()
        self._used_up = {quota: used for quota, used in self._used_up.items() if used[0] > now_ms}
        if self._used_up:
            for way in [way for way in self._queue if way.quota in self._used_up]:
                for pending in self._queue.pop(way):
                    pending.answered(self._used_up[way.quota][1])

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._requests.discard(task)
        self._schedule()

    def _may_send(self) -> bool:
        """Whether there is an access token, and the vendor takes requests; if not, one task waits for it."""
        wait_ms = max(self.held_ms, self._paced_until_ms - _BURST_MS - self._clock.now_ms() if self.per_s else 0)
        if wait_ms <= 0 and (token := self._tokens.current()) is not None:
            self._token = token
            return True
        if not self._waiting:
            work = self._hold(wait_ms) if wait_ms > 0 else self._authorise()
            task = background.start(f"wait of {self._call.channel}", work)
            self._waiting.add(task)
            task.add_done_callback(self._on_waited)
        return False

    def _on_waited(self, task: "asyncio.Task[None]") -> None:
        self._waiting.discard(task)
        self._schedule()

    async def _hold(self, wait_ms: float) -> None:
        await self._clock.sleep_until(math.ceil(self._clock.now_ms() + wait_ms))

    async def _authorise(self) -> None:
        try:
            await self._tokens.text()
        except CredentialsError:
            self._answer_all(self._call.answer(401, CREDENTIALS_REFUSED))
        except UnavailableError:
            self._answer_all(self._call.answer(503, NO_ACCESS_TOKEN))

    def _answer_all(self, answer: Answer) -> None:
        queue, self._queue = self._queue, {}
        for pending in (pending for of_way in queue.values() for pending in of_way):
            pending.answered(answer)

    def _take(self) -> tuple[_Way, list[PendingRequest[BatchRequest, Answer]]]:
        """Take the next messages of one push; pushes take turns."""
        way = next(iter(self._queue))
        queued = self._queue.pop(way)
        most = min(self._max_tokens, max(1, int(self.per_s * _BURST_MS / 1000))) if self.per_s else self._max_tokens
        batch = [queued.popleft() for _ in range(min(len(queued), most))]
        if self.per_s:
            now_ms = self._clock.now_ms()
            self._paced_until_ms = max(self._paced_until_ms, now_ms) + 1000 * len(batch) / self.per_s
        if queued:
            self._queue[way] = queued
        return way, batch

    def _put_back(self, way: _Way, batch: Sequence[PendingRequest[BatchRequest, Answer]]) -> None:
        self._queue.setdefault(way, deque()).extendleft(reversed(batch))

    # --- one request

    async def _send(self, way: _Way, batch: Sequence[PendingRequest[BatchRequest, Answer]], access_token: str) -> None:
        try:
            connection = await self._server.connect()
        except UnavailableError:
            self._put_back(way, batch)
            self._fail()
            return
        wanted = [pending for pending in self._under_cap(batch) if _is_wanted(pending)]
        if not wanted:
            self._server.put_back(connection)
            return
        tokens = [pending.request.token for pending in wanted]
        message = wanted[0].request.message
        body = message.body(way.msgid, tokens, self._clock.now_ms(), is_plain=way.is_plain)
        try:
            answer = await self._post(connection, access_token, message, body)
        except NoAnswerError as error:
            self._note(way, wanted, access_token, BatchAnswer(self._call.answer(UNKNOWN, why=str(error))))
            return
        retry_after = answer.headers.get("retry-after", "")
        found = self._call.read(answer.status, retry_after, answer.body, self._clock.now_ms())
        self._note(way, wanted, access_token, found)

    def _under_cap(
        self, batch: Sequence[PendingRequest[BatchRequest, Answer]]
    ) -> Sequence[PendingRequest[BatchRequest, Answer]]:
        """Answer the messages of devices that have had as many as they are to have today; return the others."""
        cap, now_ms = batch[0].request.message.daily_cap, self._clock.now_ms()
        if not cap:
            return batch
        under = []
        for pending in batch:
            if self._daily.reached(pending.request.device, cap, now_ms):
                pending.answered(self._call.answer(200, DAILY_CAP))
            else:
                under.append(pending)
        return under

    async def _post(
        self, connection: HttpClientConnection, access_token: str, message: BatchMessage, body: bytes
    ) -> HttpAnswer:
        headers, posted = self._call.authorised(access_token, body, self._clock.now_ms())
        return await self._server.post(connection, self._call.path, {**headers, **message.headers}, posted)

    def _note(
        self,
        way: _Way,
        batch: Sequence[PendingRequest[BatchRequest, Answer]],
        access_token: str,
        found: BatchAnswer[Answer],
    ) -> None:
        """Apply what an answer means for the sender, then answer each message."""
        answer, action = found.answer, found.answer.action
        CHANNEL_ANSWERS.labels(self._call.channel, answer.label).inc()
        if action is AnswerAction.SPLIT and len(batch) > 1:
            self._max_tokens = max(1, min(self._max_tokens, len(batch) // 2))
            self._put_back(way, batch)
            return
        if action is AnswerAction.RENEW_TOKEN:
            self._tokens.refuse(access_token)
        answers = [found.of(pending.request.token) for pending in batch]
        if len(batch) >= _SUSPICIOUS and all(each.action is AnswerAction.REMOVE for each in answers):
            logger.warning(
                "all addresses are called invalid: are the credentials those of their app?",
                channel=self._call.channel,
                path=self._call.path,
            )
        if action is AnswerAction.SLOW_DOWN:
            self._fail(answer.retry_after_ms)
        elif answer.status != UNKNOWN:
            self._failures = 0
        if action is AnswerAction.USED_UP:
            self._used_up[way.quota] = next_day_ms(self._clock.now_ms()), answer
        is_capped, now_ms = batch[0].request.message.daily_cap > 0, self._clock.now_ms()
        for pending, each in zip(batch, answers, strict=True):
            if is_capped and each.action is AnswerAction.ACCEPT:
                self._daily.add(pending.request.device, now_ms)
            pending.answered(each)

    def _fail(self, wait_ms: int = 0) -> None:
        """Send nothing for a time, which grows with each failure."""
        self._failures += 1
        wait_ms = max(wait_ms, backoff_ms(self._failures))
        self._held_until_ms = max(self._held_until_ms, self._clock.now_ms() + wait_ms)


class VariantSender(Generic[Answer]):
    """Sends messages with one app's credentials; `is_plain`: without what needs a right."""

    def __init__(self, batches: BatchSender[Answer], *, is_plain: bool = False) -> None:
        self.batches = batches
        self._is_plain = is_plain

    def submit(self, pending: PendingRequest[BatchRequest, Answer], /) -> None:
        self.batches.submit(pending, is_plain=self._is_plain)


def _is_wanted(pending: PendingRequest[BatchRequest, Answer]) -> bool:
    if pending.is_wanted():
        return True
    pending.skipped()
    return False
