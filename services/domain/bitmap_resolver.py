"""Asks targeting for the audiences of pushes, each instance for the partitions that it owns."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap

from protos.push.v1.push_pb2 import Audience, Everyone, SendPush
from protos.targeting.v1.targeting_pb2 import ResolveRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.errors import CarillonError, DeadlineError, UnavailableError
from services.replica.peers import Peers

if TYPE_CHECKING:  # this class is in the type stubs alone
    from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceAsyncStub

_RESOLVE_S = 20.0
_PROBE_S = 2.0

AudienceBitmaps = Mapping[int, BitMap]
"""Device numbers by partition."""


class ResolvedBitmaps(NamedTuple):
    """The audiences of the partitions whose instances answered, and the error of one that did not.

    `attributes_until`: PushStarted.attributes_until by partition, of the same partitions.
    """

    audiences: AudienceBitmaps
    error: CarillonError | None
    attributes_until: Mapping[int, int]


class AudienceBitmapResolver:
    """Resolves audiences by one call to each instance of targeting, without retries."""

    def __init__(self, peers: Peers) -> None:
        self._targeting = [TargetingServiceStub(channel) for channel in peers.all("targeting")]

    @property
    def shards(self) -> int:
        """The number of shards of targeting."""
        return len(self._targeting)

    def owned(self, shard: int, partitions: Sequence[int]) -> list[int]:
        """Return the partitions that are in the shard."""
        return [partition for partition in partitions if partition % len(self._targeting) == shard]

    async def resolve(self, send: SendPush, partitions: Sequence[int]) -> ResolvedBitmaps:
        """Return the push's audiences in these partitions; all instances that own one of them are asked at once."""
        answers = await asyncio.gather(*(self._resolve(send, *share) for share in self._shares(partitions)))
        found = {partition: bitmap for answer in answers for partition, bitmap in answer.audiences.items()}
        errors = sorted((answer.error for answer in answers if answer.error), key=_is_temporary)
        until = {partition: offset for answer in answers for partition, offset in answer.attributes_until.items()}
        return ResolvedBitmaps(found, errors[0] if errors else None, until)

    async def probe(self, shard: int) -> bytes:
        """Return the id of the process that owns the shard.

        UnavailableError: the process cannot resolve audiences now.
        """
        request = ResolveRequest(audience=Audience(everyone=Everyone()))
        try:
            answer = await self._targeting[shard].Resolve(request, timeout=_PROBE_S)
        except CarillonError as error:
            raise UnavailableError(str(error)) from error
        return bytes(answer.process)

    async def _resolve(
        self, send: SendPush, stub: "TargetingServiceAsyncStub", share: Sequence[int]
    ) -> ResolvedBitmaps:
        request = ResolveRequest(appkey=send.appkey, audience=send.audience, partitions=share)
        try:
            answer = await stub.Resolve(request, timeout=_RESOLVE_S)
        except CarillonError as error:
            return ResolvedBitmaps({}, error, {})
        found = {part.partition: BitMap.deserialize(part.bitmap) for part in answer.partitions}
        until = {part.partition: part.attributes_until for part in answer.partitions}
        missing = sorted(set(share) - found.keys())
        incomplete = CarillonError(f"targeting left out partitions {missing}") if missing else None
        return ResolvedBitmaps(found, incomplete, until)

    def _shares(self, partitions: Sequence[int]) -> "list[tuple[TargetingServiceAsyncStub, list[int]]]":
        shares = [(stub, self.owned(shard, partitions)) for shard, stub in enumerate(self._targeting)]
        return [(stub, share) for stub, share in shares if share]


def _is_temporary(error: CarillonError) -> bool:
    return isinstance(error, UnavailableError | DeadlineError)
