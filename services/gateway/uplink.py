"""The streams to delivery: one to each instance, batches both ways.

Up go connections and what devices report. A stream that breaks is made again; then the reports that the log may not
have are handed in again, and after them all connections are announced anew.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

from protos.delivery.v1.delivery_pb2 import AttachRequest, AttachResponse
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from services.gateway.connections import Session
from services.gateway.unreported import Outbox
from services.runtime.errors import CarillonError
from services.runtime.process.crashpoint import Point, reached
from services.runtime.process.logs import logger
from services.runtime.rpc.transport import Channel

_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 2.0
_STOP_S = 3.0

Handler = Callable[[AttachResponse], Awaitable[None]]
Announced = Callable[[], list[Session]]


class Uplink:
    """A service: the stream to one delivery instance. `current` gives the sessions that belong to it."""

    def __init__(
        self, channel: Channel, gateway: str, outbox: Outbox, current: Announced, handle: Handler, random: Random
    ) -> None:
        self.name = "gateway-uplink"
        self._stub = DeliveryServiceStub(channel)
        self._gateway = gateway
        self._outbox = outbox
        self._current = current
        self._handle = handle
        self._random = random
        self._attempt = 0
        self._stopping = False

    async def run(self, ready: asyncio.Event) -> None:
        following = asyncio.create_task(self._follow())
        ready.set()
        try:
            await asyncio.wait([following])
            following.result()
        finally:
            self._stopping = True
            self._outbox.news.set()
            await asyncio.wait([following], timeout=_STOP_S)
            if self._outbox.unrecorded:
                logger.error("reports may be lost at the stop: delivery is away", count=self._outbox.unrecorded)
            following.cancel()
            await asyncio.wait([following])

    async def _follow(self) -> None:
        failures = 0
        while not self._stopping:
            self._attempt += 1
            try:
                async for response in self._stub.Attach(self._requests(self._attempt)):
                    failures = 0
                    self._outbox.recorded(response.recorded)
                    await self._handle(response)
            except CarillonError as error:
                logger.warning("the stream to delivery broke", error=str(error))
            if not self._stopping:
                await asyncio.sleep(min(_BACKOFF_S * 2**failures, _MAX_BACKOFF_S) * self._random.uniform(0.5, 1))
                failures = min(failures + 1, 10)

    async def _requests(self, attempt: int) -> AsyncIterator[AttachRequest]:
        """What goes up; ends when a later attempt has begun, or at the stop once all of it is in the log."""
        self._outbox.start_again(self._current())
        yield AttachRequest(gateway=self._gateway)
        while attempt == self._attempt:
            batch = self._outbox.take()
            if batch is not None:
                reached(Point.REPORTS_TAKEN)
                yield batch
                reached(Point.REPORTS_HANDED)
            elif self._stopping and not self._outbox.unrecorded:
                return
            else:
                self._outbox.news.clear()
                await self._outbox.news.wait()
