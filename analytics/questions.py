"""Questions to the store: their checks, the cache of answers, and fair limits of concurrent queries."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from analytics.audit.app import TimeRange
from analytics.store.changes import StoreChanges
from protos.analytics.v1.analytics_pb2 import AuditActionsRequest, AuditAppRequest
from services.errors import BusyError, Code, InputError, NotFoundError, UnavailableError
from services.net.fairness import FairSemaphore, KeyActivity, Throttle
from services.process.clock import Clock

_MAX_MSGID = 2**63
MAX_TIME_MS = 7_258_118_400_000
"""The year 2200."""

_MAX_LINES = 1000


class _MayLackRecords(Protocol):
    """A request that may be answered while records of the log are missing."""

    allow_behind: bool


def missing_if_allowed(request: _MayLackRecords, behind: int) -> int:
    """Return how many records are missing, if the request allows that. UnavailableError: records are missing."""
    if behind and not request.allow_behind:
        raise UnavailableError(f"{_lag(behind)}; try again later, or see without them with --allow-behind")
    return behind


def time_range(request: AuditAppRequest | AuditActionsRequest) -> TimeRange:
    """Return the time range of a request for a page. InputError: it, or the limit of the page, is out of bounds."""
    if not 0 <= request.from_ms < request.to_ms < MAX_TIME_MS:
        raise InputError(Code.TIMES_IN_WRONG_ORDER)
    check_limit(request.limit)
    return TimeRange(request.from_ms, request.to_ms)


def check_limit(limit: int) -> None:
    if not 0 < limit <= _MAX_LINES:
        raise InputError(f"limit must be from 1 to {_MAX_LINES}")


def check_msgid(msgid: int) -> None:
    if not 0 < msgid < _MAX_MSGID:
        raise InputError("msgid is not a message id")


def not_found(error: NotFoundError, behind: int) -> NotFoundError | UnavailableError:
    """Return the error; while records are missing, UnavailableError, because these may contain the object."""
    return missing(behind) if behind else error


def missing(records: int) -> UnavailableError:
    return UnavailableError(f"{_lag(records)}; try again later")


def _lag(records: int) -> str:
    return f"analytics is {records} {'record' if records == 1 else 'records'} behind the event log"


# Cache of answers that need not include the newest records; valid until the ingestion changes their source rows.

KEPT_MS = 15_000
"""Greatest age of an answer: some change with time alone, such as the average of today's connections, but slowly."""

MAX_KEPT = 200

A = TypeVar("A", bound=Message)


class Question(Protocol):
    """A request whose answer may lack the records of some milliseconds."""

    max_age_ms: int

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...


class _Kept(NamedTuple):
    """An answer, the number of the store's latest change before it, and the apps or tables of its rows."""

    made_ms: int
    change: int
    names: Sequence[str]
    answer: Any


class AnswerCache:
    """The latest MAX_KEPT answers, by question."""

    def __init__(self, changes: StoreChanges, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._kept: OrderedDict[tuple[type[Question], bytes], _Kept] = OrderedDict()

    async def answer(
        self, question: Question, make: Callable[[], Awaitable[A]], names: Callable[[A], Sequence[str]]
    ) -> A:
        """Return the kept answer to the same question if it is still valid, or else make one.

        `names` returns the apps or tables that an answer is made of.
        """
        key = type(question), question.SerializeToString(deterministic=True)
        now_ms = self._clock.now_ms()
        kept = self._kept.get(key)
        if kept is None or now_ms - kept.made_ms >= KEPT_MS or not self._changes.is_same_since(kept.change, kept.names):
            change = self._changes.latest
            made = await make()
            kept = self._kept[key] = _Kept(now_ms, change, names(made), made)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        copy: A = type(kept.answer)()
        copy.CopyFrom(kept.answer)
        return copy


# Limits the concurrent queries of the store fairly: an app's queries delay another app by one query at most.
#
# Exports, which may take an hour, are made one at a time beside the queries.

OPERATORS = ""
"""The key of audits, which operators ask for."""

QUERIES = 3
"""Calls that query at once: one less than the store has threads for queries, because an export may hold one."""

MAX_WAITING = 200
_EXPORT_WAIT_S = 60


class QueryLimiter:
    """Concurrency limiter: at most QUERIES calls at once, and one call of each app while several apps query."""

    def __init__(self, clock: Clock) -> None:
        self._activity = KeyActivity(clock.now_ms)
        throttle = Throttle(clock, self._activity, 1)
        self._semaphore = FairSemaphore("queries", QUERIES, max_waiting=MAX_WAITING, throttle=throttle)
        self._export = asyncio.Lock()

    @asynccontextmanager
    async def slot(self, key: str) -> AsyncIterator[None]:
        """Hold a slot during one call; a caller cancelled while it waits takes none. BusyError: too many wait."""
        self._activity.seen(key)
        async with self._semaphore.slot(key):
            yield

    @asynccontextmanager
    async def export(self) -> AsyncIterator[None]:
        """Hold the only slot for exports. BusyError: another export has held it for _EXPORT_WAIT_S."""
        try:
            async with asyncio.timeout(_EXPORT_WAIT_S):
                await self._export.acquire()
        except TimeoutError:
            raise BusyError("another export is in progress; try again once it has ended") from None
        try:
            yield
        finally:
            self._export.release()
