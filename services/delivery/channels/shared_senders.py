"""The senders of one process to a push service, each for one set of credentials."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from services.process import background
from services.process.clock import Clock


class ClosableSender(Protocol):
    """A sender that can be closed once it is idle."""

    @property
    def is_idle(self) -> bool: ...

    async def close(self) -> None: ...


Key = TypeVar("Key", bound=Hashable)
AnySender = TypeVar("AnySender", bound=ClosableSender)


class SharedSenders(Generic[Key, AnySender]):
    """The senders of a process to one service, one for each set of credentials; apps with the same credentials share
    one.

    A sender that is not asked for during UNUSED_MS, for example because its key was replaced, is closed.
    """

    UNUSED_MS = 3_600_000

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._senders: dict[Key, AnySender] = {}
        self._used_ms: dict[Key, int] = {}
        self._closing: asyncio.Task[None] | None = None

    def get(self, key: Key, make: Callable[[], AnySender]) -> AnySender:
        """Return the sender, to send by it now; `make` makes it if there is none."""
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = make()
        self._used_ms[key] = self._clock.now_ms()
        if self._closing is None:
            self._closing = background.start_endless(f"unused senders of {self._name}", self._close_unused())
        return sender

    async def close(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.gather(self._closing, return_exceptions=True)
        await asyncio.gather(*(sender.close() for sender in self._senders.values()))

    async def _close_unused(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + self.UNUSED_MS)
            before_ms = self._clock.now_ms() - self.UNUSED_MS
            unused = [key for key, used_ms in self._used_ms.items() if used_ms <= before_ms]
            closed = [self._senders.pop(key) for key in unused if self._senders[key].is_idle]
            self._used_ms = {key: self._used_ms[key] for key in self._senders}
            await asyncio.gather(*(sender.close() for sender in closed))
