"""The progress bar of `carillon replay`."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text


class ProgressBar:
    """Shows steps one after another, each as a line with records done, rate and time left."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def step(self, name: str) -> "ProgressStep":
        """Return a step. When it begins, its line appears, and the line of the step before is shown as complete."""
        return ProgressStep(self, name)

    def begin(self, step: str, total: int | None) -> None:
        """Start a step over `total` records; None when their number is unknown."""
        self._finish()
        self._task = self._progress.add_task(step, total=total)

    def advance(self, records: int) -> None:
        assert self._task is not None
        self._progress.advance(self._task, records)

    def _finish(self) -> None:
        """Show the step as complete, also when it needed fewer records than announced."""
        if self._task is not None:
            task = self._progress.tasks[self._task]
            self._progress.update(self._task, total=task.completed, completed=task.completed)


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """One step of a progress bar, in the form in which a replay reports its progress."""

    bar: ProgressBar
    name: str

    def begin(self, offsets: int) -> None:
        self.bar.begin(self.name, offsets)

    def advance(self, offsets: int) -> None:
        self.bar.advance(offsets)


@contextlib.contextmanager
def progress_bar(*, shown: bool) -> Iterator[ProgressBar]:
    """Show a progress bar on standard error if `shown` and if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), _RecordsColumn(), _RateColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not (shown and sys.stderr.isatty())) as progress:
        yield ProgressBar(progress)


class _RecordsColumn(ProgressColumn):
    """Records done of all records of the step, if their number is known."""

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{task.completed:,.0f} of {task.total:,.0f} records")


class _RateColumn(ProgressColumn):
    """Records a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")
