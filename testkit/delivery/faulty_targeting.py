"""Targeting that fails for chosen audiences: a test chooses them by their string tag."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from protos.targeting.v1.targeting_pb2 import (
    CountAudienceRequest,
    CountAudienceResponse,
    CountValuesRequest,
    CountValuesResponse,
    FindAddressedRequest,
    FindAddressedResponse,
    ResolveRequest,
    ResolveResponse,
    WaitAddressedRequest,
    WaitAddressedResponse,
)
from protos.targeting.v1.targeting_pb2_grpc import (
    TargetingServiceServicer,
    TargetingServiceStub,
    add_TargetingServiceServicer_to_server,
)
from services.errors import UnavailableError
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from testkit.services import TIMEOUT_S
from testkit.waiting import run_ready_tasks


class FaultyTargeting(TargetingServiceServicer):
    """Hands requests to the real targeting, except those for which a fault is set.

    `faults` maps a string tag to the error to raise; `hanging` holds the tags whose requests are never answered, and
    `crashing` those whose requests end the process, which is started again at once.
    `requests` counts the requests by tag ("" for everyone), `given_up` those whose caller left while they hung.
    """

    def __init__(self, real: Channel) -> None:
        self.faults: dict[str, Callable[[], Exception]] = {}
        self.hanging: set[str] = set()
        self.crashing: set[str] = set()
        self.requests: Counter[str] = Counter()
        self.probes = 0
        self.given_up = 0
        self._real = TargetingServiceStub(real)
        self._starts = 1
        self._in_flight = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def answered(self) -> None:
        """Wait until no request is in flight and the caller of the last one has gone on."""
        await asyncio.wait_for(self._is_idle.wait(), TIMEOUT_S)
        await run_ready_tasks()

    async def Resolve(self, request: ResolveRequest, context: Any) -> ResolveResponse:
        self._in_flight += 1
        self._is_idle.clear()
        try:
            return await self._resolve(request)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._is_idle.set()

    async def FindAddressed(self, request: FindAddressedRequest, context: Any) -> FindAddressedResponse:
        return await self._real.FindAddressed(request)

    async def WaitAddressed(self, request: WaitAddressedRequest, context: Any) -> WaitAddressedResponse:
        return await self._real.WaitAddressed(request)

    async def CountValues(self, request: CountValuesRequest, context: Any) -> CountValuesResponse:
        return await self._real.CountValues(request)

    async def CountAudience(self, request: CountAudienceRequest, context: Any) -> CountAudienceResponse:
        return await self._real.CountAudience(request)

    async def _resolve(self, request: ResolveRequest) -> ResolveResponse:
        stags = [stag for group in request.audience.filter.stags for stag in group.stags]
        tag = stags[0] if stags else ""
        if not request.partitions:
            self.probes += 1
        else:
            self.requests[tag] += 1
            if tag in self.hanging:
                await self._hang()
            if tag in self.crashing:
                self._starts += 1
                raise UnavailableError("Socket closed")
            if tag in self.faults:
                raise self.faults[tag]()
        response = await self._real.Resolve(request)
        response.process = b"%d" % self._starts
        return response

    async def _hang(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up += 1


def put_before(server: LocalServer) -> FaultyTargeting:
    """Put faulty targeting between the callers of a server and the real targeting that it serves."""
    real = LocalServer()
    real._handlers = dict(server._handlers)
    faulty = FaultyTargeting(real.channel())
    add_TargetingServiceServicer_to_server(faulty, server)  # type: ignore[arg-type]
    return faulty
