"""iOS tokens that Apple reported as invalid."""

import asyncio
import heapq
import itertools
from collections.abc import Sequence

from protos.registry.v1.registry_pb2 import InvalidToken, ListInvalidTokensRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.runtime.rpc.peers import Peers

MAX_INVALID_TOKENS = 100_000
"""Limit of tokens listed per app; the newest are listed."""

_PAGE = 5000


class InvalidTokens:
    """Lists invalid tokens from every registry instance, page by page."""

    def __init__(self, peers: Peers) -> None:
        self._registries = [RegistryServiceStub(channel) for channel in peers.all("registry")]

    async def of(self, appkey: str) -> list[str]:
        """Return the app's invalid tokens, newest first."""
        pages = await asyncio.gather(*(self._of_instance(index, appkey) for index in range(len(self._registries))))
        merged = heapq.merge(*pages, key=lambda invalid: (-invalid.removed_ms, invalid.token))
        return [invalid.token for invalid in itertools.islice(merged, MAX_INVALID_TOKENS)]

    async def _of_instance(self, instance: int, appkey: str) -> Sequence[InvalidToken]:
        found: list[InvalidToken] = []
        while len(found) < MAX_INVALID_TOKENS:
            request = ListInvalidTokensRequest(appkey=appkey, after=found[-1] if found else None, limit=_PAGE)
            page = (await self._registries[instance].ListInvalidTokens(request)).tokens
            found += page
            if len(page) < _PAGE:
                break
        return found
