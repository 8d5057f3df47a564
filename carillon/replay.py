"""What `carillon replay` does: a role's state built again, compared, or built as it was at an earlier moment."""

import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from services.domain.role_context import open_log
from services.domain.topics import APPS, DEVICE_COMMANDS, DEVICES, TOPICS
from services.runtime.errors import InputError
from services.runtime.log.point_in_time import PointInTimeLog, ends_at
from services.runtime.log.port import Log, Partition
from services.runtime.log.sqlite import SqliteLog
from services.runtime.process import data_directory as datadir
from services.runtime.process.settings import Settings
from services.runtime.projection import replay

REPLAYED = ["registry", "targeting", "delivery", "scheduling", "analytics"]
_READ_DEVICES = frozenset({"registry", "targeting", "analytics"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Wiring = Callable[[str], Any]
Answer = dict[str, Any]


class Steps(Protocol):
    """Is told how far a replay is."""

    def begin(self, what: str, total: int | None) -> None:
        """What comes now, and how many records it goes over."""
        ...

    def done(self, records: int) -> None: ...


async def replayed(role: str, settings: Settings, wiring: Wiring, *, verify: bool, steps: Steps) -> Answer:
    """Compare the role's state with one built from the log, or put that in its place."""
    with contextlib.nullcontext() if verify else _stopped(role, settings):
        log = await open_log(settings, read_only=True)
        try:
            ends = await _ends(log, settings)
            on_total = functools.partial(steps.begin, f"replaying {role}")
            if not verify:
                rebuilt = await _rebuild(role, settings, wiring(role))(log, ends, steps.done, on_total)
                return {"role": role, "digest": rebuilt}
            verdict = await _verify(role, settings, wiring(role))(log, ends, steps.done, on_total)
            return {"role": role, "equal": verdict.equal, **verdict._asdict()}
        finally:
            await log.close()


async def replayed_until(
    role: str, settings: Settings, wiring: Wiring, *, until: datetime, into: Path, steps: Steps
) -> Answer:
    """Build the state as it was at the moment in a directory of its own. InputError: there is something in it."""
    _check_empty(into)
    log = await open_log(settings, read_only=True)
    try:
        with TemporaryDirectory(dir=replay.parent_of(into)) as work:
            async with _past(role, settings, wiring, log, until, Path(work), steps) as past:
                ends = await _ends(past, settings)
                on_total = functools.partial(steps.begin, f"replaying {role}")
                digest = await _fill(role, settings, wiring(role), into)(past, ends, steps.done, on_total)
    finally:
        await log.close()
    return {"role": role, "until": until.isoformat(), "digest": digest, "directory": str(into)}


@contextlib.asynccontextmanager
async def _past(
    role: str, settings: Settings, wiring: Wiring, log: Log, until: datetime, work: Path, steps: Steps
) -> AsyncIterator[PointInTimeLog]:
    """The log as it was then. The records of devices, of which it keeps only the last, are decided again.

    Apps are those of today, but analytics, which knows their changes alone, gets these as far as they go.
    """
    now = await _ends(log, settings)
    whole = {topic.name for topic in TOPICS.values() if topic.compacted}
    if role == "analytics":
        whole.discard(APPS.name)
    looked_at = {partition: end for partition, end in now.items() if partition.topic not in whole}
    steps.begin(f"reading the log until {until.isoformat()}", sum(looked_at.values()))
    then = await ends_at(log, looked_at, (until - _EPOCH) // timedelta(milliseconds=1), steps.done)
    devices = SqliteLog(work / "devices.db", TOPICS)
    try:
        past = PointInTimeLog(log, {**now, **then}, [DEVICES.name], devices)
        if role in _READ_DEVICES:
            steps.begin(f"deciding {DEVICE_COMMANDS.name} again", None)
            await wiring("registry").decide_again(settings, work, past)
        yield past
    finally:
        await devices.close()


def _rebuild(role: str, settings: Any, main: Any) -> Any:
    if role == "analytics":
        return functools.partial(main.rebuild, settings)
    return functools.partial(replay.rebuild, functools.partial(main.open_state, settings), settings.state_dir(role))


def _verify(role: str, settings: Any, main: Any) -> Any:
    if role == "analytics":
        return functools.partial(main.verify, settings)
    return functools.partial(replay.verify, functools.partial(main.open_state, settings), settings.state_dir(role))


def _fill(role: str, settings: Any, main: Any, into: Path) -> Any:
    if role == "analytics":
        return functools.partial(main.fill, settings, into)
    return functools.partial(replay.rebuild, functools.partial(main.open_state, settings), into)


async def _ends(log: Log, settings: Settings) -> dict[Partition, int]:
    return await log.ends(
        Partition(topic.name, number)
        for topic in TOPICS.values()
        for number in range(topic.partitions(settings.partitions))
    )


def _stopped(role: str, settings: Settings) -> contextlib.AbstractContextManager[None]:
    """Hold what the running role holds: a rebuild takes its state's place."""
    if settings.kafka_bootstrap is None:
        return datadir.held(settings.data)
    return datadir.held(settings.state_dir(role), "running.lock")


def _check_empty(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} is not empty: name a new directory for the state")


def moment(text: str, settings: Settings) -> datetime:
    """An ISO 8601 date-time, in the installation's zone unless it names one. InputError: it is none."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"--until is {text!r}: give a date and time such as 2026-11-21T14:05:00") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=settings.zone())


class _Count(ProgressColumn):
    """Records done of records to do, where that is known."""

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{task.completed:,.0f} of {task.total:,.0f} records")


class _Rate(ProgressColumn):
    """Records a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")


class Bar:
    """Steps on standard error: a bar with records done of records to do, rate, and time left."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin(self, what: str, total: int | None) -> None:
        self._finish()
        self._task = self._progress.add_task(what, total=total)

    def done(self, records: int) -> None:
        assert self._task is not None
        self._progress.advance(self._task, records)

    def _finish(self) -> None:
        """A step that went over less than it might have is over all the same."""
        if self._task is not None:
            task = self._progress.tasks[self._task]
            self._progress.update(self._task, total=task.completed, completed=task.completed)


@contextlib.contextmanager
def bar(*, shown: bool) -> Iterator[Bar]:
    """A bar where a person looks: on a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        _Count(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not (shown and sys.stderr.isatty())) as progress:
        yield Bar(progress)
