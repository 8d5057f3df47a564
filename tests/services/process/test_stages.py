"""The times of the stages of pushes, for benchmarks."""

import os
import time
from pathlib import Path

from services.process import stages


def test_each_note_is_a_line_with_its_time(tmp_path: Path) -> None:
    before_ns = time.monotonic_ns()
    with stages.noting(str(tmp_path / "stages")):
        stages.note("signed", "1f-1")
        stages.note("resolved", 7, "1f-1")
        lines = [line.split() for line in (tmp_path / "stages" / f"{os.getpid()}.txt").read_text().splitlines()]
    assert [line[:3] for line in lines] == [["signed", "1f-1", "-"], ["resolved", "7", "1f-1"]]
    assert before_ns <= int(lines[0][3]) <= int(lines[1][3]) <= time.monotonic_ns()


def test_nothing_is_written_unless_it_is_switched_on(tmp_path: Path) -> None:
    with stages.noting(str(tmp_path / "on")):
        pass
    stages.note("started", 7)
    with stages.noting(None):
        stages.note("started", 7)
    assert [path.read_text() for path in tmp_path.rglob("*.txt")] == [""]
