"""The audience of a push before it is sent: how many devices it has now, and some of them."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap

from console.send.composed_pushes import ComposedPush
from edge.core.push import AppPush
from protos.push.v1.push_pb2 import Audience as AudienceMessage
from protos.push.v1.push_pb2 import Devices, Everyone, SendPush
from protos.registry.v1.devices_pb2 import Device
from protos.registry.v1.registry_pb2 import GetDevicesRequest, GetTokensRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.targeting.v1.targeting_pb2 import CountAudienceRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.domain.addresses import channel_name
from services.domain.bitmap_resolver import AudienceBitmapResolver
from services.domain.token_resolver import TokenAndAliasResolver
from services.replica.peers import Peers

SAMPLES = 10
SIZE_S = 5.0
"""Deadline of the question how many devices an audience has, seconds."""


class Sample(NamedTuple):
    """A device of the audience. `active_ms`: when it was active last, 0 if never since it registered."""

    device: Device
    active_ms: int


class Audience(NamedTuple):
    """The devices of one app's push now. `unknown`: the tokens and aliases that no device has."""

    appkey: str
    devices: int
    unknown: Sequence[str]
    samples: Sequence[Sample]


class Size(NamedTuple):
    """How many devices of one app an audience has now. `app_devices`: all devices of the app.

    `channels`: those of `devices` that have an address on a channel, by the channel's name; None for a list of tokens
    or aliases, whose `devices` are 0: they are counted by looking each up.
    """

    appkey: str
    devices: int
    app_devices: int
    channels: dict[str, int] | None


class Audiences:
    """Resolves audiences as delivery does, and looks up a random sample of their devices."""

    def __init__(
        self, peers: Peers, partitions: int, resolver: TokenAndAliasResolver, generator: random.Random
    ) -> None:
        self._peers = peers
        self._partitions = partitions
        self._resolver = resolver
        self._bitmaps = AudienceBitmapResolver(peers)
        self._random = generator

    async def of(self, composed: ComposedPush, samples: int = SAMPLES) -> list[Audience]:
        """Return the audience of each app's push. Raises the error of a role that does not answer."""
        return list(await asyncio.gather(*(self._of_push(push, samples) for push in composed.order.pushes)))

    async def sizes(self, composed: ComposedPush) -> list[Size]:
        """Return the size of each app's audience, without reading a device. Errors as for `of`."""
        return list(await asyncio.gather(*(self._size(push) for push in composed.order.pushes)))

    async def _size(self, push: AppPush) -> Size:
        appkey = push.app.appkey
        is_list = push.audience.WhichOneof("audience") not in ("everyone", "filter")
        audience = AudienceMessage(everyone=Everyone()) if is_list else push.audience
        answers = await asyncio.gather(
            *(
                TargetingServiceStub(channel).CountAudience(
                    CountAudienceRequest(appkey=appkey, audience=audience, partitions=owned), timeout=SIZE_S
                )
                for shard, channel in enumerate(self._peers.all("targeting"))
                if (owned := self._bitmaps.owned(shard, range(self._partitions)))
            )
        )
        app_devices = sum(answer.app_devices for answer in answers)
        if is_list:
            return Size(appkey, 0, app_devices, None)
        channels = Counter[str]()
        for each in (each for answer in answers for each in answer.channels):
            channels[channel_name(each.channel)] += each.devices
        return Size(appkey, sum(answer.devices for answer in answers), app_devices, dict(sorted(channels.items())))

    async def _of_push(self, push: AppPush, samples: int) -> Audience:
        appkey = push.app.appkey
        unknown: Sequence[str] = ()
        if push.audience.WhichOneof("audience") in ("everyone", "filter"):
            send = SendPush(appkey=appkey, audience=push.audience)
            bitmaps, error, _ = await self._bitmaps.resolve(send, range(self._partitions))
            if error is not None:
                raise error
        else:
            found = await self._resolver.resolve(appkey, push.audience)
            tokens = push.audience.tokens.tokens
            unknown = [*(tokens[place] for place in found.unknown), *found.not_found]
            bitmaps = _bitmaps(found.audience.devices)
        count = sum(len(bitmap) for bitmap in bitmaps.values())
        return Audience(appkey, count, unknown, await self._samples(appkey, bitmaps, min(samples, count)))

    async def _samples(self, appkey: str, bitmaps: Mapping[int, BitMap], count: int) -> list[Sample]:
        """Return `count` devices, chosen at random without reading the others.

        All are of one partition if it has enough, because every further one takes two more calls of the process that
        sends the pushes. Each device is as likely as any other, because partitions are chosen by their sizes.
        """
        others = dict(bitmaps)
        chosen: dict[int, list[int]] = {}
        while count:
            (partition,) = self._random.choices([*others], [len(bitmap) for bitmap in others.values()])
            bitmap = others.pop(partition)
            places = self._random.sample(range(len(bitmap)), min(count, len(bitmap)))
            chosen[partition] = [bitmap[place] for place in places]
            count -= len(places)
        found = await asyncio.gather(*(self._look_up(appkey, *share) for share in chosen.items()))
        return [sample for share in found for sample in share]

    async def _look_up(self, appkey: str, partition: int, numbers: Sequence[int]) -> list[Sample]:
        registry = RegistryServiceStub(self._peers.owner("registry", partition))
        asked = GetTokensRequest(appkey=appkey, partition=partition, numbers=numbers)
        named = await registry.GetTokens(asked)
        active_ms = {token: ms for token, ms in zip(named.tokens, named.active_ms, strict=True) if token}
        answer = await registry.GetDevices(GetDevicesRequest(appkey=appkey, tokens=list(active_ms)))
        return [Sample(device, active_ms[device.token]) for device in answer.devices]


def _bitmaps(devices: Devices) -> dict[int, BitMap]:
    partitions = np.frombuffer(devices.partitions, "<u2")
    numbers = np.frombuffer(devices.numbers, "<u4")
    return {int(number): BitMap(numbers[partitions == number]) for number in np.unique(partitions)}
