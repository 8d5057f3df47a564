"""TargetingService: resolves audiences in the follower's thread, in slices between which others have their turn."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from protos.registry.v1.apps_pb2 import IDENTITY_MODE_REQUIRE, App, Channel
from protos.targeting.v1.targeting_pb2 import (
    AddressedDevices,
    CountAudienceRequest,
    CountAudienceResponse,
    CountValuesRequest,
    CountValuesResponse,
    FindAddressedRequest,
    FindAddressedResponse,
    NewAddress,
    ResolveRequest,
    ResolveResponse,
    WaitAddressedRequest,
    WaitAddressedResponse,
)
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceServicer
from services.domain.apps import AppDirectory
from services.domain.identity import identity_mode, identity_rules
from services.errors import DeadlineError, UnavailableError
from services.net.fairness import FairSemaphore
from services.net.rpc.server import Context
from services.targeting.counting import Counting
from services.targeting.filters import AudienceSize, MustBeProven, Resolution, checked_filter
from services.targeting.projection import TargetingProjection

SLICE = 500
"""Bitmap operations a slice; an operation on a partition with 65,536 devices of the app takes some microseconds."""

MAX_WAITING = 1000
"""Requests of one app that wait for a slice; beyond it, BusyError."""

DEADLINE_S = 30.0

WAIT_S = 2.0
"""Time after which WaitAddressed is answered without devices."""


class TargetingServicer(TargetingServiceServicer):
    """Resolves audiences, one slice at a time.

    Slices of different apps alternate, and so do those of one app's requests; facts are applied between slices. A
    request whose caller is gone gets no further slice.

    Raises UnavailableError until the log has been read: an incomplete audience could never be corrected.
    """

    def __init__(self, projection: TargetingProjection, apps: AppDirectory, process: bytes) -> None:
        """`process`: the id of this process (ResolveResponse.process)."""
        self._process = process
        self._apps = apps
        self._projection = projection
        self._state = projection.state
        self._slices = FairSemaphore("audiences", 1, max_waiting=MAX_WAITING)

    async def Resolve(self, request: ResolveRequest, context: Context) -> ResolveResponse:
        wanted = checked_filter(request.audience)
        self._check_owned(request.partitions)
        must_be_proven = _must_be_proven(self._apps.get(request.appkey))
        resolution = Resolution(self._state, request.appkey, wanted, list(request.partitions), must_be_proven)
        resolution.response.process = self._process
        if not request.partitions:
            await self._projection.query(resolution.advance, SLICE)
            return resolution.response
        await self._complete(request.appkey, resolution.advance, "the audience was not resolved")
        return resolution.response

    async def CountAudience(self, request: CountAudienceRequest, context: Context) -> CountAudienceResponse:
        wanted = checked_filter(request.audience)
        self._check_owned(request.partitions)
        must_be_proven = _must_be_proven(self._apps.get(request.appkey))
        size = AudienceSize(self._state, request.appkey, wanted, list(request.partitions), must_be_proven)
        await self._complete(request.appkey, size.advance, "the audience was not counted")
        return size.counted

    async def CountValues(self, request: CountValuesRequest, context: Context) -> CountValuesResponse:
        counting = Counting(self._state, request, _addresses_one_person(self._apps.get(request.appkey)))
        await self._complete(request.appkey, counting.advance, "the values were not counted")
        return counting.response

    async def FindAddressed(self, request: FindAddressedRequest, context: Context) -> FindAddressedResponse:
        self._check_owned(request.partitions)
        return await self._projection.query(self._addressed, request.appkey, list(request.partitions))

    async def WaitAddressed(self, request: WaitAddressedRequest, context: Context) -> WaitAddressedResponse:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + WAIT_S
        while True:
            change = self._projection.follower.applied.change
            response = await self._projection.query(self._new_addresses, request.process, request.after)
            left_s = until_s - loop.time()
            if response.addresses or response.is_incomplete or left_s <= 0:
                return response
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await change.wait()

    def _new_addresses(self, process: bytes, after: int) -> WaitAddressedResponse:
        known = self._state.new_addresses
        found = known.after(after) if process == self._process else None
        response = WaitAddressedResponse(process=self._process, until=known.until, is_incomplete=found is None)
        for each in found or ():
            response.addresses.append(
                NewAddress(
                    appkey=each.appkey,
                    partition=each.partition,
                    number=each.number,
                    channels=map(Channel.ValueType, each.channels),
                )
            )
        return response

    def _addressed(self, appkey: str, partitions: Sequence[int]) -> FindAddressedResponse:
        response = FindAddressedResponse()
        for partition in partitions:
            index = self._state.partitions[partition].apps.get(appkey)
            for channel, devices in sorted(index.channels.values.items()) if index else ():
                response.addressed.append(
                    AddressedDevices(
                        partition=partition, channel=Channel.ValueType(channel), bitmap=devices.serialize()
                    )
                )
        return response

    def _check_owned(self, partitions: Iterable[int]) -> None:
        for number in partitions:
            if number not in self._state.partitions:
                raise UnavailableError(
                    f"this instance does not own partition {number}: CARILLON_TARGETING_ADDR must name every shard"
                )

    async def _complete(self, appkey: str, advance: Callable[[int], bool], not_done: str) -> None:
        """Let work advance, slice by slice, until it says that it is complete. DeadlineError: that took too long."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                is_complete = False
                while not is_complete:
                    async with self._slices.slot(appkey):
                        is_complete = await self._projection.query(advance, SLICE)
        except TimeoutError:
            raise DeadlineError(f"{not_done} within {DEADLINE_S:.0f} s") from None


def _must_be_proven(app: App | None) -> MustBeProven:
    """Return the test for tags that devices must have proven: identity tags, if the app requires proofs."""
    if app is None or identity_mode(app) != IDENTITY_MODE_REQUIRE:
        return lambda tag: False
    return identity_rules(app).is_identity_tag


def _addresses_one_person(app: App | None) -> MustBeProven:
    """Return the test for tags that address one person, by the app's rules."""
    return identity_rules(app).is_identity_tag if app else lambda tag: False
