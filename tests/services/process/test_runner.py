"""The runner: services start in order, one at a time, and stop in reverse, whatever happens."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from services.errors import CarillonError
from services.process.runner import run

BOUND_S = 60.0
PROGRAM = """
import asyncio
from services.process.runner import run
from tests.services.process.test_runner import PlainService, Events

def tell(line):
    print(line, flush=True)

services = [PlainService("a", Events())]
asyncio.run(run(services, lambda: tell("ready"), on_stopping=lambda: tell("stopping"), drain_seconds=3600))
"""


class Events:
    """Notes the events of services and of the runner, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ready = asyncio.Event()

    def on_ready(self) -> None:
        self.lines.append("all ready")
        self.ready.set()

    def on_stopping(self) -> None:
        self.lines.append("not ready")


class PlainService:
    """A service that records its events; it needs some turns of the loop to stop."""

    def __init__(self, name: str, events: Events) -> None:
        self.name = name
        self.events = events

    async def run(self, ready: asyncio.Event) -> None:
        self.events.lines.append(f"start {self.name}")
        await asyncio.sleep(0)
        self.events.lines.append(f"ready {self.name}")
        ready.set()
        try:
            await self.live()
        finally:
            self.events.lines.append(f"stopping {self.name}")
            for _ in range(5):
                await asyncio.sleep(0)
            self.events.lines.append(f"stopped {self.name}")

    async def live(self) -> None:
        await asyncio.Event().wait()


class EndingService(PlainService):
    """A service that ends once `told` is set: without an error, or with this one, which may be a cancellation."""

    def __init__(self, name: str, events: Events, error: BaseException | None) -> None:
        super().__init__(name, events)
        self.error = error
        self.told = asyncio.Event()

    async def live(self) -> None:
        await self.told.wait()
        if self.error:
            raise self.error


class FailingService(PlainService):
    """A service that fails before it is ready."""

    async def run(self, ready: asyncio.Event) -> None:
        self.events.lines.append(f"start {self.name}")
        raise CarillonError("port 8300 is taken") from OSError("address in use")


class NeverReadyService(PlainService):
    """A service that is never ready; it calls back when it has begun."""

    def __init__(self, name: str, events: Events, began: Callable[[], None]) -> None:
        super().__init__(name, events)
        self.began = began

    async def run(self, ready: asyncio.Event) -> None:
        self.events.lines.append(f"start {self.name}")
        self.began()
        try:
            await asyncio.Event().wait()
        finally:
            self.events.lines.append(f"stopped {self.name}")


class UnstoppableService(PlainService):
    """A service that does not stop before the test sets `let_go`."""

    def __init__(self, name: str, events: Events) -> None:
        super().__init__(name, events)
        self.let_go = asyncio.Event()

    async def live(self) -> None:
        try:
            await super().live()
        except asyncio.CancelledError:
            await self.let_go.wait()
            raise


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture(autouse=True)
def handlers_of_signals() -> Iterator[None]:
    """Restore the signal handlers, because `run` leaves the default ones, which end the process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def started(*names: str) -> list[str]:
    return [line for name in names for line in (f"start {name}", f"ready {name}")]


def stopped(*names: str) -> list[str]:
    return [line for name in names for line in (f"stopping {name}", f"stopped {name}")]


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_all_in_reverse_one_at_a_time(events: Events, number: signal.Signals) -> None:
    running = asyncio.create_task(run([PlainService(name, events) for name in "abc"], events.on_ready))
    await asyncio.wait_for(events.ready.wait(), BOUND_S)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(running, BOUND_S)
    assert events.lines == [*started("a", "b", "c"), "all ready", *stopped("c", "b", "a")]


async def test_a_signal_during_the_start_starts_nothing_more(events: Events) -> None:
    later = [PlainService("c", events), PlainService("d", events)]
    services = [PlainService("a", events), NeverReadyService("b", events, terminate), *later]
    await asyncio.wait_for(run(services, events.on_ready), BOUND_S)
    assert events.lines == [*started("a"), "start b", "stopped b", *stopped("a")]


async def test_readiness_is_off_for_the_drain_before_anything_stops(events: Events) -> None:
    services = [PlainService("a", events), PlainService("b", events)]
    running = asyncio.create_task(run(services, events.on_ready, on_stopping=events.on_stopping, drain_seconds=0.05))
    await asyncio.wait_for(events.ready.wait(), BOUND_S)
    began = asyncio.get_running_loop().time()
    terminate()
    await asyncio.wait_for(running, BOUND_S)
    assert asyncio.get_running_loop().time() - began >= 0.05
    assert events.lines[4:] == ["all ready", "not ready", *stopped("b", "a")]


async def test_a_drain_ends_when_a_service_fails(events: Events) -> None:
    failing = EndingService("a", events, ValueError("lost the log"))
    running = asyncio.create_task(run([failing], events.on_ready, on_stopping=failing.told.set, drain_seconds=3600))
    await asyncio.wait_for(events.ready.wait(), BOUND_S)
    terminate()
    with pytest.raises(ValueError, match="lost the log"):
        await asyncio.wait_for(running, BOUND_S)


async def test_a_process_that_was_never_ready_does_not_drain(events: Events) -> None:
    services = [NeverReadyService("a", events, terminate)]
    await asyncio.wait_for(run(services, events.on_ready, drain_seconds=3600), BOUND_S)
    assert events.lines == ["start a", "stopped a"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdout=PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(BOUND_S):
        for line in (b"ready\n", b"stopping\n"):
            assert await process.stdout.readline() == line
            process.send_signal(number)
        assert await process.wait() == -number


async def test_listeners_open_first_and_close_first(events: Events) -> None:
    services = [PlainService("a", events), PlainService("b", events)]
    running = asyncio.create_task(run(services, events.on_ready, listeners=[PlainService("listener", events)]))
    await asyncio.wait_for(events.ready.wait(), BOUND_S)
    terminate()
    await asyncio.wait_for(running, BOUND_S)
    assert events.lines == [*started("listener", "a", "b"), "all ready", *stopped("listener", "b", "a")]


async def test_a_listener_closes_first_when_the_start_fails(events: Events) -> None:
    services = [PlainService("a", events), FailingService("b", events)]
    with pytest.raises(CarillonError, match="port 8300"):
        await asyncio.wait_for(run(services, events.on_ready, listeners=[PlainService("listener", events)]), BOUND_S)
    assert events.lines == [*started("listener", "a"), "start b", *stopped("listener", "a")]


async def test_a_failure_at_the_start_stops_what_runs_and_is_raised_with_its_cause(events: Events) -> None:
    earlier = [PlainService("a", events), PlainService("b", events)]
    services = [*earlier, FailingService("c", events), PlainService("d", events)]
    with pytest.raises(CarillonError, match=r"^port 8300 is taken$") as raised:
        await asyncio.wait_for(run(services, events.on_ready), BOUND_S)
    assert isinstance(raised.value.__cause__, OSError)
    assert events.lines == [*started("a", "b"), "start c", *stopped("b", "a")]


async def test_an_earlier_service_that_fails_ends_the_start_of_a_later_one(events: Events) -> None:
    first = EndingService("a", events, ValueError("lost the log"))
    with pytest.raises(ValueError, match="lost the log"):
        await asyncio.wait_for(run([first, NeverReadyService("b", events, first.told.set)], events.on_ready), BOUND_S)
    assert events.lines == [*started("a"), "start b", *stopped("a"), "stopped b"]


async def test_a_failure_later_on_stops_the_others_in_order_and_is_raised(events: Events) -> None:
    error = CarillonError("too many dead letters")
    middle = EndingService("b", events, error)
    running = asyncio.create_task(run([PlainService("a", events), middle, PlainService("c", events)], events.on_ready))
    await asyncio.wait_for(events.ready.wait(), BOUND_S)
    middle.told.set()
    with pytest.raises(CarillonError) as raised:
        await asyncio.wait_for(running, BOUND_S)
    assert raised.value is error
    assert events.lines[7:] == [*stopped("b"), *stopped("c", "a")]


@pytest.mark.parametrize("error", [None, asyncio.CancelledError()], ids=["returns", "was cancelled"])
async def test_a_service_that_ends_by_itself_is_a_failure(events: Events, error: BaseException | None) -> None:
    last = EndingService("b", events, error)
    running = asyncio.create_task(run([PlainService("a", events), last], events.on_ready))
    await asyncio.wait_for(events.ready.wait(), BOUND_S)
    last.told.set()
    with pytest.raises(CarillonError, match=r"^b ended by itself$"):
        await asyncio.wait_for(running, BOUND_S)
    assert events.lines[5:] == stopped("b", "a")


async def test_a_service_that_does_not_stop_in_time_is_left_and_named(events: Events) -> None:
    stubborn = UnstoppableService("b", events)
    services = [PlainService("a", events), stubborn, PlainService("c", events)]
    running = asyncio.create_task(run(services, events.on_ready, stop_seconds=0.05))
    await asyncio.wait_for(events.ready.wait(), BOUND_S)
    with capture_logs() as logs:
        terminate()
        await asyncio.wait_for(running, BOUND_S)
    assert events.lines[7:] == [*stopped("c"), *stopped("a")]
    assert [(line["event"], line["service"]) for line in logs] == [("a service did not stop in time", "b")]
    stubborn.let_go.set()


async def test_a_service_that_is_not_ready_in_time_is_a_failure(events: Events) -> None:
    services = [PlainService("a", events), NeverReadyService("b", events, lambda: None)]
    with pytest.raises(CarillonError, match=r"^b is not ready, and made no progress for 0 s; "):
        await asyncio.wait_for(run(services, events.on_ready, start_seconds=0.05), BOUND_S)
    assert events.lines == [*started("a"), "start b", "stopped b", *stopped("a")]


async def test_an_error_while_stopping_is_logged_and_the_rest_still_stops(events: Events) -> None:
    class FailingToStop(PlainService):
        async def live(self) -> None:
            try:
                await super().live()
            finally:
                raise ValueError("could not flush")

    running = asyncio.create_task(run([PlainService("a", events), FailingToStop("b", events)], events.on_ready))
    await asyncio.wait_for(events.ready.wait(), BOUND_S)
    with capture_logs() as logs:
        terminate()
        await asyncio.wait_for(running, BOUND_S)
    assert events.lines[5:] == stopped("b", "a")
    assert [(line["event"], line["service"], line["error"]) for line in logs] == [
        ("a service failed", "b", "could not flush")
    ]
