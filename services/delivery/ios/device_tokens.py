"""Device numbers to tokens, by the registry's word."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from protos.registry.v1.registry_pb2 import GetTokensRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.runtime.errors import CarillonError
from services.runtime.process.logs import logger
from services.runtime.rpc.peers import Peers


class KnownDevice(NamedTuple):
    """`token`: "" where there is none; `active_ms`: when the app was last in use."""

    token: str
    active_ms: int


class DeviceTokens:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def of(self, appkey: str, numbers: Mapping[int, Sequence[int]]) -> dict[int, dict[int, KnownDevice]]:
        """Devices by partition and number; without partitions whose registry does not answer."""
        found = await asyncio.gather(*(self._in(appkey, *item) for item in numbers.items()))
        return {partition: tokens for partition, tokens in zip(numbers, found, strict=True) if tokens is not None}

    async def _in(self, appkey: str, partition: int, numbers: Sequence[int]) -> dict[int, KnownDevice] | None:
        registry = RegistryServiceStub(self._peers.owner("registry", partition))
        try:
            request = GetTokensRequest(appkey=appkey, partition=partition, numbers=numbers)
            answer = await registry.GetTokens(request)
            return dict(zip(numbers, map(KnownDevice, answer.tokens, answer.active_ms), strict=True))
        except CarillonError as error:
            logger.warning("the registry does not answer; trying again", error=str(error))
            return None
