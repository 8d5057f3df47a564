"""How long a device waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

ANSWER_S = 10.0
"""For a connection, a welcome, an answer, a pong."""

CALLBACK_S = 30.0
"""For the app; the gateway sends a device away that leaves a push unacknowledged for 60 s."""

CLOSE_S = 2.0
FIRST_RETRY_S = 0.2
MAX_RETRY_S = 30.0
MAX_ASKED_S = 86_400.0
"""The most a goodbye can ask for."""

Sleep = Callable[[float], Awaitable[None]]
Result = TypeVar("Result")


def retry_s(asked_ms: object, failures: int, chance: float) -> float:
    """Before connecting again: what the goodbye asked for, else full jitter over the failed attempts in a row.

    `chance` lies in [0, 1).
    """
    if isinstance(asked_ms, int | float) and asked_ms > 0:
        return min(MAX_ASKED_S, asked_ms / 1000)
    return chance * min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 30))


async def within(seconds: float, work: Awaitable[Result], sleep: Sleep) -> Result:
    """The work's result. TimeoutError: it did not end in time, and was cancelled."""
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
