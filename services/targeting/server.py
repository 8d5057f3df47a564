"""TargetingService: resolves audiences in the follower's thread, between two batches of facts."""

from collections.abc import Iterable

from pyroaring import BitMap

from protos.push.v1.push_pb2 import Filter
from protos.targeting.v1.targeting_pb2 import PartitionAudience, ResolveRequest, ResolveResponse
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceServicer
from services.runtime.errors import UnavailableError
from services.runtime.rpc.server import Context
from services.targeting.decide import checked_filter, matching
from services.targeting.projection import TargetingProjection
from services.targeting.state import TargetingState


class TargetingServicer(TargetingServiceServicer):
    """Raises UnavailableError until the log has been read: an incomplete audience could never be corrected."""

    def __init__(self, projection: TargetingProjection) -> None:
        self._projection = projection
        self._state = projection.state

    async def Resolve(self, request: ResolveRequest, context: Context) -> ResolveResponse:
        wanted = checked_filter(request.audience)
        for number in request.partitions:
            if number not in self._state.partitions:
                raise UnavailableError(
                    f"this instance does not own partition {number}; do all roles have as many shards?"
                )
        return await self._projection.query(resolve, self._state, request.appkey, wanted, list(request.partitions))


def resolve(state: TargetingState, appkey: str, wanted: Filter, partitions: Iterable[int]) -> ResolveResponse:
    """Return the audience of a checked filter in each of the owned partitions."""
    response = ResolveResponse()
    today = state.today()
    for number in partitions:
        index = state.partitions[number].apps.get(appkey)
        devices = matching(index, wanted, today) if index else BitMap()
        devices.run_optimize()
        response.partitions.append(PartitionAudience(partition=number, bitmap=devices.serialize(), count=len(devices)))
    return response
