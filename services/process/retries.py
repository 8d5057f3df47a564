"""Retries of calls to a dependency that is unavailable for a while."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.errors import UnavailableError
from services.process.logs import logger

_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 10.0
Result = TypeVar("Result")


async def retry_until_available(message: str, attempt: Callable[[], Awaitable[Result]], **context: str) -> Result:
    """Repeat the attempt until it raises no UnavailableError, with exponential back-off up to ten seconds.

    Each failure is logged as `message` with the context.
    """
    wait_s = _FIRST_RETRY_S
    while True:
        try:
            return await attempt()
        except UnavailableError as error:
            logger.warning(message, error=str(error), again_in_s=wait_s, **context)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LAST_RETRY_S)
