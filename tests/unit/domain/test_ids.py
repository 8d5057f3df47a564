"""Ids: unique, ordered, and small enough for clients that store them."""

import itertools
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain import ids
from services.domain.ids import WORKERS, MessageIds, claim_worker, issued_ms
from services.runtime.errors import CarillonError, InputError
from services.runtime.process.clock import ManualClock
from testkit.held_process import holding

START_MS = 1_800_000_000_000
A_SECOND = 1 << 18
CLAIM = """
from pathlib import Path
from services.domain.ids import claim_worker
got, lock = claim_worker(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
"""


def moment_ms(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


@given(
    st.lists(
        st.tuples(st.integers(1, 5000) | st.sampled_from([A_SECOND - 1, A_SECOND]), st.floats(-3, 3, allow_nan=False)),
        max_size=60,
    )
)
def test_ranges_never_overlap_and_always_grow_whatever_the_clock_does(steps: list[tuple[int, float]]) -> None:
    clock = ManualClock(START_MS)
    message_ids = MessageIds(clock, 3)
    last = 0
    for count, seconds in steps:
        first = message_ids.take(count)
        assert first > last
        last = first + count - 1
        clock.move(seconds)


def test_a_burst_runs_ahead_of_the_clock_and_the_clock_catches_up() -> None:
    clock = ManualClock(START_MS)
    message_ids = MessageIds(clock, 0)
    firsts = [message_ids.take(1000) for _ in range(600)]
    assert issued_ms(firsts[0]) == START_MS
    assert issued_ms(firsts[-1]) == START_MS + 2000
    clock.move(10)
    assert issued_ms(message_ids.take()) == START_MS + 10_000


def test_a_range_that_does_not_fit_in_its_second_moves_to_the_next_as_a_whole() -> None:
    message_ids = MessageIds(ManualClock(START_MS + 999), 31)
    first = message_ids.take(A_SECOND)
    assert issued_ms(first) == issued_ms(first + A_SECOND - 1) == START_MS + 1000
    assert issued_ms(message_ids.take()) == START_MS + 2000


def test_workers_share_no_ids() -> None:
    clock = ManualClock(START_MS)
    taken = [(first := MessageIds(clock, worker).take(A_SECOND), first + A_SECOND) for worker in range(WORKERS)]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(taken))


@pytest.mark.parametrize("count", [0, -1, A_SECOND + 1])
def test_more_ids_than_a_second_holds_are_refused(count: int) -> None:
    with pytest.raises(InputError):
        MessageIds(ManualClock(START_MS), 0).take(count)


def test_ids_stay_exact_in_a_double_until_2059() -> None:
    first = MessageIds(ManualClock(moment_ms(2059, 12, 31, 23, 59, 59)), WORKERS - 1).take(A_SECOND)
    assert first + A_SECOND - 1 < 2**53
    assert MessageIds(ManualClock(moment_ms(2026, 1, 1)), 0).take() >= 0


@pytest.mark.parametrize("moment", [moment_ms(2026, 11, 21), moment_ms(2059, 12, 31, 23, 59, 59) + 999])
def test_the_issue_time_of_an_id(moment: int) -> None:
    assert issued_ms(MessageIds(ManualClock(moment), 7).take()) == moment // 1000 * 1000


def test_message_ids_never_change_with_the_code() -> None:
    """Golden: the ids of this clock and worker in the first release."""
    assert MessageIds(ManualClock(1_800_000_000_500), 5).take() == 274_931_595_476_992


def test_appkeys_fit_a_32_bit_int_and_secrets_are_letters_and_digits() -> None:
    appkeys = {ids.new_appkey() for _ in range(500)}
    assert all(len(appkey) == 10 and appkey.isdecimal() and int(appkey) < 2**31 for appkey in appkeys)
    assert len(appkeys) > 490
    secret, token = ids.new_secret(), ids.new_token()
    assert (len(secret), secret.isalnum(), secret.isascii()) == (64, True, True)
    assert len(bytes.fromhex(token)) == 16
    assert (len(ids.event_id()), ids.event_id() != ids.event_id()) == (16, True)


def test_a_worker_belongs_to_one_process_and_is_free_when_that_is_killed(tmp_path: Path) -> None:
    with holding(CLAIM, str(tmp_path), "0", "1") as other:
        worker, lock = claim_worker(tmp_path, 0, 1)
        assert (other.got, worker) == ("0", 1)
        other.kill()
        again, again_lock = claim_worker(tmp_path, 0, 1)
        assert again == 0
        lock.close()
        again_lock.close()


def test_shards_have_shares_without_a_common_worker(tmp_path: Path) -> None:
    shares = [(0, 11), (1, 11), (2, 10)]
    with ExitStack() as locks:
        workers = [claim_worker(tmp_path, shard, 3) for shard, size in shares for _ in range(size)]
        for _, lock in workers:
            locks.callback(lock.close)
        for shard, size in shares:
            with pytest.raises(CarillonError, match=f"all of this shard's {size} message id workers are taken"):
                claim_worker(tmp_path, shard, 3)
    assert sorted(worker for worker, _ in workers) == list(range(WORKERS))


@pytest.mark.parametrize("later_s", [0, 0.5, 1, -3600], ids=str)
def test_a_restarted_worker_repeats_no_id(later_s: float, tmp_path: Path) -> None:
    """The worker had run ahead of the clock, and the clock may have been set back."""
    clock = ManualClock(START_MS)
    worker, mark = claim_worker(tmp_path, 0, 1)
    message_ids = MessageIds(clock, worker, mark)
    last = [message_ids.take(A_SECOND) for _ in range(3)][-1] + A_SECOND - 1
    mark.close()
    clock.move(later_s)
    worker, mark = claim_worker(tmp_path, 0, 1)
    again = MessageIds(clock, worker, mark)
    assert again.take() > last
    clock.move(7200)
    assert issued_ms(again.take()) == clock.now_ms() // 1000 * 1000
    mark.close()
