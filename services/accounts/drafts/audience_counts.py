"""Counts of devices: those that a push reaches now, and those that its app has."""

import asyncio
from collections.abc import Sequence

import numpy as np

from protos.accounts.v1.drafts_pb2 import PushAudience
from protos.push.v1.push_pb2 import Audience, Devices, Everyone, SendPush
from services.domain.accounts.approval import Reach
from services.domain.audiences.bitmap_resolver import AudienceBitmapResolver
from services.domain.audiences.token_resolver import TokenAndAliasResolver
from services.runtime.rpc.peers import Peers

EVERYONE = Audience(everyone=Everyone())


class AudienceCounts:
    """Resolves the audiences of pushes as delivery does, by targeting and the registry, and counts their devices."""

    def __init__(self, peers: Peers, partitions: int) -> None:
        self._partitions = partitions
        self._bitmaps = AudienceBitmapResolver(peers)
        self._tokens = TokenAndAliasResolver(peers, partitions)

    async def of(self, pushes: Sequence[PushAudience]) -> list[Reach]:
        """Return how many devices each push reaches, and how many its app has. Raises the error of a role that does not
        answer: what is not known must not be sent."""
        return list(await asyncio.gather(*(self._of_push(push) for push in pushes)))

    async def _of_push(self, push: PushAudience) -> Reach:
        of_app = self._count(push.appkey, EVERYONE)
        match push.audience.WhichOneof("audience"):
            case "everyone":
                every = await of_app
                return Reach(push.appkey, every, every)
            case "tokens" | "aliases":
                found, every = await asyncio.gather(self._tokens.resolve(push.appkey, push.audience), of_app)
                return Reach(push.appkey, _distinct(found.audience.devices), every)
            case _:
                return Reach(push.appkey, *await asyncio.gather(self._count(push.appkey, push.audience), of_app))

    async def _count(self, appkey: str, audience: Audience) -> int:
        send = SendPush(appkey=appkey, audience=audience)
        bitmaps, error, _ = await self._bitmaps.resolve(send, range(self._partitions))
        if error is not None:
            raise error
        return sum(len(bitmap) for bitmap in bitmaps.values())


def _distinct(devices: Devices) -> int:
    """Return the number of different devices: a token that is listed twice is one device."""
    partitions = np.frombuffer(devices.partitions, "<u2").astype(np.uint64)
    numbers = np.frombuffer(devices.numbers, "<u4").astype(np.uint64)
    return len(np.unique((partitions << np.uint64(32)) | numbers))
