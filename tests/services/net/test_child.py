"""A child process is started again when it ends or hangs, and stops with its parent's service."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protos.runtime.v1.process_pb2 import CheckRequest, CheckResponse, GetMetricsRequest, GetMetricsResponse
from protos.runtime.v1.process_pb2_grpc import ProcessServiceServicer, add_ProcessServiceServicer_to_server
from services.errors import UnavailableError
from services.net.child import AWAY_CHECKS, CHECK_S, SILENT_CHECKS, STARTING_CHECKS, ChildProcess, ChildReadiness
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Context
from services.process.clock import ManualClock
from testkit.waiting import run_ready_tasks, until_holds

OBEDIENT = "echo ready; cat > /dev/null"
"""A child that is ready at once and stops when its standard input ends."""


class ScriptedChild(ProcessServiceServicer):
    """A child process that answers nothing while `hangs` is set, else `problems`."""

    def __init__(self) -> None:
        self.hangs = False
        self.is_away = False
        self.problems: dict[str, str] = {}

    async def Check(self, request: CheckRequest, context: Context) -> CheckResponse:
        if self.is_away:
            raise UnavailableError("connection refused")
        if self.hangs:
            await asyncio.Event().wait()
        return CheckResponse(problems=self.problems)

    async def GetMetrics(self, request: GetMetricsRequest, context: Context) -> GetMetricsResponse:
        if self.is_away:
            raise UnavailableError("connection refused")
        return GetMetricsResponse(text="of_child 1\n")


class Parent:
    """A running ChildProcess whose clock the test moves."""

    def __init__(self, script: str, files: Sequence[int]) -> None:
        self.clock = ManualClock(0)
        self.answers = ScriptedChild()
        server = LocalServer()
        add_ProcessServiceServicer_to_server(self.answers, server)  # type: ignore[arg-type]
        self.child = ChildProcess("child", ["sh", "-c", script], server.channel(), self.clock, files)

    @property
    def pid(self) -> int:
        assert self.child.pid is not None
        return self.child.pid

    async def checks(self, count: int) -> None:
        """Let the time of this number of checks pass."""
        for _ in range(count):
            await run_ready_tasks()
            self.clock.move(CHECK_S)
        await run_ready_tasks()

    async def started_again(self, former: int) -> None:
        """Let checks and the back-off pass until the former child has ended and another one runs."""
        while self.child.pid in (None, former):
            self.clock.move(CHECK_S)
            await run_ready_tasks()


@contextlib.asynccontextmanager
async def running(
    script: str = OBEDIENT, *, is_begun: bool = False, files: Sequence[int] = ()
) -> AsyncIterator[Parent]:
    parent = Parent(script, files)
    if is_begun:
        parent.child.begin()
    task = asyncio.create_task(parent.child.run(asyncio.Event()))
    try:
        yield parent
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert parent.child.pid is None


async def test_a_killed_child_is_started_again_and_the_service_stops_it_by_its_standard_input() -> None:
    with capture_logs() as said:
        async with running(f"{OBEDIENT}; exit 7") as parent:
            await parent.child.settled.wait()
            killed = parent.pid
            os.kill(killed, signal.SIGKILL)
            await parent.started_again(killed)
            await parent.checks(2 * SILENT_CHECKS)
            second = parent.pid
    assert [(entry["event"], entry.get("why")) for entry in said] == [
        ("a child process has ended; it is started again", "it ended by SIGKILL")
    ]
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


async def test_a_child_has_the_given_files_and_its_ups_and_downs_are_told(tmp_path: Path) -> None:
    shared = os.open(tmp_path, os.O_RDONLY)
    told = list[bool]()
    async with running(f"[ -e /dev/fd/{shared} ] && {OBEDIENT}", files=[shared]) as parent:
        parent.child.on_up = told.append
        await until_holds(lambda: told == [True])
        killed = parent.pid
        os.kill(killed, signal.SIGKILL)
        await parent.started_again(killed)
        await until_holds(lambda: told == [True, False, True])
    assert told == [True, False, True, False]
    os.close(shared)


async def test_a_ready_child_that_does_not_answer_counts_as_away_until_it_does() -> None:
    told = list[bool]()
    async with running() as parent:
        parent.child.on_up = told.append
        await until_holds(lambda: told == [True])
        await parent.checks(1)
        parent.answers.is_away = True
        await parent.checks(1)  # This one was answered before.
        await parent.checks(AWAY_CHECKS - 1)
        assert told == [True]
        await parent.checks(1)
        assert told == [True, False]
        parent.answers.is_away = False
        await parent.checks(2)
        assert told == [True, False, True]


async def test_a_child_that_was_begun_ahead_is_taken_over_once(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with running(f"echo $$ >> {starts}; {OBEDIENT}", is_begun=True) as parent:
        await parent.child.settled.wait()
        assert starts.read_text().split() == [str(parent.pid)]
        os.kill(parent.pid, signal.SIGKILL)
        await parent.started_again(parent.pid)
        await until_holds(lambda: len(starts.read_text().split()) == 2)


async def test_what_a_child_prints_beside_its_readiness_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    async with running(f"echo a link; {OBEDIENT}; echo bye") as parent:
        await parent.child.settled.wait()
    assert capfd.readouterr().out == "a link\nbye\n"


async def test_readiness_is_noticed_however_its_line_is_cut_into_reads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fifo = tmp_path / "rest"
    os.mkfifo(fifo)
    script = f"printf 'a link\\nrea'; cat {fifo}; printf 'dy\\nbye'; cat > /dev/null; printf ' now'"
    async with running(script) as parent:
        printed = ""

        def is_read() -> bool:
            nonlocal printed
            printed += capfd.readouterr().out
            return bool(printed)

        await until_holds(is_read)
        assert printed == "a link\n"
        assert not parent.child.settled.is_set()
        await asyncio.to_thread(fifo.write_text, "")
        await parent.child.settled.wait()
    assert capfd.readouterr().out == "bye now"


async def test_a_child_has_a_process_group_of_its_own_in_the_session_of_the_parent() -> None:
    async with running() as parent:
        await parent.child.settled.wait()
        assert os.getpgid(parent.pid) == parent.pid
        assert os.getsid(parent.pid) == os.getsid(0)


@pytest.mark.parametrize("way", ["hangs", "is_away", "problems"])
async def test_a_child_that_hangs_or_is_not_well_is_killed_and_started_again(way: str) -> None:
    with capture_logs() as said:
        async with running() as parent:
            await parent.checks(2)
            stopped = parent.pid
            os.kill(stopped, signal.SIGSTOP)
            setattr(parent.answers, way, {"ingestion": "has ended"} if way == "problems" else True)
            await parent.checks(SILENT_CHECKS)  # The first of these was answered before.
            assert parent.pid == stopped
            await parent.checks(1)
            await parent.started_again(stopped)
    ended = [entry["why"] for entry in said if "why" in entry]
    assert ended[0].startswith("it was killed: "), ended
    assert ("ingestion has ended" if way == "problems" else "it does not answer") in ended[0]


async def test_a_child_that_hangs_as_soon_as_it_is_ready_is_not_given_the_time_of_a_start() -> None:
    async with running() as parent:
        parent.answers.hangs = True
        await parent.child.settled.wait()
        first = parent.pid
        await parent.checks(SILENT_CHECKS - 1)
        assert parent.pid == first
        await parent.checks(1)
        await parent.started_again(first)


async def test_a_check_that_fails_now_and_then_kills_nothing() -> None:
    async with running() as parent:
        await parent.checks(1)
        first = parent.pid
        for _ in range(3):
            parent.answers.is_away = True
            await parent.checks(SILENT_CHECKS - 1)
            parent.answers.is_away = False
            await parent.checks(2)
        assert parent.pid == first


async def test_a_child_has_long_to_start() -> None:
    async with running("cat > /dev/null") as parent:
        parent.answers.is_away = True
        await parent.checks(STARTING_CHECKS - 1)
        assert not parent.child.settled.is_set()
        first = parent.pid
        await parent.checks(1)
        await parent.started_again(first)
        assert parent.child.settled.is_set()


async def test_checks_that_failed_during_a_start_do_not_count_once_the_child_is_ready(tmp_path: Path) -> None:
    told = list[bool]()
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    async with running(f"cat {fifo}; {OBEDIENT}") as parent:
        parent.child.on_up = told.append
        parent.answers.is_away = True
        await parent.checks(SILENT_CHECKS + 1)
        first = parent.pid
        await asyncio.to_thread(fifo.write_text, "")
        await parent.child.settled.wait()
        parent.answers.is_away = False
        await parent.checks(2)  # The first of these failed before the child was ready.
        assert (parent.pid, told) == (first, [True])


async def test_the_back_off_doubles_up_to_a_minute() -> None:
    waits: list[float] = []
    with capture_logs() as said:
        async with running("exit 3") as parent:
            while len(waits) < 8:
                await until_holds(lambda: len([e for e in said if "in_s" in e]) > len(waits))
                waits.append(said[-1]["in_s"])
                await run_ready_tasks()
                parent.clock.move(waits[-1])
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert {entry["why"] for entry in said} == {"it ended with code 3"}


async def test_a_command_that_does_not_exist_hinders_no_start(tmp_path: Path) -> None:
    parent = Parent("", [])
    parent.child._command = [str(tmp_path / "none")]
    task = asyncio.create_task(parent.child.run(asyncio.Event()))
    ready = asyncio.Event()
    gate = asyncio.create_task(ChildReadiness(parent.child, 60).run(ready))
    await asyncio.wait_for(ready.wait(), 60)
    for each in (task, gate):
        each.cancel()
        await asyncio.wait([each])


async def test_metrics_of_a_child_that_is_away_are_left_out() -> None:
    async with running() as parent:
        assert await parent.child.metrics() == "of_child 1\n"
        parent.answers.is_away = True
        assert await parent.child.metrics() == ""
