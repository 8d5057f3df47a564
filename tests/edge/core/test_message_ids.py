"""Message ids: unique over all processes whatever clocks, pauses and kills do; increasing; small enough for clients."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from edge.core import message_ids as module
from edge.core.message_ids import HOLD_S, MAX_AHEAD_S, SLOT_IDS, SLOTS, MessageIds, issued_ms
from protos.runtime.v1.claims_pb2 import MessageIdClaim, MessageIdFact
from services.domain.topics import MESSAGE_IDS, TOPICS, decode
from services.errors import CarillonError, InputError, UnavailableError
from services.log.port import DelegatingLog, Log, NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock

START_MS = 1_800_000_000_000
CLAIMS = Partition(MESSAGE_IDS.name, 0)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    yield log
    await log.close()


def clock_at(*date: int) -> ManualClock:
    return ManualClock(int(datetime(*date, tzinfo=UTC).timestamp() * 1000))  # type: ignore[misc,arg-type]


class IssuedIds:
    """All ids that were given out; a repeated one fails the test."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._last: dict[MessageIds, int] = {}

    async def take(self, message_ids: MessageIds, count: int) -> None:
        first = await message_ids.take(count)
        some = range(first, first + count)
        assert self._ids.isdisjoint(some)
        self._ids.update(some)
        assert first > self._last.get(message_ids, -1)
        self._last[message_ids] = some[-1]
        assert 0 <= first < 2**53 - count


@pytest.mark.parametrize("seed", range(5))
async def test_no_id_is_given_twice_whatever_clocks_do_and_whoever_restarts(log: SqliteLog, seed: int) -> None:
    """A process that restarts gives up its claims as one that was killed does, and begins without any memory."""
    random, given = Random(seed), IssuedIds()
    clocks = [ManualClock(START_MS + random.choice([0, 400, -3_600_000, 3_600_000])) for _ in range(6)]
    processes = [MessageIds("edge", log, clock) for clock in clocks]
    for _ in range(400):
        at = random.randrange(len(clocks))
        if random.random() < 0.02:
            processes[at] = MessageIds("edge", log, clocks[at])
        await given.take(processes[at], random.choice([1, 1, 1, 7, 1000, SLOT_IDS]))
        clocks[at].move(random.choice([0, 0, 0, 0.001, 1, 30, HOLD_S, -1, -7200, 7200]))


async def test_processes_that_start_at_the_same_instant_share_no_ids(log: SqliteLog) -> None:
    given, clock = IssuedIds(), ManualClock(START_MS)
    await asyncio.gather(*(given.take(MessageIds("edge", log, clock), SLOT_IDS) for _ in range(150)))


class PausedLog(DelegatingLog):
    """A log whose next append ends long after its records are stored, as for a process that is suspended then."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.is_durable = asyncio.Event()
        self.resumed = asyncio.Event()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        offsets = await super().append(new_records)
        self.is_durable.set()
        await self.resumed.wait()
        return offsets


async def test_a_process_that_is_suspended_for_longer_than_its_claim_repeats_no_id(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile all slots are claimed by others, its own too, as its clock stands still until it goes on."""
    monkeypatch.setattr(module, "SLOTS", 8)
    paused, given, clock = PausedLog(log), IssuedIds(), ManualClock(START_MS)
    behind = MessageIds("edge", paused, ManualClock(START_MS))
    taking = asyncio.create_task(given.take(behind, 1))
    await paused.is_durable.wait()
    for _ in range(4):
        for _ in range(4):
            await given.take(MessageIds("edge", log, clock), SLOT_IDS)
        clock.move(HOLD_S)
    paused.resumed.set()
    await taking
    for _ in range(20):
        await given.take(behind, 1000)


async def test_a_slot_is_free_again_when_its_claim_is_over(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOTS", 4)
    given, clock = IssuedIds(), ManualClock(START_MS)
    for _ in range(4):
        await given.take(MessageIds("edge", log, clock), 1)
    with pytest.raises(CarillonError, match="other processes hold all 4 slots"):
        await MessageIds("edge", log, clock).take()
    clock.move(HOLD_S)
    await given.take(MessageIds("edge", log, clock), 1)


async def test_a_process_claims_as_many_slots_as_it_needs_and_no_more(log: SqliteLog) -> None:
    clock = ManualClock(START_MS)
    busy = MessageIds("edge", log, clock)
    for _ in range(40):
        for _ in range(100):
            first = await busy.take(1000)
        clock.move(0.5)
    assert issued_ms(first) - clock.now_ms() <= 8 * MAX_AHEAD_S * 1000
    assert 50 < await claims(log) < 400
    for _ in range(10):
        clock.move(HOLD_S / 2 + 1)
        await busy.take()
        await busy.claim()
    before = await claims(log)
    clock.move(HOLD_S / 2 + 1)
    await busy.take()
    await busy.claim()
    assert await claims(log) - before == 1


async def claims(log: Log) -> int:
    return (await log.ends([CLAIMS]))[CLAIMS]


async def test_an_idle_process_claims_nothing(log: SqliteLog) -> None:
    clock = ManualClock(START_MS)
    idle = MessageIds("edge", log, clock)
    await idle.take()
    clock.move(10 * HOLD_S)
    assert await claims(log) == 1


@pytest.mark.parametrize("count", [0, -1, SLOT_IDS + 1])
async def test_more_ids_than_a_slot_holds_are_refused(log: SqliteLog, count: int) -> None:
    with pytest.raises(InputError):
        await MessageIds("edge", log, ManualClock(START_MS)).take(count)


async def test_ids_stay_exact_in_a_double_until_2059_and_end_then_in_words(log: SqliteLog) -> None:
    assert await MessageIds("edge", log, clock_at(2026, 1, 1)).take() >= 0
    assert await MessageIds("edge", log, clock_at(2059, 12, 31)).take() < 2**53
    with pytest.raises(CarillonError, match="the clock of this machine is wrong"):
        await MessageIds("edge", log, clock_at(2061, 1, 1)).take()


async def test_ids_show_when_they_were_issued_and_follow_those_of_earlier_releases(log: SqliteLog) -> None:
    """Golden: the id that the first release gave out at this time, as its worker 5."""
    msgid = await MessageIds("edge", log, ManualClock(1_800_000_001_500)).take()
    assert issued_ms(msgid) == 1_800_000_001_000
    assert issued_ms(274_931_595_476_992) == 1_800_000_000_000
    assert msgid > 274_931_595_476_992


async def test_the_first_claims_are_not_for_ids_that_an_earlier_release_gives_out_meanwhile(log: SqliteLog) -> None:
    for _ in range(20):
        msgid = await MessageIds("edge", log, ManualClock(START_MS)).take()
        assert msgid >> 18 & 31 == 31  # the worker's number in ids of an earlier release, which began with 0


async def test_a_claim_is_in_the_log_before_its_ids_are_used(log: SqliteLog) -> None:
    msgid = await MessageIds("edge", log, ManualClock(START_MS)).take()
    record = await log.last(CLAIMS)
    assert record is not None
    claim = decode(record).claim
    assert claim.from_s <= msgid >> 23 < claim.until_s
    assert msgid % (1 << 23) // SLOT_IDS == SLOTS - 1


async def test_without_the_log_there_are_no_ids_and_then_there_are(log: SqliteLog) -> None:
    class UnavailableLog(DelegatingLog):
        is_available = False

        async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
            if not self.is_available:
                raise UnavailableError("the log is unavailable")
            return await super().append(new_records)

    unavailable = UnavailableLog(log)
    message_ids = MessageIds("edge", unavailable, ManualClock(START_MS))
    with pytest.raises(UnavailableError):
        await message_ids.take()
    unavailable.is_available = True
    assert await message_ids.take() > 0


@pytest.mark.parametrize(("from_s", "until_s"), [(0, 2**32 - 1), (2**32 - 600, 2**32 - 1), (2**30 - 700, 2**30 - 100)])
async def test_one_claim_that_no_process_makes_moves_nobodys_ids(log: SqliteLog, from_s: int, until_s: int) -> None:
    first = await MessageIds("edge", log, ManualClock(START_MS)).take()
    forged = MessageIdFact(claim=MessageIdClaim(from_s=from_s, until_s=until_s))
    await log.append([NewRecord(*CLAIMS, b"forged", forged.SerializeToString())])
    after = await MessageIds("edge", log, ManualClock(START_MS + 1000)).take()
    assert first >> 23 <= after >> 23 <= (first >> 23) + HOLD_S


async def test_a_record_that_is_no_claim_is_left_out(log: SqliteLog) -> None:
    await log.append([NewRecord(*CLAIMS, b"x", b"\xff canary")])
    assert await MessageIds("edge", log, ManualClock(START_MS)).take() > 0
