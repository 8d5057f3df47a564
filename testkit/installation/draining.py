"""Observes the stop of a real process: it still answers requests, until it refuses connections."""

import os
import signal
import time
from collections.abc import Awaitable, Callable

import httpx

from testkit import plain_http
from testkit.waiting import until


async def accepted_for(process: int, number: signal.Signals, ask: Callable[[], Awaitable[None]]) -> float:
    """Send the signal, then call `ask` until a connection is refused; return the time until then in seconds.

    `ask` makes a new connection each time, and checks the answer.
    """
    began = time.monotonic()
    os.kill(process, number)
    while True:
        try:
            await ask()
        except httpx.TransportError:
            return time.monotonic() - began


async def until_stopping(operations: str) -> None:
    """Return once /healthz of the operations endpoint answers 503 because the process is stopping."""

    async def is_told() -> bool:
        async with plain_http.async_client(timeout=60) as http:
            answer = await http.get(f"{operations}/healthz")
        return (answer.status_code, answer.json()) == (503, {"status": "stopping"})

    await until(is_told)
