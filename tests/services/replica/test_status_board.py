"""The board: present, silent and ended processes, and the rates of what they announce."""

import pytest

from protos.runtime.v1.log_pb2 import Meta
from protos.runtime.v1.processes_pb2 import (
    ProcessCounts,
    ProcessFact,
    ProcessLeft,
    ProcessStatus,
    ResultCount,
    RoleStatus,
)
from services.process.clock import ManualClock
from services.replica.status_board import KEPT_MS, SILENT_MS, STEPS, StatusBoard

START_MS = 1_790_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def board(clock: ManualClock) -> StatusBoard:
    return StatusBoard(clock)


def fact(process: str, told_ms: int, sent: int = 0, devices: int = 0, refused: int = 0) -> ProcessFact:
    requests = [ResultCount(result=0, count=2 * refused), ResultCount(result=401, count=refused)]
    status = ProcessStatus(
        host=process,
        counts=ProcessCounts(sent=sent, requests=requests),
        connected_devices=devices,
        roles=[RoleStatus(role="delivery", work=2 * sent)],
    )
    return ProcessFact(meta=Meta(time_ms=told_ms), process=process, status=status)


def test_rates_are_those_of_all_processes_together(board: StatusBoard, clock: ManualClock) -> None:
    for process, devices in (("a", 3), ("b", 4)):
        board.apply(fact(process, START_MS, sent=1000, devices=devices))
    assert (board.rate("sent"), board.rate("devices")) == (0, 7)
    clock.move(5)
    board.apply(fact("a", START_MS + 5_000, sent=1010, devices=2, refused=5))
    # The rate goes by the clock of the process, which may be another one's.
    board.apply(fact("b", START_MS + 4_000, sent=1020, devices=4))
    assert (board.rate("sent"), board.rate("devices"), board.rate("work delivery")) == (2 + 5, 6, 14)
    assert (board.rate("requests"), board.rate("refused"), board.rate("result 401")) == (3, 1, 1)


def test_a_process_that_starts_again_counts_from_nothing(board: StatusBoard) -> None:
    board.apply(fact("a", START_MS, sent=1000))
    board.apply(fact("a", START_MS + 5_000, sent=10))
    assert board.rate("sent") == 0


def test_a_silent_process_is_no_more_present_and_is_forgotten_later(board: StatusBoard, clock: ManualClock) -> None:
    board.apply(fact("a", START_MS, devices=3))
    clock.move(SILENT_MS / 1000)
    assert [each.id for each in board.present()] == ["a"]
    clock.move(1)
    assert (board.present(), board.rate("devices")) == ([], 0)
    assert [each.id for each in board.processes()] == ["a"]
    assert board.heard_ms == START_MS
    clock.move(KEPT_MS / 1000)
    assert board.processes() == []


def test_a_process_that_leaves_is_forgotten_at_once(board: StatusBoard) -> None:
    changed = board.change
    board.apply(fact("a", START_MS))
    assert changed.is_set()
    board.apply(ProcessFact(meta=Meta(time_ms=START_MS + 1), process="a", left=ProcessLeft()))
    assert board.processes() == []


def test_a_record_that_is_read_again_changes_nothing(board: StatusBoard) -> None:
    board.apply(fact("a", START_MS + 5_000, devices=3))
    for told_ms in (START_MS + 5_000, START_MS):
        board.apply(fact("a", told_ms, devices=9))
    assert board.rate("devices") == 3
    board.apply(ProcessFact(meta=Meta(time_ms=START_MS + 6_000), process="a"))  # a fact of a newer version
    assert len(board.processes()) == 1


def test_what_was_announced_long_ago_counts_only_where_it_is_new(board: StatusBoard) -> None:
    old_ms = START_MS - KEPT_MS
    board.apply(fact("a", old_ms), is_new=False)
    assert board.processes() == []
    board.apply(fact("a", old_ms))
    assert [each.heard_ms for each in board.present()] == [START_MS]
    board.apply(fact("b", START_MS - SILENT_MS - 1), is_new=False)
    assert [each.id for each in board.present()] == ["a"]


def test_the_history_covers_ten_minutes(board: StatusBoard, clock: ManualClock) -> None:
    assert board.history("devices") == [0] * STEPS
    for second in range(0, 3 * KEPT_MS // 1000, 5):
        board.apply(fact("a", clock.now_ms(), devices=second))
        clock.move(5)
    history = board.history("devices")
    assert len(history) == STEPS
    assert history == [*range(int(history[0]), int(history[0]) + 10 * STEPS, 10)]
    assert history[-1] == 3 * KEPT_MS // 1000 - 5
