"""Message ids, unique in the installation and below 2^53: 30 bits of seconds since 2026, 23 bits within the second.

The ids of each second are divided into slots, and a process claims slots for some minutes by records in the log. The
number of a claim's slot is its offset modulo the number of slots, so two processes never have the same one. A claim is
for seconds that are part of the ids, not for a span of real time: a process that was paused, or whose clock is wrong,
gives out no id of another process.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from protos.runtime.v1.claims_pb2 import MessageIdClaim, MessageIdFact
from services.domain.ids import RecordStamp
from services.domain.topics import MESSAGE_IDS, decode
from services.errors import CarillonError, InputError, UnavailableError
from services.log.port import Log, NewRecord, Partition, Record
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.claims import Claims
from services.replica.dead_letters import UNUSABLE, leave_out

SLOTS = 4096
"""Claims that can hold at the same second; a claim for more ids takes several slots."""

SLOT_IDS = 2048
"""The ids of one slot in one second."""

HOLD_S = 600
"""Seconds that a claim covers. The next one is appended when half of them are left."""

AHEAD_S = 2
"""Seconds ahead of the clock for which ids are given out before more slots are claimed."""

MAX_AHEAD_S = 30
"""Upper bound of the seconds ahead of the clock, or of the latest claim, for which ids are given out."""

_EPOCH_S = 1_767_225_600  # 2026-01-01 UTC
_ID_BITS = 23
_MAX_SECOND = 1 << 30
_FAR_S = 86_400
_WINDOW = 4 * SLOTS
_CLAIM_S = 10.0
_MOST_SLOTS = 256
_ATTEMPTS = 50
_PARTITION = Partition(MESSAGE_IDS.name, 0)


class _Slot(NamedTuple):
    """The ids from `first` on within each second, from second `from_s` on and before second `until_s`."""

    first: int
    from_s: int
    until_s: int


class MessageIds:
    """Gives out increasing ids from the slots that this process has claimed; claims more when it needs them."""

    def __init__(self, role: str, log: Log, clock: Clock) -> None:
        self._stamp = RecordStamp(role)
        self._clock = clock
        self._earlier = _EarlierClaims()
        self._claims = Claims(role, log, _PARTITION, _WINDOW, self._earlier.fold)
        self._slots: list[_Slot] = []
        self._ranges: list[tuple[int, int]] = []
        self._now_s = 0
        self._second = 0
        self._next = 0
        self._has_run_ahead = False
        self._claiming: asyncio.Task[None] | None = None

    async def take(self, count: int = 1) -> int:
        """Return the first of `count` consecutive ids.

        InputError: `count` is not between 1 and SLOT_IDS. UnavailableError: the log does not accept a claim.
        """
        if not 1 <= count <= SLOT_IDS:
            raise InputError(f"a push needs {count} message ids, of which it can have 1 to {SLOT_IDS}")
        while (first := self._take_claimed(count)) is None:
            await self.claim()
        return first

    async def claim(self) -> None:
        """Claim slots; callers at the same time share one claim. UnavailableError: the log does not accept it."""
        claiming = self._start_claim()
        done, _ = await asyncio.wait([claiming], timeout=_CLAIM_S)
        if not done:
            raise UnavailableError("no message ids could be claimed in time: the log does not answer")
        claiming.result()

    def _take_claimed(self, count: int) -> int | None:
        """Return the first of `count` consecutive ids of the claimed slots, or None: they need another claim."""
        self._now_s = max(self._now_s, self._clock_s())
        if self._now_s > self._second:
            self._start_second(self._now_s)
        end_s = max((slot.until_s for slot in self._slots), default=0)
        if self._slots and end_s - self._now_s < HOLD_S // 2:
            self._start_claim()
        while self._second < end_s:
            for start, end in self._ranges:
                first = max(start, self._next)
                if first + count <= end:
                    self._next = first + count
                    return self._second << _ID_BITS | first
            if self._second >= self._now_s + AHEAD_S:
                self._has_run_ahead = True
                self._start_claim()
            if self._second >= self._now_s + MAX_AHEAD_S:
                return None
            self._start_second(self._second + 1)
        return None

    def _start_second(self, second: int) -> None:
        self._second, self._next = second, 0
        self._ranges = list(_ranges(self._slots, second))

    def _start_claim(self) -> "asyncio.Task[None]":
        if self._claiming is None or self._claiming.done():
            self._claiming = asyncio.create_task(self._claim())
            self._claiming.add_done_callback(_log_failure)
        return self._claiming

    async def _claim(self) -> None:
        """Claim half as many slots as are held, or as many again if the held ones ran out early.

        CarillonError: other processes hold all slots.
        """
        await self._claims.refresh()
        now_s = max(self._second, self._clock_s())
        held = sum(slot.until_s > now_s for slot in self._slots)
        wanted = min(held, _MOST_SLOTS) if self._has_run_ahead else held // 2
        self._has_run_ahead = False
        for _ in range(_ATTEMPTS):
            if await self._claim_once(max(1, wanted), now_s):
                return
        raise CarillonError(f"no message ids are free: other processes hold all {SLOTS} slots of each second")

    async def _claim_once(self, count: int, now_s: int) -> bool:
        """Claim slots; return whether one of them can be used now."""
        from_s = max(now_s, self._earlier.until_s - HOLD_S)
        if not 0 <= from_s < _MAX_SECOND - HOLD_S:
            raise CarillonError("the clock of this machine is wrong: message ids are for the years 2026 to 2059")
        claim = MessageIdClaim(from_s=from_s, until_s=from_s + HOLD_S)
        claims = [self._new_record(claim) for _ in range(count)]
        slots = await self._claims.append(claims, partial(self._earlier.slot, claim))
        usable = [slot for slot in slots if slot.from_s <= from_s]
        held = [slot for slot in self._slots if slot.until_s > now_s]
        self._slots = sorted([*usable, *held])
        self._now_s = max(self._now_s, from_s)
        if from_s > self._second:
            self._start_second(from_s)
        self._ranges = list(_ranges(self._slots, self._second))
        return bool(usable)

    def _clock_s(self) -> int:
        return self._clock.now_ms() // 1000 - _EPOCH_S

    def _new_record(self, claim: MessageIdClaim) -> NewRecord:
        fact = MessageIdFact(claim=claim)
        self._stamp.complete(fact.meta, self._clock.now_ms())
        return NewRecord(MESSAGE_IDS.name, 0, fact.meta.event_id, fact.SerializeToString())


class _EarlierClaims:
    """The second at which the earlier claims of each slot end, and that of all claims (`until_s`).

    `until_s` keeps ids increasing. A claim far beyond it moves it only once a second such claim follows, so that one
    record, such as a forged one, does not use up the years of the ids. Ids are unique in any case.
    """

    def __init__(self) -> None:
        self.until_s = 0
        self._alone_s = 0
        self._by_number: dict[int, int] = {}

    def fold(self, record: Record) -> None:
        """Note a claim. An impossible one is left out, by every process alike, so no ids collide."""
        try:
            claim = decode(record).claim
            if not (claim.from_s < claim.until_s < _MAX_SECOND and claim.until_s - claim.from_s <= HOLD_S):
                raise ValueError(f"a claim of the seconds from {claim.from_s} to {claim.until_s}")
        except UNUSABLE as error:
            leave_out("message ids", record, error)
            return
        number, until_s = record.offset % SLOTS, claim.until_s
        self._by_number[number] = max(until_s, self._by_number.get(number, 0))
        if until_s <= max(self.until_s, self._alone_s) + _FAR_S:
            self.until_s = max(until_s, self.until_s)
        else:
            self._alone_s = until_s

    def slot(self, claim: MessageIdClaim, offset: int) -> _Slot:
        """Return the slot of a claim at this offset. The first claims get the last ids of each second.

        So they avoid the ids of earlier releases, which may run during an upgrade and begin with the first ones.
        """
        number = offset % SLOTS
        from_s = max(claim.from_s, self._by_number.get(number, 0))
        return _Slot((SLOTS - 1 - number) * SLOT_IDS, from_s, claim.until_s)


def issued_ms(msgid: int) -> int:
    """Return the time at which a message id was issued, in ms since 1970, to the second."""
    return (_EPOCH_S + (msgid >> _ID_BITS)) * 1000


def _ranges(slots: Sequence[_Slot], second: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of the ids within the second for each run of adjacent slots; `slots` are sorted."""
    start = end = -1
    for slot in slots:
        if not slot.from_s <= second < slot.until_s:
            continue
        if slot.first != end:
            if end > 0:
                yield start, end
            start = slot.first
        end = slot.first + SLOT_IDS
    if end > 0:
        yield start, end


def _log_failure(claiming: "asyncio.Task[None]") -> None:
    if not claiming.cancelled() and (error := claiming.exception()):
        logger.warning("message ids could not be claimed", error=str(error))
