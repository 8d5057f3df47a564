"""Follows what the parent knows of the installation's processes, for the status board of its child process."""

import asyncio
from collections.abc import AsyncIterator

from protos.runtime.v1.parent_pb2 import WatchProcessesRequest
from protos.runtime.v1.parent_pb2_grpc import ParentServiceStub
from services.runtime.errors import CarillonError
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.rpc.channel import Channel
from services.runtime.status.status_board import StatusBoard

_RETRY_MS = 1000


class ParentStatusFollower:
    """Service that applies the announcements, which the parent streams, to the status board."""

    name = "board of processes"

    def __init__(self, board: StatusBoard, parent: Channel, clock: Clock) -> None:
        self._board = board
        self._parent = ParentServiceStub(parent)
        self._clock = clock

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            try:
                async for announced in self._parent.WatchProcesses(self._request()):
                    self._board.apply(announced.fact)
            except CarillonError as error:
                logger.debug("the stream of processes' statuses from the parent has ended", error=str(error))
            await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    async def _request(self) -> AsyncIterator[WatchProcessesRequest]:
        """Yield the one request, and leave the stream open."""
        yield WatchProcessesRequest()
        await asyncio.Event().wait()
