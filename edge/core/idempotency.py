"""Idempotency keys: a push request repeated under one Idempotency-Key sends once and gets the same answer.

An app server that gets no answer cannot know whether its push was sent. With the header it repeats the request: for
ten minutes the same body under the same key of the same app gets the first answer, and another body is 400. A request
that was refused, or that had no device to send to, takes no key.

The request becomes one record, a task with a claim: the hash of app and key, a hash of the request, its pushes with
their message ids, and its answer. Scheduling decides the claims of one key in the order of the log, so of two equal
requests in two processes the first record wins; both ask scheduling for the winning claim and return its answer.
Scheduling also sends the pushes, at once or when they are due, like those of every task.

What a crash leaves behind:
- before the record is in the log: nothing; the repeat sends.
- after it, decided by scheduling or not: the pushes are sent once; the repeat is decided later and finds the claim.
- scheduling between claim and push: its next start sends, with the message ids of the claim. Between push and the fact
  that it was sent: it sends again, and delivery drops repeated message ids.
- the log does not confirm the record, or scheduling lags: the caller is asked to repeat the request under the key, and
  one of the cases above applies. Where the repeat has no device to send to any more, because its token was removed
  meanwhile, it waits until scheduling has decided what is in the log, and finds the claim too.

The answer to an immediate push waits until the push is in `push-commands`, so that a cancel right after it finds it.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
from falcon.asgi import Request

from edge.core.answers import Content, Reply
from edge.core.push import AppPush, PreparedPushes, Pushes, PushResult, new_task_key
from edge.core.quotas import is_broadcast_or_multicast
from edge.core.request_limiter import LONG_LIST, RequestLimiter
from protos.push.v1.push_pb2 import SendPush
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import Claim, GetClaimRequest, GetClaimResponse
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.errors import InputError, NotFoundError, UnavailableError
from services.log.topics import partition_of
from services.process.clock import Clock, HangWatch
from services.replica.peers import WAIT_APPLIED_S, Peers

HEADER = "Idempotency-Key"
MAX_KEY_LENGTH = 255


class RequestedPushes(NamedTuple):
    """The pushes of a request, sent at `due_ms`, or at once where it is None.

    `reply` makes the answer from a result for each push and the key of the task, "" when there is none.
    """

    pushes: Sequence[AppPush]
    reply: Callable[[Sequence[PushResult], str], Reply | Content]
    due_ms: int | None = None

    @property
    def sends_broadcast_or_multicast(self) -> bool:
        """Whether a broadcast or multicast is sent at once."""
        return self.due_ms is None and any(is_broadcast_or_multicast(push.audience) for push in self.pushes)

    @property
    def listed(self) -> int:
        """Number of tokens and aliases."""
        audiences = [push.audience for push in self.pushes]
        return sum(len(audience.tokens.tokens) + len(audience.aliases.aliases) for audience in audiences)


class PushClaims:
    """Sends pushes once for each key of an app: of several requests under one key the first record in the log wins."""

    def __init__(self, pushes: Pushes, peers: Peers, clock: Clock, partitions: int, hangs: HangWatch) -> None:
        self._pushes = pushes
        self._hangs = hangs
        self._instances = [SchedulingServiceStub(channel) for channel in peers.all("scheduling")]
        self._clock = clock
        self._partitions = partitions

    async def send(
        self, requested: RequestedPushes, origin: Origin, text: str
    ) -> tuple[Reply | Content, SendPush | None]:
        """Send without a key; return the answer, and the last push if there is one. Errors of HangWatch too."""
        prepared, reply = await self._prepare(requested, origin, text)
        self._hangs.check()
        await self._pushes.commit(prepared)
        return reply, prepared.commands[-1] if prepared.commands else None

    async def first_answer(self, claim: Claim) -> Content | None:
        """Return the answer under the claim's key, None while the key is free. InputError: for another request."""
        holding = await self._find(claim.key)
        return None if holding is None or holding.expires_ms <= self._clock.now_ms() else _answer(holding, claim)

    async def send_first(
        self, claim: Claim, requested: RequestedPushes, origin: Origin, text: str
    ) -> tuple[Reply | Content, SendPush | None]:
        """Claim the key; return the answer of the winning claim, and the last push if it is this one.

        A request without a device to send to takes no key: it is refused once no earlier claim in the log is undecided.
        After a hang of the process the request is refused too: scheduling may have forgotten the key since.
        """
        task_key = self._task_key(claim)
        prepared, reply = await self._prepare(requested, origin, text, task_key)
        if not prepared.commands:
            await self._pushes.wait_claims_decided(partition_of(claim.key, self._partitions))
            return await self.first_answer(claim) or reply, None
        claim.answer_json = msgspec.json.encode(reply)
        self._hangs.check()
        await self._pushes.commit_claim(task_key, prepared, claim)
        holding = await self._find(claim.key)
        if holding is None:
            raise UnavailableError("the claim is not there any more; repeat the request")
        return _answer(holding, claim), prepared.commands[-1] if holding.claim == claim else None

    async def _prepare(
        self, requested: RequestedPushes, origin: Origin, text: str, task_key: str = ""
    ) -> tuple[PreparedPushes, Reply | Content]:
        key = "" if requested.due_ms is None else task_key or new_task_key()
        prepared = await self._pushes.prepare(requested.pushes, origin, text, requested.due_ms, key)
        return prepared, requested.reply(prepared.results, prepared.task_key)

    async def _find(self, key: bytes) -> GetClaimResponse | None:
        instance = self._instances[partition_of(key, self._partitions) % len(self._instances)]
        try:
            found: GetClaimResponse = await instance.GetClaim(GetClaimRequest(key=key), timeout=WAIT_APPLIED_S)
        except NotFoundError:
            return None
        return found

    def _task_key(self, claim: Claim) -> str:
        """Return a random task key in the partition of the claim's key, where all tasks that claim it are decided."""
        partition = partition_of(claim.key, self._partitions)
        while partition_of((key := new_task_key()).encode(), self._partitions) != partition:
            pass
        return key


class Idempotency:
    """Executes push requests, at most once for each idempotency key."""

    def __init__(self, pushes: Pushes, peers: Peers, clock: Clock, partitions: int, limiter: RequestLimiter) -> None:
        self._claims = PushClaims(pushes, peers, clock, partitions, limiter.hangs)
        self._limiter = limiter

    async def execute(
        self, request: Request, appkey: str, origin: Origin, text: str, read: Callable[[], Awaitable[RequestedPushes]]
    ) -> Reply | Content:
        """Execute a request whose canonical text is `text`, unless its key was used, and return the answer.

        `read` parses the request and is called only when it is executed. InputError: the key was used with another
        request.
        """
        key = request.get_header(HEADER)
        if key is None:
            requested = await self._entered(request, appkey, read)
            reply, last = await self._claims.send(requested, origin, text)
            self._note_started(request, appkey, requested, last)
            return reply
        check_key(key)
        claim = push_claim(appkey, key, request.path, text)
        answer: Reply | Content | None = await self._claims.first_answer(claim)
        if answer is None:
            requested = await self._entered(request, appkey, read)
            answer, own = await self._claims.send_first(claim, requested, origin, text)
            self._note_started(request, appkey, requested, own)
        return answer

    async def _entered(
        self, request: Request, appkey: str, read: Callable[[], Awaitable[RequestedPushes]]
    ) -> RequestedPushes:
        """Return the parsed request once the limiter admits it, if it is a broadcast, a multicast or a long list."""
        requested = await read()
        if requested.sends_broadcast_or_multicast or requested.listed > LONG_LIST:
            await self._limiter.enter_broadcast_or_multicast(request, appkey)
        return requested

    def _note_started(self, request: Request, appkey: str, requested: RequestedPushes, last: SendPush | None) -> None:
        if requested.sends_broadcast_or_multicast and last is not None:
            self._limiter.keep_until_started(request, appkey, last)
        elif requested.due_ms is None and last is not None and requested.listed > LONG_LIST:
            self._limiter.keep_for_targets(request, appkey, requested.listed)


def push_claim(appkey: str, key: str, path: str, text: str) -> Claim:
    """Return the claim of a request, whose canonical text is `text`, for a key of the app; without its answer."""
    return Claim(key=_hash(appkey, key), request_digest=_hash(path, text))


def _answer(holding: GetClaimResponse, claim: Claim) -> Content:
    if holding.claim.request_digest != claim.request_digest:
        raise InputError(f"{HEADER} was used with another request less than 10 minutes ago")
    reply: Content = msgspec.json.decode(holding.claim.answer_json)
    return reply


def check_key(key: str) -> None:
    if not (1 <= len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        raise InputError(f"{HEADER} must have 1 to {MAX_KEY_LENGTH} printable ASCII characters")


def _hash(*parts: str) -> bytes:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=32).digest()
