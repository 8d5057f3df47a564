"""Functions of asyncio that take another number of steps in other versions of Python, written so that they do not.

- `wait_for` starts a task for what it awaits until Python 3.11.
- `gather` calls back at once for futures that are done since Python 3.12, and in a later step before.
- `shield` adds callbacks of its own since Python 3.14.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

Result = TypeVar("Result")

_asyncio_gather = asyncio.gather


@contextmanager
def same_steps() -> Iterator[None]:
    """Let code inside the `with` call these functions in the place of asyncio's."""
    with ExitStack() as stack:
        for function in (wait_for, gather, shield):
            stack.enter_context(patch.object(asyncio, function.__name__, function))
        yield


async def wait_for(awaitable: Awaitable[Result], timeout: float | None) -> Result:
    async with asyncio.timeout(timeout):
        return await awaitable


def gather(*awaitables: Awaitable[Any], return_exceptions: bool = False) -> "asyncio.Future[list[Any]]":
    return _asyncio_gather(*(_pending(each) for each in awaitables), return_exceptions=return_exceptions)


def shield(awaitable: Awaitable[Result]) -> "asyncio.Future[Result]":
    inner: asyncio.Future[Result] = asyncio.ensure_future(awaitable)
    if inner.done():
        return inner
    outer: asyncio.Future[Result] = inner.get_loop().create_future()

    def settle(_: object) -> None:
        if outer.done():
            return
        if inner.cancelled():
            outer.cancel()
        elif (error := inner.exception()) is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())

    inner.add_done_callback(settle)
    return outer


def _pending(awaitable: Awaitable[Result]) -> Awaitable[Result]:
    """Return an awaitable with the same result that is not done yet."""

    async def result() -> Result:
        return await awaitable

    return result() if isinstance(awaitable, asyncio.Future) and awaitable.done() else awaitable
