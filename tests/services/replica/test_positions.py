"""Callers that wait until a task is sent, while scheduling stops."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from services.process.worker_thread import WorkerThread
from services.replica.positions import AppliedPositions
from services.scheduling.server import UnsentTasks
from testkit.waiting import until_holds


async def test_a_caller_is_given_up_without_an_error_in_the_log_when_scheduling_stops() -> None:
    thread, applied = WorkerThread("scheduling"), AppliedPositions([])
    follower: Any = SimpleNamespace(applied=applied, query=thread.call)
    asked = list[bool]()

    def at_once() -> set[str]:
        asked.append(True)
        return {"task"}

    committed: Any = SimpleNamespace(at_once=at_once)
    waiting = asyncio.create_task(UnsentTasks(follower, committed).wait_sent("task"))
    await until_holds(lambda: bool(asked))
    thread.shutdown()
    with structlog.testing.capture_logs() as logs:
        applied.change.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
    assert logs == []
