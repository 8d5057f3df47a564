"""The delay queue, the in-flight window and the device delays."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.delivery.channels import AddressRemoval, Recipient, service_channel
from services.delivery.channels.addresses import AddressRemover
from services.delivery.channels.queue import DelayQueue, DeviceDelays, InFlightWindow
from services.domain.command_writer import CommandWriter
from services.process.clock import ManualClock
from services.replica.health import Health
from testkit.delivery.ios import VALID_TOKENS, IosHarness
from testkit.waiting import run_ready_tasks, until_holds


async def test_a_delay_queue_returns_due_items_in_the_order_of_their_times() -> None:
    clock, due = ManualClock(0), asyncio.Event()
    queue: DelayQueue[str] = DelayQueue(clock, due.set)
    for due_ms, item in ((3000, "third"), (1000, "first"), (2000, "second")):
        queue.put(due_ms, item)
    assert queue.take_due() == []
    clock.move(1)
    await run_ready_tasks()
    assert due.is_set()
    assert queue.take_due() == ["first"]
    clock.move(5)
    assert queue.take_due() == ["second", "third"]
    assert len(queue) == 0
    queue.close()


async def test_a_closed_delay_queue_wakes_nobody() -> None:
    clock, due = ManualClock(0), asyncio.Event()
    queue: DelayQueue[str] = DelayQueue(clock, due.set)
    queue.put(1000, "item")
    queue.close()
    clock.move(2)
    await run_ready_tasks()
    assert not due.is_set()


async def test_a_window_reports_when_it_is_half_empty_and_empty() -> None:
    calls = 0

    def on_half_empty() -> None:
        nonlocal calls
        calls += 1

    window = InFlightWindow(4, on_half_empty)
    for _ in range(4):
        window.enter()
    assert (window.free(is_probing=False), window.free(is_probing=True)) == (0, -3)
    window.leave()
    assert calls == 0
    window.leave()
    assert calls == 1
    assert not window.empty.is_set()
    window.leave()
    window.leave()
    assert window.empty.is_set()
    assert (window.free(is_probing=False), window.free(is_probing=True)) == (4, 1)


def test_device_delays_end_and_make_space_for_others() -> None:
    delays = DeviceDelays(capacity=1)
    delays.delay("one", until_ms=10, now_ms=0)
    delays.delay("two", until_ms=20, now_ms=5)
    assert (delays.until_ms("one", 9), delays.until_ms("two", 9)) == (10, None)
    assert delays.until_ms("one", 10) is None
    delays.delay("two", until_ms=20, now_ms=10)
    assert delays.until_ms("two", 19) == 20


async def test_the_removal_of_invalid_addresses_goes_on_after_an_error() -> None:
    appended: list[int] = []

    async def append(commands: list[Any]) -> None:
        appended.append(len(commands))
        if len(appended) == 1:
            raise ValueError("broken")

    addresses = AddressRemover(cast(CommandWriter, SimpleNamespace(append=append)), cast(Any, id))
    for _ in range(2):
        addresses.remove(AddressRemoval(Recipient("1000000001", 0, 1, "token"), "Unregistered", 0, lambda: None))
        await addresses.close()
    assert appended == [1, 1]


async def test_a_failed_sender_of_an_app_is_a_problem_of_the_process(
    ios: IosHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(sender: Any) -> bool:
        raise RuntimeError("broken")

    monkeypatch.setattr(service_channel.AppSender, "_send_some", fail)
    async with ios.running():
        health = Health(ios.delivery.clock)
        await ios.send(*await ios.register(VALID_TOKENS[0]))
        await until_holds(lambda: bool(health.problems()))
        assert health.problems() == {f"sender of iOS app {ios.appkey}": "failed: RuntimeError: broken"}
