"""Resolves the audiences of pushes: targeting answers for filters, lists are in the request."""

import asyncio
from collections.abc import Mapping, Sequence

from pyroaring import BitMap

from protos.push.v1.push_pb2 import SendPush
from protos.targeting.v1.targeting_pb2 import ResolveRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.delivery.state.pushes import RequestedPush
from services.runtime.errors import CarillonError, InputError
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.rpc.peers import Peers

_RESOLVE_S = 60.0
_RETRY_MS = 500

AudienceBitmaps = Mapping[int, BitMap]
"""Device numbers by partition."""


class AudienceBitmapResolver:
    """Resolves audiences; while targeting is unavailable it retries."""

    def __init__(self, peers: Peers, clock: Clock) -> None:
        self._targeting = [TargetingServiceStub(channel) for channel in peers.all("targeting")]
        self._clock = clock

    async def resolve(self, pushes: Sequence[RequestedPush]) -> Sequence[AudienceBitmaps]:
        """Return the audience of each push in its remaining partitions, in the order of `pushes`."""
        resolved: dict[int, AudienceBitmaps] = {}
        unresolved = [push for push in pushes if not push.send.audience.HasField("devices")]
        if unresolved:
            answers = await asyncio.gather(*(self._resolve_until_answered(push) for push in unresolved))
            resolved = {push.send.msgid: answer for push, answer in zip(unresolved, answers, strict=True)}
        return [resolved[push.send.msgid] if push.send.msgid in resolved else _listed(push) for push in pushes]

    async def _resolve_until_answered(self, push: RequestedPush) -> AudienceBitmaps:
        send = push.send
        while True:
            try:
                return await self._resolve(send, sorted(push.remaining))
            except InputError as error:
                logger.error(
                    "targeting refuses an audience; the push is sent to no device", msgid=send.msgid, error=str(error)
                )
                return {partition: BitMap() for partition in push.remaining}
            except CarillonError as error:
                logger.warning("targeting does not answer; trying again", msgid=send.msgid, error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    async def _resolve(self, send: SendPush, partitions: Sequence[int]) -> AudienceBitmaps:
        instances = len(self._targeting)
        shares = [[p for p in partitions if p % instances == instance] for instance in range(instances)]
        answers = await asyncio.gather(
            *(
                stub.Resolve(
                    ResolveRequest(appkey=send.appkey, audience=send.audience, partitions=share), timeout=_RESOLVE_S
                )
                for stub, share in zip(self._targeting, shares, strict=True)
                if share
            )
        )
        found = {part.partition: BitMap.deserialize(part.bitmap) for answer in answers for part in answer.partitions}
        if missing := set(partitions) - found.keys():
            raise CarillonError(f"targeting left out partitions {sorted(missing)}")
        return found


def _listed(push: RequestedPush) -> AudienceBitmaps:
    return {partition: BitMap(push.targets(partition)) for partition in push.remaining}
