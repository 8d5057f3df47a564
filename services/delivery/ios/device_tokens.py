"""Looks up device tokens by device number in the registry."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from protos.registry.v1.registry_pb2 import GetTokensRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.runtime.errors import CarillonError
from services.runtime.process.logs import logger
from services.runtime.rpc.peers import Peers


class PushDevice(NamedTuple):
    """A device that a push is sent to. `token`: "" if it was removed; `active_ms`: when the app was last opened."""

    token: str
    active_ms: int


class DeviceTokens:
    """Looks up devices in the registry instances that own their partitions."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def fetch(self, appkey: str, numbers: Mapping[int, Sequence[int]]) -> dict[int, dict[int, PushDevice]]:
        """Devices by partition and number, without the partitions whose registry is unavailable."""
        found = await asyncio.gather(*(self._fetch(appkey, *item) for item in numbers.items()))
        return {partition: devices for partition, devices in zip(numbers, found, strict=True) if devices is not None}

    async def _fetch(self, appkey: str, partition: int, numbers: Sequence[int]) -> dict[int, PushDevice] | None:
        registry = RegistryServiceStub(self._peers.owner("registry", partition))
        try:
            request = GetTokensRequest(appkey=appkey, partition=partition, numbers=numbers)
            response = await registry.GetTokens(request)
            return dict(zip(numbers, map(PushDevice, response.tokens, response.active_ms), strict=True))
        except CarillonError as error:
            logger.warning("the registry does not answer; trying again", error=str(error))
            return None
