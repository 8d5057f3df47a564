"""Changes of apps, made one at a time: each is based on what the one before has written."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from services.runtime.process.logs import logger

Answer = TypeVar("Answer")


class ChangeQueue:
    """Makes changes one after the other. A change that has begun keeps its turn until it has ended.

    The end of its call does not end it: what it appends gets into the log nevertheless, and the next change, which
    writes the whole record of an app, must be based on that.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._making: asyncio.Task[Any] | None = None

    async def make(self, change: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Make the change and return its answer. It is not made if the call is cancelled before its turn."""
        await self._turn.acquire()
        self._making = making = asyncio.create_task(change())
        making.add_done_callback(lambda _: self._turn.release())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_log_failure)
            raise


def _log_failure(making: "asyncio.Task[Any]") -> None:
    error = None if making.cancelled() else making.exception()
    if error is not None:
        logger.warning("a change of apps failed after its call had ended", exc_info=error)
