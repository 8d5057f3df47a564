"""Deadlines of a device, and its delays before reconnecting."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

ANSWER_S = 10.0
"""Deadline of a connection, a welcome, an answer and a pong."""

CALLBACK_S = 30.0
"""Deadline of the app's callbacks; the gateway waits 60 s for an acknowledgement."""

CLOSE_S = 2.0
FIRST_RETRY_S = 0.2
MAX_RETRY_S = 30.0
MAX_REQUESTED_RETRY_S = 86_400.0
"""Upper bound of the delay that a goodbye requests."""

Sleep = Callable[[float], Awaitable[None]]
Result = TypeVar("Result")


def retry_s(requested_ms: object, failures: int, chance: float) -> float:
    """Return the delay before the next attempt: the goodbye's, else exponential back-off with full jitter.

    `failures` counts the failed attempts in a row; `chance` lies in [0, 1).
    """
    if isinstance(requested_ms, int | float) and requested_ms > 0:
        return min(MAX_REQUESTED_RETRY_S, requested_ms / 1000)
    return chance * min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 30))


async def within(seconds: float, work: Awaitable[Result], sleep: Sleep) -> Result:
    """Return the work's result. TimeoutError: it did not end in time and was cancelled."""
    working = asyncio.ensure_future(work)
    limit = asyncio.ensure_future(sleep(seconds))
    try:
        await asyncio.wait([working, limit], return_when=asyncio.FIRST_COMPLETED)
        if not working.done() or working.cancelled():
            raise TimeoutError
        return working.result()
    finally:
        limit.cancel()
        working.cancel()
