"""A client of Kafka that is started when it is needed, and replaced by another one once it has failed."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from services.runtime.errors import UnavailableError
from services.runtime.process import background

Client = TypeVar("Client")
Stop = Callable[[Client], Coroutine[Any, Any, None]]


class Replaceable(Generic[Client]):
    """One client at a time. `start` makes and starts one, `stop` ends one within a bounded time and raises nothing."""

    def __init__(self, start: Callable[[], Awaitable[Client]], stop: Stop[Client]) -> None:
        self._start = start
        self._stop = stop
        self._client: Client | None = None
        self._starting = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def current(self) -> Client:
        """Return the client that calls use now. Errors of `start`; UnavailableError: this was closed."""
        if self._client is None:
            async with self._starting:
                if self._closed:
                    raise UnavailableError("the event log is closed")
                if self._client is None:
                    self._client = await self._start()
        return self._client

    def replace(self, client: Client, stop: Stop[Client] | None = None) -> None:
        """Let the next call start another client, unless this one is replaced already; stop it, by `stop` if given."""
        if client is self._client:
            self._client = None
            task = background.start("stop of a Kafka client", (stop or self._stop)(client))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Stop the client, and wait for those that were replaced."""
        self._closed = True
        if self._client is not None:
            self.replace(self._client)
        if self._ending:
            await asyncio.wait(self._ending)
