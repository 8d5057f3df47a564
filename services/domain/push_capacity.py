"""Asks delivery whether it has capacity for more pushes of an app, before they are appended to the log."""

import asyncio
from typing import TYPE_CHECKING

from protos.delivery.v1.delivery_pb2 import HasCapacityRequest, HasCapacityResponse
from protos.delivery.v1.delivery_pb2_grpc import CapacityServiceStub
from services.errors import BusyError, CarillonError, Code
from services.process.clock import Clock
from services.replica.peers import Peers

if TYPE_CHECKING:
    from protos.delivery.v1.delivery_pb2_grpc import CapacityServiceAsyncStub

ASK_BYTES = 1024 * 1024
"""Bytes of an app's pushes after which delivery is asked again."""

REFUSE_MS = 250
"""Time for which an app's pushes are refused before delivery is asked again."""

_CALL_S = 1.0


class PushCapacity:
    """Asks delivery for capacity once for each ASK_BYTES of an app, so that most pushes cost only an addition."""

    def __init__(self, peers: Peers, clock: Clock) -> None:
        self._deliveries = [CapacityServiceStub(channel) for channel in peers.all("delivery")]
        self._clock = clock
        self._bytes: dict[str, int] = {}
        self._refused_until_ms: dict[str, int] = {}

    async def take(self, appkey: str, size: int) -> None:
        """Count a push, and ask delivery if `count` says so. BusyError as for `ask`."""
        if self.count(appkey, size):
            await self.ask(appkey)

    def count(self, appkey: str, size: int) -> bool:
        """Count a push of `size` bytes that is about to be appended; return whether to `ask` before that."""
        total = self._bytes.get(appkey, 0) + size
        self._bytes[appkey] = total
        return total >= ASK_BYTES or appkey in self._refused_until_ms

    async def ask(self, appkey: str) -> None:
        """Ask delivery whether the app has capacity, unless it was refused within REFUSE_MS.

        BusyError: too many of the app's pushes wait in delivery, or did so then; append no more now.
        """
        if self._clock.now_ms() >= self._refused_until_ms.get(appkey, 0):
            self._bytes[appkey] = 0
            if await self._has_capacity(appkey):
                self._refused_until_ms.pop(appkey, None)
                return
            self._refused_until_ms[appkey] = self._clock.now_ms() + REFUSE_MS
        raise BusyError(Code.TOO_MANY_PUSHES, appkey=appkey)

    async def _has_capacity(self, appkey: str) -> bool:
        """Return whether every instance of delivery has capacity; one that does not answer is taken to have."""
        request = HasCapacityRequest(appkey=appkey)
        answers = await asyncio.gather(*(_answer(delivery, request) for delivery in self._deliveries))
        return all(answers)


async def _answer(delivery: "CapacityServiceAsyncStub", request: HasCapacityRequest) -> bool:
    try:
        answer: HasCapacityResponse = await delivery.HasCapacity(request, timeout=_CALL_S)
    except CarillonError:
        return True
    return answer.has_capacity
