"""Resolution of tokens and aliases into devices, by the registry. Look-ups of many callers share one call."""

import asyncio
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from protos.push.v1.push_pb2 import Aliases, Audience, Devices
from protos.registry.v1.registry_pb2 import AliasDevices, FindAliasesRequest, FindDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.ios_tokens import spellings
from services.domain.topics import device_key
from services.log.batcher import Batcher, ByteBudget
from services.replica.peers import Peers

_WAITING_BYTES = 64 * 1024 * 1024
_NAME_BYTES = 200


class ResolvedAudience(NamedTuple):
    """A resolved audience, and the number of message ids that its push needs.

    `unknown` holds the positions of unknown tokens in the request, `not_found` the aliases without a device, and
    `device_counts` the number of devices of each distinct alias, in order.
    """

    audience: Audience
    id_count: int = 1
    unknown: Sequence[int] = ()
    not_found: Sequence[str] = ()
    device_counts: Sequence[int] = ()


class TokenAndAliasResolver:
    """Resolves audiences through the owners of the registry's shards that hold the tokens and aliases."""

    def __init__(self, peers: Peers, partitions: int) -> None:
        self._partitions = partitions
        self._registries = [RegistryServiceStub(channel) for channel in peers.all("registry")]
        self._budget = ByteBudget(_WAITING_BYTES)
        self._batchers: dict[tuple[str, str, int], Batcher[str, Any]] = {}

    async def resolve(self, appkey: str, audience: Audience) -> ResolvedAudience:
        """Replace tokens and aliases by devices; any other audience is returned unchanged.

        Each entry of a token list has its own message id, also a repeated token. Aliases share one id, and a device
        with several of them is a target once.
        """
        match audience.WhichOneof("audience"):
            case "tokens":
                return await self._of_tokens(appkey, list(audience.tokens.tokens))
            case "aliases":
                return await self._of_aliases(appkey, audience.aliases)
            case _:
                return ResolvedAudience(audience)

    async def numbers(self, appkey: str, tokens: Sequence[str], *, removed_too: bool = False) -> list[int]:
        """Return each token's device number plus one; 0 for an unknown or, without `removed_too`, a removed device."""
        shards: Sequence[int] = ()
        if (count := len(self._registries)) > 1:
            shards = [partition % count for partition in self._hashes(appkey, tokens, self._partitions)]
        return await self._look_up("devices or removed" if removed_too else "devices", appkey, tokens, shards)

    async def devices_of(self, appkey: str, aliases: Sequence[str]) -> list[AliasDevices]:
        """Return the devices that a push to each alias would reach now."""
        return await self._look_up("aliases", appkey, aliases, self._hashes(appkey, aliases, len(self._registries)))

    async def registered_token(self, appkey: str, given: str) -> str:
        """Return a token in the spelling in which it is registered, or would be if it is not yet."""
        names = spellings(given)
        found = await self.numbers(appkey, names)
        return next((name for name, plus_one in zip(names, found, strict=True) if plus_one), names[0])

    async def _of_tokens(self, appkey: str, tokens: list[str]) -> ResolvedAudience:
        numbers = await self.numbers(appkey, tokens)
        if 0 in numbers:
            await self._find_older(appkey, tokens, numbers)
        partitions = self._hashes(appkey, tokens, self._partitions)
        known = [
            (partition, plus_one - 1, place)
            for place, (partition, plus_one) in enumerate(zip(partitions, numbers, strict=True))
            if plus_one
        ]
        unknown = [place for place, plus_one in enumerate(numbers) if not plus_one]
        return ResolvedAudience(_columns(known), len(tokens), unknown)

    async def _find_older(self, appkey: str, tokens: list[str], numbers: list[int]) -> None:
        """Look up unknown iOS tokens in their older spellings; replace token and number where one is found."""
        places = [place for place, plus_one in enumerate(numbers) if not plus_one]
        older = [(place, name) for place in places for name in spellings(tokens[place]) if name != tokens[place]]
        found = await self.numbers(appkey, [name for _, name in older]) if older else []
        for (place, name), plus_one in zip(older, found, strict=True):
            if plus_one:
                tokens[place], numbers[place] = name, plus_one

    async def _of_aliases(self, appkey: str, aliases: Aliases) -> ResolvedAudience:
        names = list(dict.fromkeys(aliases.aliases))
        answers = await self.devices_of(appkey, names)
        chosen = [answer.devices if aliases.all_devices else answer.devices[:1] for answer in answers]
        aliases_of = {
            (device.partition, device.number): name
            for name, of_alias in zip(names, chosen, strict=True)
            for device in of_alias
        }
        not_found = [name for name, answer in zip(names, answers, strict=True) if not answer.devices]
        audience = _columns([(*device, 0) for device in sorted(aliases_of)])
        _name_aliases(audience.devices, [aliases_of[device] for device in sorted(aliases_of)])
        return ResolvedAudience(audience, not_found=not_found, device_counts=[len(of_alias) for of_alias in chosen])

    @staticmethod
    def _hashes(appkey: str, names: Sequence[str], count: int) -> list[int]:
        """Return partition_of(device_key(appkey, name), count) of many names."""
        start = zlib.crc32(device_key(appkey, ""))
        return [zlib.crc32(name.encode(), start) % count for name in names]

    async def _look_up(self, what: str, appkey: str, names: Sequence[str], shards: Sequence[int]) -> list[Any]:
        if len(self._registries) == 1:
            return list(await self._put(what, appkey, 0, names))
        places: dict[int, list[int]] = {}
        for place, shard in enumerate(shards):
            places.setdefault(shard, []).append(place)
        answers = await asyncio.gather(
            *(self._put(what, appkey, shard, [names[place] for place in own]) for shard, own in places.items())
        )
        found: list[Any] = [None] * len(names)
        for own, answer in zip(places.values(), answers, strict=True):
            for place, value in zip(own, answer, strict=True):
                found[place] = value
        return found

    async def _put(self, what: str, appkey: str, shard: int, names: Sequence[str]) -> Sequence[Any]:
        batcher = self._batchers.get((what, appkey, shard))
        if batcher is None:
            asks: dict[str, Callable[..., Any]] = {
                "devices": partial(self._find_devices, False),
                "devices or removed": partial(self._find_devices, True),
                "aliases": self._find_aliases,
            }
            batcher = self._batchers[what, appkey, shard] = Batcher(partial(asks[what], appkey, shard), self._budget)
        size = len(names) * _NAME_BYTES
        self._budget.reserve(size)
        return await batcher.put(names, size)

    async def _find_devices(self, removed_too: bool, appkey: str, shard: int, tokens: list[str]) -> list[int]:
        request = FindDevicesRequest(appkey=appkey, tokens=tokens, removed_too=removed_too)
        response = await self._registries[shard].FindDevices(request)
        return list(response.numbers_plus_one)

    async def _find_aliases(self, appkey: str, shard: int, aliases: list[str]) -> list[AliasDevices]:
        response = await self._registries[shard].FindAliases(FindAliasesRequest(appkey=appkey, aliases=aliases))
        return list(response.aliases)


def _columns(targets: Sequence[tuple[int, int, int]]) -> Audience:
    """Return devices, each given as partition, device number and id offset, as an audience."""
    partitions, numbers, id_offsets = zip(*targets, strict=True) if targets else ((), (), ())
    count = len(targets)
    return Audience(
        devices=Devices(
            partitions=struct.pack(f"<{count}H", *partitions),
            numbers=struct.pack(f"<{count}I", *numbers),
            id_offsets=struct.pack(f"<{count}I", *id_offsets),
        )
    )


def _name_aliases(devices: Devices, aliases: Sequence[str]) -> None:
    """Note by which alias each of the devices was found."""
    indexes = {alias: index for index, alias in enumerate(dict.fromkeys(aliases))}
    devices.aliases.extend(indexes)
    if len(indexes) > 1:
        devices.alias_indexes = struct.pack(f"<{len(aliases)}H", *(indexes[alias] for alias in aliases))
