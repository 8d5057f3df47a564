"""The TargetingService calls: each is answered in the thread that owns the state, between two batches of facts."""

from collections.abc import Iterable, Iterator

from pyroaring import BitMap

from protos.push.v1.push_pb2 import Filter
from protos.targeting.v1.targeting_pb2 import (
    EstimateRequest,
    EstimateResponse,
    PartitionAudience,
    ResolveRequest,
    ResolveResponse,
)
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceServicer
from services.runtime.errors import InputError
from services.runtime.rpc.transport import Context
from services.targeting.decide import checked, matching
from services.targeting.projection import TargetingProjection
from services.targeting.state import TargetingState


class TargetingServicer(TargetingServiceServicer):
    """UnavailableError until the log has been read: an audience from half of the devices would be wrong for ever."""

    def __init__(self, projection: TargetingProjection) -> None:
        self._projection = projection
        self._state = projection.state

    async def Resolve(self, request: ResolveRequest, context: Context) -> ResolveResponse:
        wanted = checked(request.audience)
        for number in request.partitions:
            if number not in self._state.partitions:
                raise InputError(f"partitions: {number} is not owned by this instance")
        return await self._projection.ask(resolve, self._state, request.appkey, wanted, list(request.partitions))

    async def Estimate(self, request: EstimateRequest, context: Context) -> EstimateResponse:
        wanted = checked(request.audience)
        return await self._projection.ask(estimate, self._state, request.appkey, wanted)


def resolve(state: TargetingState, appkey: str, wanted: Filter, partitions: Iterable[int]) -> ResolveResponse:
    """The audience of a checked filter in each of the owned partitions."""
    response = ResolveResponse()
    for number, devices in _matches(state, appkey, wanted, partitions):
        devices.run_optimize()
        response.partitions.append(PartitionAudience(partition=number, bitmap=devices.serialize(), count=len(devices)))
    return response


def estimate(state: TargetingState, appkey: str, wanted: Filter) -> EstimateResponse:
    """The size of a checked filter's audience over all owned partitions."""
    return EstimateResponse(count=sum(len(found) for _, found in _matches(state, appkey, wanted, state.partitions)))


def _matches(
    state: TargetingState, appkey: str, wanted: Filter, partitions: Iterable[int]
) -> Iterator[tuple[int, BitMap]]:
    today = state.today()
    for number in partitions:
        index = state.partitions[number].apps.get(appkey)
        yield number, matching(index, wanted, today) if index else BitMap()
