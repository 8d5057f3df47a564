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
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from edge.core.admission import AdmittedRequest, Signing
from edge.core.answers import Content, Reply
from edge.core.push import Pushes, RequestedPushes, Sent, handle_push, new_task_key
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import Claim, GetClaimRequest, GetClaimResponse
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.errors import InputError, NotFoundError, UnavailableError
from services.log.topics import partition_of
from services.process.clock import Clock
from services.replica.peers import WAIT_APPLIED_S, Peers

HEADER = "Idempotency-Key"
MAX_KEY_LENGTH = 255


class PushClaims:
    """Sends pushes once for each key of an app: of several requests under one key the first record in the log wins."""

    def __init__(self, pushes: Pushes, peers: Peers, clock: Clock, partitions: int) -> None:
        self._pushes = pushes
        self._instances = [SchedulingServiceStub(channel) for channel in peers.all("scheduling")]
        self._clock = clock
        self._partitions = partitions

    async def first_answer(self, claim: Claim) -> Content | None:
        """Return the answer under the claim's key, None while the key is free. InputError: for another request."""
        holding = await self._find(claim.key)
        return None if holding is None or holding.expires_ms <= self._clock.now_ms() else _answer(holding, claim)

    async def send_first(
        self,
        claim: Claim,
        requested: RequestedPushes,
        origin: Origin,
        text: str,
        before_commit: Callable[[], Awaitable[None]] | None = None,
    ) -> Sent:
        """Claim the key; return the answer of the winning claim, and the last push if it is this one.

        `before_commit` runs once nothing but the log can refuse the push; after an error of it nothing is sent.
        A request without a device to send to takes no key: it is refused once no earlier claim in the log is undecided.
        Errors as for Pushes.prepare and commit_claim.
        """
        task_key = self._task_key(claim)
        prepared, reply = await self._pushes.prepare_request(requested, origin, text, task_key)
        if not prepared.commands:
            await self._pushes.wait_claims_decided(partition_of(claim.key, self._partitions))
            return await self.first_answer(claim) or reply, None
        claim.answer_json = msgspec.json.encode(reply)
        await self._pushes.commit_claim(task_key, prepared, claim, before_commit)
        holding = await self._find(claim.key)
        if holding is None:
            raise UnavailableError("the claim is not there any more; repeat the request")
        return _answer(holding, claim), prepared.commands[-1] if holding.claim == claim else None

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


class IdempotentPushes:
    """Handles each push request once for its idempotency key: wraps `handle_push`, and gives it the way to send."""

    def __init__(self, pushes: Pushes, claims: PushClaims) -> None:
        self._pushes = pushes
        self._claims = claims

    async def handle(
        self, admitted: AdmittedRequest[Signing], parse: Callable[[bytes], RequestedPushes]
    ) -> Reply | Content:
        """Return the answer to a request; one whose key was used is neither parsed nor sent again.

        InputError: the key is malformed, or was used with another request. Other errors as for `handle_push`.
        """
        key = admitted.http.get_header(HEADER)
        if key is None:
            return await handle_push(admitted, parse, self._pushes.send)
        check_key(key)
        claim = push_claim(admitted.appkey, key, admitted.http.path, admitted.text)
        first = await self._claims.first_answer(claim)
        if first is not None:
            return first
        return await handle_push(admitted, parse, partial(self._claims.send_first, claim))


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
