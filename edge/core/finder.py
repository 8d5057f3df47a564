"""Looks targets up at the registry. Look-ups of many requests share one call."""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from protos.registry.v1.registry_pb2 import AliasDevices, FindAliasesRequest, FindDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.runtime.group_commit import Lane, Room
from services.runtime.peers import Peers
from services.runtime.topics import device_key

_WAITING_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 200


class Finder:
    """Tokens to device numbers, aliases to devices. Each call goes to the instances that own what is asked for."""

    def __init__(self, peers: Peers, partitions: int) -> None:
        self._partitions = partitions
        self._registries = [RegistryServiceStub(channel) for channel in peers.all("registry")]
        self._room = Room(_WAITING_BYTES)
        self._lanes: dict[tuple[str, str, int], Lane[str, Any]] = {}

    def partitions_of(self, appkey: str, names: Sequence[str]) -> list[int]:
        """The partition of each token or alias: what partition_of(device_key(...)) says, for many at once."""
        start, count = zlib.crc32(device_key(appkey, "")), self._partitions
        return [zlib.crc32(name.encode(), start) % count for name in names]

    async def numbers(self, appkey: str, tokens: Sequence[str], partitions: Sequence[int]) -> list[int]:
        """The number plus one of each token's device, 0 for unknown or removed ones."""
        return await self._ask("devices", appkey, tokens, partitions)

    async def devices(self, appkey: str, aliases: Sequence[str]) -> list[AliasDevices]:
        """The devices of each alias, most recently active first."""
        return await self._ask("aliases", appkey, aliases, self.partitions_of(appkey, aliases))

    async def _ask(self, what: str, appkey: str, names: Sequence[str], partitions: Sequence[int]) -> list[Any]:
        shards = len(self._registries)
        if shards == 1:
            return list(await self._put(what, appkey, 0, names))
        places: list[list[int]] = [[] for _ in range(shards)]
        for place, number in enumerate(partitions):
            places[number % shards].append(place)
        asked = [shard for shard in range(shards) if places[shard]]
        answers = await asyncio.gather(
            *(self._put(what, appkey, shard, [names[place] for place in places[shard]]) for shard in asked)
        )
        found: list[Any] = [None] * len(names)
        for shard, answer in zip(asked, answers, strict=True):
            for place, value in zip(places[shard], answer, strict=True):
                found[place] = value
        return found

    async def _put(self, what: str, appkey: str, shard: int, names: Sequence[str]) -> Sequence[Any]:
        lane = self._lanes.get((what, appkey, shard))
        if lane is None:
            ask: Callable[..., Any] = self._find_devices if what == "devices" else self._find_aliases
            lane = self._lanes[what, appkey, shard] = Lane(partial(ask, appkey, shard), self._room)
        size = len(names) * _ENTRY_BYTES
        self._room.enter(size)
        return await lane.put(names, size)

    async def _find_devices(self, appkey: str, shard: int, tokens: list[str]) -> list[int]:
        response = await self._registries[shard].FindDevices(FindDevicesRequest(appkey=appkey, tokens=tokens))
        return list(response.numbers_plus_one)

    async def _find_aliases(self, appkey: str, shard: int, aliases: list[str]) -> list[AliasDevices]:
        response = await self._registries[shard].FindAliases(FindAliasesRequest(appkey=appkey, aliases=aliases))
        return list(response.aliases)
