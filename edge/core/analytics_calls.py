"""Calls to analytics for app servers: cancelled when the client leaves; 503 when analytics cannot answer."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from falcon.asgi import Request

from edge.core.request_limiter import RECEIVE, busy_as_too_many
from services.runtime.errors import CarillonError, DeadlineError, TryLaterError, UnavailableError
from services.runtime.process.logs import logger

_RETRY_AFTER_S = 5
Answer = TypeVar("Answer")


class ClientLeftError(CarillonError):
    """The client has closed its connection, so nobody reads the answer. Proxies log such a request as 499 too."""

    result = 499


async def call_analytics(request: Request, call: Awaitable[Answer]) -> Answer:
    """Return the answer to the call, which is cancelled when the client leaves: analytics then stops the query.

    TooManyRequestsError: too many calls of the app wait. TryLaterError: analytics cannot answer at present.
    """
    with busy_as_too_many():
        try:
            return await _while_connected(request, call)
        except (UnavailableError, DeadlineError) as error:
            logger.warning("analytics cannot answer", path=request.uri_template, error=str(error))
            raise TryLaterError(
                "statistics and acknowledgements are not available at present", _RETRY_AFTER_S
            ) from None


async def _while_connected(request: Request, call: Awaitable[Answer]) -> Answer:
    answer = asyncio.ensure_future(call)
    leaving = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait([answer, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientLeftError("the client has left")
        return answer.result()
    finally:
        leaving.cancel()
        if not answer.done():
            answer.cancel()
            await asyncio.wait([answer])


async def _disconnect(request: Request) -> None:
    """Return once the client has closed its connection; its body is read already."""
    receive: Any = request.scope[RECEIVE]
    while (await receive())["type"] != "http.disconnect":
        pass
