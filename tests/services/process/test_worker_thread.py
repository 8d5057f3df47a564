"""The thread that does blocking work for an event loop."""

import asyncio
import gc
import threading
import weakref
from functools import partial

import pytest

from services.errors import UnavailableError
from services.process.worker_thread import WorkerThread
from testkit.waiting import run_ready_tasks


async def test_calls_run_in_order_in_one_other_thread() -> None:
    thread, ran = WorkerThread("worker"), list[tuple[int, int]]()

    def note(number: int) -> None:
        ran.append((number, threading.get_ident()))

    calls = [thread.call(partial(note, number)) for number in range(100)]
    await asyncio.gather(*calls)
    assert [number for number, _ in ran] == list(range(100))
    assert {ident for _, ident in ran}.isdisjoint({threading.get_ident()})
    assert len({ident for _, ident in ran}) == 1
    thread.shutdown()


async def test_results_and_errors_reach_the_caller() -> None:
    thread = WorkerThread("worker")
    assert await thread.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0)
    assert await thread.call(lambda: 8) == 8
    thread.shutdown()


async def test_a_call_that_is_cancelled_before_it_begins_does_not_run() -> None:
    thread, began, go_on = WorkerThread("worker"), threading.Event(), threading.Event()
    ran: list[str] = []

    def first() -> None:
        began.set()
        go_on.wait(60)
        ran.append("first")

    running = thread.call(first)
    await asyncio.to_thread(began.wait, 60)
    cancelled, later = thread.call(lambda: ran.append("cancelled")), thread.call(lambda: ran.append("later"))
    cancelled.cancel()
    running.cancel()
    go_on.set()
    await later
    assert ran == ["first", "later"]
    thread.shutdown()


async def test_a_shut_down_waits_for_the_calls_and_takes_no_more() -> None:
    thread, ran = WorkerThread("worker"), list[int]()
    calls = [thread.call(partial(ran.append, number)) for number in range(100)]
    thread.shutdown()
    assert ran == list(range(100))
    await asyncio.gather(*calls)
    with pytest.raises(UnavailableError, match="worker is stopping"):
        thread.call(lambda: None)
    WorkerThread("never used").shutdown()


async def test_the_thread_ends_once_its_object_is_garbage() -> None:
    thread = WorkerThread("worker")
    running = await thread.call(threading.current_thread)
    del thread
    gc.collect()
    await asyncio.to_thread(running.join, 60)
    assert not running.is_alive()


async def test_nothing_of_a_call_stays_in_memory() -> None:
    class Large:
        pass

    thread, large = WorkerThread("worker"), Large()
    reference = weakref.ref(large)
    assert len(await thread.call(partial(list, [large]))) == 1
    del large
    await run_ready_tasks()
    gc.collect()
    assert reference() is None
    thread.shutdown()


def test_a_loop_that_was_closed_meanwhile_harms_nothing() -> None:
    thread, begin = WorkerThread("worker"), threading.Event()

    async def leave() -> None:
        thread.call(lambda: begin.wait(60))

    asyncio.run(leave())
    begin.set()
    assert asyncio.run(run_later(thread)) == "ran"
    thread.shutdown()


async def run_later(thread: WorkerThread) -> str:
    return await thread.call(lambda: "ran")
