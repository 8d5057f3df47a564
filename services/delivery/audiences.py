"""Asks targeting who a push is for."""

import asyncio
from collections.abc import Mapping, Sequence

from pyroaring import BitMap

from protos.push.v1.push_pb2 import SendPush
from protos.targeting.v1.targeting_pb2 import ResolveRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.delivery import decide
from services.delivery.state.pushes import Waiting
from services.runtime.errors import CarillonError, InputError
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.rpc.peers import Peers

_RESOLVE_S = 60.0
_RETRY_MS = 500

Audience = Mapping[int, BitMap]
"""Device numbers by partition."""


class Audiences:
    """Resolves audiences, however long targeting is away."""

    def __init__(self, peers: Peers, clock: Clock) -> None:
        self._targeting = [TargetingServiceStub(channel) for channel in peers.all("targeting")]
        self._clock = clock

    async def of(self, pushes: Sequence[Waiting]) -> Sequence[Audience]:
        """The audience of each push in its missing partitions, in order."""
        found: dict[int, Audience] = {}
        asked = [waiting for waiting in pushes if not waiting.send.audience.HasField("devices")]
        if asked:
            answers = await asyncio.gather(*(self._of_one(waiting) for waiting in asked))
            found = {waiting.send.msgid: answer for waiting, answer in zip(asked, answers, strict=True)}
        return [
            found[waiting.send.msgid] if waiting.send.msgid in found else decide.listed_audiences(waiting)
            for waiting in pushes
        ]

    async def _of_one(self, waiting: Waiting) -> Audience:
        send = waiting.send
        while True:
            try:
                return await self._resolve(send, sorted(waiting.missing))
            except InputError as error:
                logger.error("an audience is refused; the push reaches nobody", msgid=send.msgid, error=str(error))
                return {partition: BitMap() for partition in waiting.missing}
            except CarillonError as error:
                logger.warning("targeting does not answer; trying again", msgid=send.msgid, error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    async def _resolve(self, send: SendPush, partitions: Sequence[int]) -> Audience:
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
