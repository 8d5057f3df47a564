"""Calls to analytics for app servers: acknowledgements page by page, and answers that end with their client."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

from falcon.asgi import Request

from edge.core.request_limiter import RECEIVE, busy_as_too_many
from protos.analytics.v1.analytics_pb2 import ListAcksRequest, ListAcksResponse
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from protos.registry.v1.apps_pb2 import App
from services.domain.apps import OUTDATED, AppDirectory
from services.errors import CarillonError, DeadlineError, InputError, TryLaterError, UnavailableError
from services.process.logs import logger
from services.replica.peers import Peers

_RETRY_AFTER_S = 5

_ENDED_S = 2.0
"""Time that a call has left once its client sends no more: it may still read, or may have left without a reset."""

Answer = TypeVar("Answer")


class ClientLeftError(CarillonError):
    """The client has closed its connection, so nobody reads the answer. Proxies log such a request as 499 too."""

    result = 499


async def call_analytics(request: Request, call: Awaitable[Answer]) -> Answer:
    """Return the answer to the call, which is cancelled when the client leaves: analytics then stops the query.

    A client that ends its sending side may have left or may still read: its call gets `_ENDED_S` more.

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
    """Return once the client has closed its connection, or `_ENDED_S` after it has ended its sending side."""
    receive: Any = request.scope[RECEIVE]
    if (await receive())["type"] == "http.disconnect":
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ENDED_S):
            while (await receive())["type"] != "http.disconnect":
                pass


# Acknowledgements of Android unicast messages, read page by page.

_READ_S = 20.0


class AckPages:
    """Reads acknowledgements from analytics, for the apps whose operator has enabled getAckInfo."""

    def __init__(self, apps: AppDirectory, peers: Peers) -> None:
        self._apps = apps
        self._analytics = AnalyticsServiceStub(peers.all("analytics")[0])

    async def read(self, request: Request, app: App, pos: str, limit: int) -> ListAcksResponse:
        """Return at most `limit` records after `pos`; "0" is the start. InputError: no such position."""
        query = ListAcksRequest(appkey=app.appkey, pos=pos, limit=limit)
        page: ListAcksResponse = await call_analytics(request, self._analytics.ListAcks(query, timeout=_READ_S))
        return page

    async def check_enabled(self, app: App) -> None:
        """Check that getAckInfo is enabled for the app.

        InputError: it is not enabled, also after a refresh of the app directory.

        UnavailableError: the refresh failed, so the app is not refused.
        """
        if not app.ack_info_enabled:
            is_current = await self._apps.refresh()
            newest = self._apps.get(app.appkey)
            if newest is None or not newest.ack_info_enabled:
                refusal = InputError("getAckInfo is not enabled for this app")
                raise refusal if is_current else UnavailableError(OUTDATED)
