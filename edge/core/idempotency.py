"""A request repeated under one Idempotency-Key sends once and is answered alike.

Who sends a push and gets no answer cannot know whether it went out. With the header it repeats the request, and for
ten minutes the same body under the same key of the same app gets the first answer; another body is 400. A request
that was refused, or found nobody to send to, took no key.

The request becomes one record, a task with a claim: the hash of app and key, a hash of the request, its pushes with
their message ids, and its answer. Scheduling decides claims of one key in the log's order, so of twins in several
processes the first record wins, and all of them ask scheduling for the claim that holds and answer with what stands in
it. Scheduling also sends the pushes, at once or when they are due, as it sends every task: exactly once over crashes.

Where a process can end:
- before the record is in the log: nothing happened, the repeat sends.
- after it, whether scheduling has decided it or not: the pushes go out, once; the repeat is decided after it and finds
  its claim.
- scheduling between claim and push: its next start sends, with the message ids in the claim; between push and the note
  that it was sent: it sends them again, and delivery drops message ids it has seen.
- the log does not say whether it took the record, or scheduling is behind: the caller is told to try again, under the
  key, and either case is one of those above.

The answer to an immediate push waits until the push is in `push-commands`, so that a cancel right behind it finds it.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from falcon.asgi import Request

from edge.core.push import Prepared, Push, Pushes, Receipt, new_task_key
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import Claim, GetClaimRequest, GetClaimResponse
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.runtime.errors import InputError, NotFoundError, UnavailableError
from services.runtime.log.topics import partition_of
from services.runtime.process.clock import Clock
from services.runtime.rpc.peers import WAIT_APPLIED_S, Peers

HEADER = "Idempotency-Key"
MAX_KEY_LENGTH = 255

Content = dict[str, Any]


class Wanted(NamedTuple):
    """What a request asks for: pushes, at `due_ms` or at once. `reply` makes the answer of a receipt for each push and
    the key of the task, "" when there is none."""

    pushes: Sequence[Push]
    reply: Callable[[Sequence[Receipt], str], Content]
    due_ms: int | None = None


class Idempotency:
    """Carries requests that push out, at most once for each key."""

    def __init__(self, pushes: Pushes, peers: Peers, clock: Clock, partitions: int) -> None:
        self._pushes = pushes
        self._instances = [SchedulingServiceStub(channel) for channel in peers.all("scheduling")]
        self._clock = clock
        self._partitions = partitions

    async def give(
        self, request: Request, appkey: str, origin: Origin, text: str, read: Callable[[], Wanted]
    ) -> Content:
        """The answer to a request whose canonical text is `text`; `read` is called where it is the first of its key.

        InputError: the key was used with another request.
        """
        key = request.get_header(HEADER)
        if key is None:
            prepared, content = await self._prepare(read(), origin, text, new_task_key())
            await self._pushes.commit(prepared)
            return content
        _check_key(key)
        claim = Claim(key=_hash(appkey, key), request_digest=_hash(request.path, text))
        holding = await self._find(claim.key)
        if holding is None or holding.expires_ms <= self._clock.now_ms():
            return await self._first(claim, read(), origin, text)
        return _answer(holding, claim)

    async def _first(self, claim: Claim, wanted: Wanted, origin: Origin, text: str) -> Content:
        """Claim the key, and answer as whoever got it."""
        task_key = self._task_key(claim)
        prepared, content = await self._prepare(wanted, origin, text, task_key)
        if not prepared.commands:
            return content
        claim.answer_json = msgspec.json.encode(content)
        await self._pushes.commit_claim(task_key, prepared, claim)
        holding = await self._find(claim.key)
        if holding is None:
            raise UnavailableError("the claim is not there any more; repeat the request")
        return _answer(holding, claim)

    async def _prepare(self, wanted: Wanted, origin: Origin, text: str, task_key: str) -> tuple[Prepared, Content]:
        key = "" if wanted.due_ms is None else task_key
        prepared = await self._pushes.prepare(wanted.pushes, origin, text, wanted.due_ms, key)
        return prepared, wanted.reply(prepared.receipts, prepared.task_key)

    async def _find(self, key: bytes) -> GetClaimResponse | None:
        instance = self._instances[partition_of(key, self._partitions) % len(self._instances)]
        try:
            found: GetClaimResponse = await instance.GetClaim(GetClaimRequest(key=key), timeout=WAIT_APPLIED_S)
        except NotFoundError:
            return None
        return found

    def _task_key(self, claim: Claim) -> str:
        """A task key in the partition of the claim's key, where all tasks that claim it are decided."""
        partition = partition_of(claim.key, self._partitions)
        while partition_of((key := new_task_key()).encode(), self._partitions) != partition:
            pass
        return key


def _answer(holding: GetClaimResponse, claim: Claim) -> Content:
    if holding.claim.request_digest != claim.request_digest:
        raise InputError(f"{HEADER} was used with another request less than 10 minutes ago")
    content: Content = msgspec.json.decode(holding.claim.answer_json)
    return content


def _check_key(key: str) -> None:
    if not (1 <= len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        raise InputError(f"{HEADER} must have 1 to {MAX_KEY_LENGTH} printable ASCII characters")


def _hash(*parts: str) -> bytes:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=32).digest()
