"""Turns the unresolved audience of a timed push into devices, by the registry's word at the moment it is sent."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from protos.push.v1.push_pb2 import Aliases, Audience, Devices, SendPush
from protos.registry.v1.registry_pb2 import AliasDevice, FindAliasesRequest, FindDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.runtime.peers import Peers
from services.runtime.topics import device_key, partition_of

_BATCH = 1000


class Target(NamedTuple):
    """One device; its message id is the push's plus `id_offset`."""

    partition: int
    number: int
    id_offset: int


class Audiences:
    """Asks the registry, once an instance and at most 1000 names at a time."""

    def __init__(self, peers: Peers, partitions: int) -> None:
        self._registry = [RegistryServiceStub(channel) for channel in peers.all("registry")]
        self._partitions = partitions

    async def resolved(self, push: SendPush) -> SendPush:
        """The push with devices for tokens or aliases, unknown ones left out; other audiences stay as they are."""
        match push.audience.WhichOneof("audience"):
            case "tokens":
                targets = await self._tokens(push.appkey, push.audience.tokens.tokens)
            case "aliases":
                targets = await self._aliases(push.appkey, push.audience.aliases)
            case _:
                return push
        resolved = SendPush()
        resolved.CopyFrom(push)
        resolved.audience.CopyFrom(Audience(devices=_columns(targets)))
        return resolved

    async def _tokens(self, appkey: str, tokens: Sequence[str]) -> list[Target]:
        """Each entry of the list has its own message id, a repeated token too."""
        partitions = [partition_of(device_key(appkey, token), self._partitions) for token in tokens]
        by_instance = _grouped(partition % len(self._registry) for partition in partitions)
        parts = await asyncio.gather(
            *(
                self._numbers(instance, appkey, [tokens[index] for index in indexes])
                for instance, indexes in by_instance
            )
        )
        return sorted(
            (
                Target(partitions[index], plus_one - 1, index)
                for (_, indexes), numbers in zip(by_instance, parts, strict=True)
                for index, plus_one in zip(indexes, numbers, strict=True)
                if plus_one
            ),
            key=lambda target: target.id_offset,
        )

    async def _numbers(self, instance: int, appkey: str, tokens: list[str]) -> Sequence[int]:
        request = FindDevicesRequest(appkey=appkey, tokens=tokens)
        return (await self._registry[instance].FindDevices(request)).numbers_plus_one

    async def _aliases(self, appkey: str, wanted: Aliases) -> list[Target]:
        """Every device once, all under the push's first message id."""
        names = list(dict.fromkeys(wanted.aliases))
        instances = len(self._registry)
        by_instance = _grouped(partition_of(f"{appkey}/{name}".encode(), instances) for name in names)
        parts = await asyncio.gather(
            *(self._holders(instance, appkey, [names[index] for index in indexes]) for instance, indexes in by_instance)
        )
        devices = [
            device for part in parts for holders in part for device in (holders if wanted.all_devices else holders[:1])
        ]
        return sorted({Target(device.partition, device.number, 0) for device in devices})

    async def _holders(self, instance: int, appkey: str, aliases: list[str]) -> list[Sequence[AliasDevice]]:
        answer = await self._registry[instance].FindAliases(FindAliasesRequest(appkey=appkey, aliases=aliases))
        return [alias.devices for alias in answer.aliases]


def _grouped(instances: Iterable[int]) -> list[tuple[int, list[int]]]:
    """(instance, indexes) pairs, each of at most _BATCH indexes."""
    indexes: defaultdict[int, list[int]] = defaultdict(list)
    for index, instance in enumerate(instances):
        indexes[instance].append(index)
    return [
        (instance, own[start : start + _BATCH])
        for instance, own in indexes.items()
        for start in range(0, len(own), _BATCH)
    ]


def _columns(targets: Sequence[Target]) -> Devices:
    table = np.array(targets, dtype=np.uint32).reshape(-1, 3)
    return Devices(
        partitions=table[:, 0].astype("<u2").tobytes(),
        numbers=table[:, 1].astype("<u4").tobytes(),
        id_offsets=table[:, 2].astype("<u4").tobytes(),
    )
