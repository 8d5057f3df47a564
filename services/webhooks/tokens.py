"""The tokens of devices by their numbers, which outcomes have: asked of the registry, and kept."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from protos.registry.v1.erasures_pb2 import ErasureFact
from protos.registry.v1.registry_pb2 import GetTokensRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.events import NO_DEVICE, Event
from services.log.port import Record
from services.replica.peers import Peers
from services.webhooks.subscriptions import Subscriber

MAX_KEPT = 100_000
_TIMEOUT_S = 10.0

Numbered = tuple[int, int]
"""The partition and the number of a device."""


class DeviceTokens:
    """Finds tokens. A number is never given to another device, so what was found stays true while the device exists."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._kept: OrderedDict[tuple[str, Numbered], str] = OrderedDict()

    def forget(self, record: Record) -> None:
        """Forget the tokens of the devices that a record of `erasures` names; the registry has none for them."""
        try:
            erased = ErasureFact.FromString(record.value).erased
        except DecodeError:
            return
        for device in erased.devices:
            for number in (device.number, *device.former_numbers):
                self._kept.pop((erased.appkey, (device.partition, number)), None)

    async def rendered(self, events: Sequence[Event], subscriber: Subscriber) -> list[dict[str, Any]]:
        """Return the events as the subscriber's receivers get them. CarillonError: the registry is away."""
        devices: defaultdict[str, set[Numbered]] = defaultdict(set)
        for event in events:
            if event.device != NO_DEVICE:
                devices[event.appkey].add(event.device)
        found = await asyncio.gather(*(self.of(appkey, numbered) for appkey, numbered in devices.items()))
        tokens = dict(zip(devices, found, strict=True))
        with_app = bool(subscriber.team_id)
        return [event.as_json(tokens.get(event.appkey, {}).get(event.device), with_app=with_app) for event in events]

    async def of(self, appkey: str, devices: Collection[Numbered]) -> Mapping[Numbered, str]:
        """Return the tokens of an app's devices; removed devices may have none. CarillonError: the registry is away."""
        found = {device: token for device in devices if (token := self._kept.get((appkey, device)))}
        missing: defaultdict[int, list[int]] = defaultdict(list)
        for partition, number in sorted(set(devices) - found.keys()):
            missing[partition].append(number)
        asked = (self._ask(appkey, partition, numbers) for partition, numbers in missing.items())
        for answer in await asyncio.gather(*asked):
            found |= answer
        for device, token in found.items():
            self._kept[appkey, device] = token
            self._kept.move_to_end((appkey, device))
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return found

    async def _ask(self, appkey: str, partition: int, numbers: list[int]) -> Mapping[Numbered, str]:
        registry = RegistryServiceStub(self._peers.owner("registry", partition))
        request = GetTokensRequest(appkey=appkey, partition=partition, numbers=numbers)
        answer = await registry.GetTokens(request, timeout=_TIMEOUT_S)
        return {(partition, number): token for number, token in zip(numbers, answer.tokens, strict=True) if token}
