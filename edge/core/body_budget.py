"""The byte budget of request bodies whose sign is not verified yet, which anybody can send.

The bodies of a process share one budget. Each counts with the bytes that have arrived, not with those that it
announces. No body waits for room: as soon as the budget is exceeded, the address that holds the most bytes loses its
largest body, the newest of equal ones, whose request is answered with HTTP 503 and Retry-After. So what one address
sends costs other addresses nothing, and a small body is refused last.
"""

import asyncio
from collections import Counter
from types import TracebackType

import falcon

from services.runtime.process.metrics import BODIES_REFUSED

RETRY_AFTER_S = 1


class BodyBudget:
    """Counts the bytes of the unverified bodies of one process."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bodies: dict[str, dict[UnverifiedBody, None]] = {}
        self._by_address: Counter[str] = Counter()
        self.held_bytes = 0

    def body(self, address: str) -> "UnverifiedBody":
        """Return a body from this address, which counts while its `with` block runs."""
        return UnverifiedBody(self, address)

    def enter(self, body: "UnverifiedBody") -> None:
        self._bodies.setdefault(body.address, {})[body] = None

    def leave(self, body: "UnverifiedBody") -> None:
        bodies = self._bodies.get(body.address, {})
        if body not in bodies:
            return
        del bodies[body]
        self.held_bytes -= body.size
        self._by_address[body.address] -= body.size
        if not bodies:
            del self._bodies[body.address]
            del self._by_address[body.address]

    def grow(self, body: "UnverifiedBody", size: int) -> None:
        self._by_address[body.address] += size
        self.held_bytes += size
        while self.held_bytes > self._limit_bytes:
            heaviest = max(self._by_address, key=self._by_address.__getitem__)
            refused = max(reversed(self._bodies[heaviest]), key=lambda held: held.size)
            self.leave(refused)
            BODIES_REFUSED.inc()
            refused.refuse()


class UnverifiedBody:
    """One body, from its first byte until its sign is verified. A context manager of the task that reads it."""

    __slots__ = ("_budget", "_is_refused", "_task", "address", "size")

    def __init__(self, budget: BodyBudget, address: str) -> None:
        self._budget = budget
        self._is_refused = False
        self._task: asyncio.Task[object] | None = None
        self.address = address
        self.size = 0

    def __enter__(self) -> "UnverifiedBody":
        self._task = asyncio.current_task()
        self._budget.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.leave(self)
        if self._is_refused and kind is asyncio.CancelledError and self._task is not None and not self._task.uncancel():
            raise _busy() from None

    def add(self, size: int) -> None:
        """Count `size` more bytes. HTTP 503: the budget is exceeded, and this body is refused."""
        self.size += size
        self._budget.grow(self, size)
        if self._is_refused:
            raise _busy()

    def refuse(self) -> None:
        """End the request with HTTP 503, wherever it waits."""
        self._is_refused = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


def _busy() -> falcon.HTTPServiceUnavailable:
    return falcon.HTTPServiceUnavailable(
        description="too many request bodies at once; repeat the request", retry_after=RETRY_AFTER_S
    )
