"""Token buckets in files, shared by processes."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge.core.quotas import MAX_COUNT, Rate, SharedBuckets
from services.process.clock import ManualClock

NOW_MS = 1_790_000_000_000
APP = "1234567890"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def buckets(tmp_path: Path, clock: ManualClock) -> SharedBuckets:
    return SharedBuckets(tmp_path / "edge" / "quotas", clock, lambda: 1)


def taken(buckets: SharedBuckets, per_s: int, times: int, count: int = 1) -> int:
    return sum(buckets.take(APP, Rate.REQUESTS, count, per_s) == 0 for _ in range(times))


def test_a_second_worth_passes_at_once_and_then_the_rate(buckets: SharedBuckets, clock: ManualClock) -> None:
    assert taken(buckets, 10, 30) == 10
    clock.move(0.1)
    assert taken(buckets, 10, 30) == 1
    clock.move(0.5)
    assert taken(buckets, 10, 30) == 5
    clock.move(60)
    assert taken(buckets, 10, 30) == 10, "an idle app saves up one second and no more"


def test_a_minute_has_the_quota_of_a_minute(buckets: SharedBuckets, clock: ManualClock) -> None:
    passed = 0
    for _ in range(6000):
        passed += taken(buckets, 7, 1)
        clock.move(0.01)
    assert 7 * 60 <= passed <= 7 * 61


def test_a_large_request_passes_when_the_bucket_is_full_and_is_waited_for(
    buckets: SharedBuckets, clock: ManualClock
) -> None:
    assert buckets.take(APP, Rate.TARGETS, 1000, 100) == 0
    assert buckets.take(APP, Rate.TARGETS, 1, 100) == 10
    clock.move(9)
    assert buckets.take(APP, Rate.TARGETS, 1000, 100) == 1
    assert buckets.take(APP, Rate.TARGETS, 1, 100) == 1
    clock.move(0.01)
    assert buckets.take(APP, Rate.TARGETS, 1, 100) == 0
    clock.move(1)
    assert buckets.take(APP, Rate.TARGETS, 1000, 100) == 0


def test_rates_and_apps_are_counted_apart(buckets: SharedBuckets) -> None:
    assert taken(buckets, 3, 9) == 3
    assert buckets.take(APP, Rate.TARGETS, 1, 3) == 0
    assert buckets.take("1987654321", Rate.REQUESTS, 1, 3) == 0


def test_tokens_are_given_back(buckets: SharedBuckets) -> None:
    assert taken(buckets, 5, 5) == 5
    buckets.give_back(APP, Rate.REQUESTS, 2, 5)
    assert taken(buckets, 5, 5) == 2


def test_a_clock_that_is_set_back_does_not_lock_an_app_out(buckets: SharedBuckets, clock: ManualClock) -> None:
    assert buckets.take(APP, Rate.TARGETS, MAX_COUNT, 1000) == 0
    clock.move(-3600)
    assert buckets.take(APP, Rate.TARGETS, 1, 1000) == 0


def test_instances_have_equal_shares(tmp_path: Path, clock: ManualClock) -> None:
    shares = [SharedBuckets(tmp_path / str(shard), clock, lambda: 4) for shard in range(4)]
    assert [taken(share, 20, 30) for share in shares] == [5] * 4
    clock.move(10)
    assert [taken(share, 1, 30) for share in shares] == [1] * 4
    clock.move(3.9)
    assert [taken(share, 1, 30) for share in shares] == [0] * 4


def test_the_shares_follow_the_instances_that_are_there(tmp_path: Path, clock: ManualClock) -> None:
    """10 tokens a second are asked of each edge; all together admit 10, whether two of them serve or five."""
    there = 2
    shares = [SharedBuckets(tmp_path / str(edge), clock, lambda: there) for edge in range(5)]
    for there in (2, 5, 3, 1):
        clock.move(60)
        taken_at_once = sum(taken(share, 10, 10) for share in shares[:there])
        admitted = 0
        for _ in range(200):
            clock.move(0.1)
            admitted += sum(taken(share, 10, 1) for share in shares[:there])
        assert abs(admitted - 200) <= there
        assert taken_at_once <= 10


def test_a_file_that_cannot_be_written_stops_no_request(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "quotas").write_text("no directory")
    assert taken(SharedBuckets(tmp_path / "quotas", clock, lambda: 1), 1, 9) == 9


def test_a_worker_that_was_stopped_with_the_lock_stops_no_other(tmp_path: Path, buckets: SharedBuckets) -> None:
    assert taken(buckets, 5, 2) == 2
    with (tmp_path / "edge" / "quotas" / APP).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert taken(buckets, 5, 4) == 3


def test_processes_that_share_a_directory_share_the_buckets(tmp_path: Path, clock: ManualClock) -> None:
    program = (
        "from pathlib import Path\n"
        "from edge.core.quotas import Rate, SharedBuckets\n"
        "from services.process.clock import ManualClock\n"
        f"buckets = SharedBuckets(Path({str(tmp_path)!r}), ManualClock({NOW_MS}), lambda: 1)\n"
        f"print(sum(buckets.take({APP!r}, Rate.REQUESTS, 1, 1000) == 0 for _ in range(800)))\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(2)]
    assert sum(int(worker.communicate(timeout=60)[0]) for worker in workers) == 1000
    assert os.listdir(tmp_path) == [APP]
