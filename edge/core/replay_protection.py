"""Replay-safe signatures: optional headers with which a captured request is carried out once, and as it was sent.

The sign in the body covers neither the path, nor the method, nor the time. These headers do, together with the body:

    Carillon-Time       seconds since 1970 UTC, at most WINDOW_S from this service's clock
    Carillon-Nonce      16 to 64 letters, digits, `-` and `_`; another one for each request
    Carillon-Signature  HMAC-SHA256 in lowercase hexadecimal digits, with the secrets of the sign in the same order, of
                        the lines: method, path, time, nonce, SHA-256 of the body in lowercase hexadecimal digits

A nonce is claimed by a record in topic `request-nonces`: of two requests with one nonce, to whichever edges, the first
record in the log wins. A kill between the claim and the push leaves the nonce used and nothing sent: the app server
repeats the request with another nonce, and under the same Idempotency-Key.
"""

import asyncio
import hashlib
import hmac
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from falcon.asgi import Request
from google.protobuf.message import DecodeError

from protos.runtime.v1.claims_pb2 import NonceClaim, NonceClaims, NonceFact
from services.domain.ids import RecordStamp
from services.domain.topics import REQUEST_NONCES, decode
from services.errors import InputError, SignError, TryLaterError, UnavailableError
from services.log.port import Log, NewRecord, Partition, Record
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.claims import Claims

TIME_HEADER = "Carillon-Time"
NONCE_HEADER = "Carillon-Nonce"
SIGNATURE_HEADER = "Carillon-Signature"
WINDOW_S = 300
"""Longest difference between the time of a request and this service's clock, seconds."""

MOST_NONCES = 1_000_000
"""Upper bound of the nonces that a process remembers, about 100 bytes each."""

_SHARE = 4
"""Nonces of one app that are remembered, as a multiple of the free places: an app beyond it is asked to wait. So one
app alone gets four fifths of all places, and however many it uses, others find some free."""

NONCE = "[A-Za-z0-9_-]{16,64}"
_NONCE = re.compile(NONCE)
_TIME = re.compile("[0-9]{1,12}")
_SIGNATURE = re.compile("[0-9a-f]{64}")
_SKEW_S = 10
"""Longest difference between the clocks of two edges, seconds."""

_PARTITION = Partition(REQUEST_NONCES.name, 0)
_WINDOW = 1 << 18
"""Records that a start reads at most, from the end of the topic back."""

_MOST_IN_RECORD = 1000
_CLAIM_S = 10.0
_NAME_BYTES = 16
_RETRY_AFTER_S = 1


class ReplaySafeSignature(NamedTuple):
    """The three headers of a request."""

    time_s: int
    nonce: str
    signature: str

    @classmethod
    def of(cls, request: Request) -> "ReplaySafeSignature | None":
        """Return the headers, or None where there are none. InputError: one of the three is missing or malformed."""
        headers = (TIME_HEADER, NONCE_HEADER, SIGNATURE_HEADER)
        given = [request.get_header(name) for name in headers]
        if not any(value is not None for value in given):
            return None
        for name, value, pattern in zip(headers, given, (_TIME, _NONCE, _SIGNATURE), strict=True):
            if value is None:
                raise InputError(f"{name} is missing beside the other headers of the signature")
            if not pattern.fullmatch(value):
                raise InputError(f"{name} must match {pattern.pattern}")
        time_s, nonce, signature = map(str, given)
        return cls(int(time_s), nonce, signature)

    def verify(self, request: Request, hashed_body: str, secrets: Sequence[str]) -> None:
        """Check the signature of a request with this `body_hash`.

        SignError: it was made for another request, or with other secrets.
        """
        right = sign_request(request.method, request.path, self.time_s, self.nonce, hashed_body, secrets)
        if not hmac.compare_digest(right, self.signature):
            raise SignError("sign not correct")


def body_hash(body: bytes) -> str:
    """Return the SHA-256 of a body, 64 lowercase hexadecimal digits."""
    return hashlib.sha256(body).hexdigest()


def sign_request(method: str, path: str, time_s: int, nonce: str, hashed_body: str, secrets: Sequence[str]) -> str:
    """Return the replay-safe signature of a request with this `body_hash`, 64 lowercase hexadecimal digits."""
    text = "\n".join([method, path, str(time_s), nonce, hashed_body])
    return hmac.new("".join(secrets).encode(), text.encode(), hashlib.sha256).hexdigest()


class ReplayProtection:
    """The nonces of the installation's requests, as one process of the edge knows them."""

    def __init__(self, role: str, log: Log, clock: Clock) -> None:
        self._stamp = RecordStamp(role)
        self._clock = clock
        self._used = _UsedNonces(clock)
        self._claims = Claims(role, log, _PARTITION, _WINDOW, self._used.fold)
        self._waiting: list[tuple[NonceClaim, asyncio.Future[bool]]] = []
        self._claiming: asyncio.Task[None] | None = None

    async def take(self, given: ReplaySafeSignature, appkeys: Sequence[str]) -> None:
        """Use up the nonce of an authenticated request.

        InputError: the nonce was used, or the time is too far away. TryLaterError: too many nonces of the app are
        remembered, or those of this time are not known. UnavailableError: the log does not answer, and the nonce may
        be used up.
        """
        now_s = self._clock.now_ms() // 1000
        if abs(now_s - given.time_s) > WINDOW_S:
            raise InputError(
                f"{TIME_HEADER} is {given.time_s}, but it is {now_s} here: at most {WINDOW_S} s may lie between"
            )
        named = "\n".join([*sorted(appkeys), given.nonce]).encode()
        app = zlib.crc32(appkeys[0].encode())
        claim = NonceClaim(nonce=hashlib.sha256(named).digest()[:_NAME_BYTES], time_s=given.time_s, app=app)
        if not self._used.has_place(app):
            raise TryLaterError("the app has sent too many requests with nonces; repeat the request", _RETRY_AFTER_S)
        if not await self._claim(claim):
            raise InputError(f"{NONCE_HEADER} was used already: each request needs another one")
        if given.time_s < self._used.known_from_s:
            raise TryLaterError("the nonces of this time are not known; repeat the request", _RETRY_AFTER_S)

    async def _claim(self, claim: NonceClaim) -> bool:
        """Return whether this claim is the first of its nonce. Claims that wait for an append share the next record."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((claim, answer))
        if self._claiming is None or self._claiming.done():
            self._claiming = background.start("claims of nonces", self._append_waiting())
        done, _ = await asyncio.wait([answer], timeout=_CLAIM_S)
        if not done:
            raise UnavailableError("the nonce could not be claimed in time: the log does not answer")
        return answer.result()

    async def _append_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_MOST_IN_RECORD], self._waiting[_MOST_IN_RECORD:]
            claims = [claim for claim, _ in batch]
            try:
                (are_first,) = await self._claims.append([self._record(claims)], partial(self._are_first, claims))
            except Exception as error:
                for _, answer in batch:
                    answer.set_exception(error)
                    answer.exception()  # nobody may wait any more
                continue
            for (_, answer), is_first in zip(batch, are_first, strict=True):
                answer.set_result(is_first)

    def _record(self, claims: Sequence[NonceClaim]) -> NewRecord:
        fact = NonceFact(claims=NonceClaims(claims=claims))
        self._stamp.complete(fact.meta, self._clock.now_ms())
        return NewRecord(REQUEST_NONCES.name, 0, fact.meta.event_id, fact.SerializeToString())

    def _are_first(self, claims: Sequence[NonceClaim], _: int) -> list[bool]:
        """Return for each claim of a record whether it is the first of its nonce, in this and all earlier records."""
        here: set[bytes] = set()
        found = []
        for claim in claims:
            found.append(claim.nonce not in self._used and claim.nonce not in here)
            here.add(claim.nonce)
        return found


class _UsedNonces:
    """The nonces of the records read so far, until no request can name their time any more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_end_s: dict[int, dict[bytes, int]] = {}
        self._nonces: set[bytes] = set()
        self._of_app: Counter[int] = Counter()
        self._forgotten_s = 0
        self._is_first = True
        self.known_from_s = 0
        """Requests of an earlier time are refused: their nonces may be in records before the first one read."""

    def has_place(self, app: int) -> bool:
        """Return whether another nonce of the app may be remembered; `app`: the app's hash, as in the records."""
        self._forget()
        return self._of_app[app] < _SHARE * (MOST_NONCES - len(self._nonces))

    def __contains__(self, nonce: bytes) -> bool:
        return nonce in self._nonces

    def fold(self, record: Record) -> None:
        try:
            fact = decode(record)
        except DecodeError as error:
            logger.error("a record of used nonces cannot be read", offset=record.offset, error=str(error))
            return
        now_s = self._clock.now_ms() // 1000
        if self._is_first and record.offset:
            self.known_from_s = fact.meta.time_ms // 1000 + WINDOW_S + _SKEW_S
        self._is_first = False
        for claim in fact.claims.claims:
            end_s = min(claim.time_s, now_s + WINDOW_S) + WINDOW_S + _SKEW_S
            if end_s > now_s and claim.nonce not in self._nonces:
                self._nonces.add(claim.nonce)
                self._by_end_s.setdefault(end_s, {})[claim.nonce] = claim.app
                self._of_app[claim.app] += 1
        self._forget()

    def _forget(self) -> None:
        now_s = self._clock.now_ms() // 1000
        if now_s == self._forgotten_s:
            return
        self._forgotten_s = now_s
        for end_s in [end_s for end_s in self._by_end_s if end_s <= now_s]:
            ended = self._by_end_s.pop(end_s)
            self._nonces -= ended.keys()
            self._of_app -= Counter(ended.values())
