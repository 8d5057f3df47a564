"""Tells the registry that apps have reached quotas, which other systems learn as an event of the app."""

import asyncio

from protos.registry.v1.registry_pb2 import NoteQuotaReachedRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.errors import CarillonError
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.peers import Peers

QUIET_MS = 3_600_000
"""How long a process says nothing more of a quota that an app has reached. The registry records it once a day."""

RETRY_MS = 60_000
_TIMEOUT_S = 10.0


class QuotaNotices:
    """Notes refusals because of quotas. No refusal waits for the registry, or depends on its answer."""

    def __init__(self, peers: Peers, clock: Clock) -> None:
        self._registry = RegistryServiceStub(peers.all("registry")[0])
        self._clock = clock
        self._quiet_until_ms: dict[tuple[str, str], int] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def note(self, appkey: str, quota: str, limit: int) -> None:
        """Note that something of an app that exists was refused because of the quota, named as in Quotas."""
        if self._clock.now_ms() < self._quiet_until_ms.get((appkey, quota), 0):
            return
        self._quiet_until_ms[appkey, quota] = self._clock.now_ms() + QUIET_MS
        told = background.start("a note of a reached quota", self._tell(appkey, quota, limit))
        self._telling.add(told)
        told.add_done_callback(self._telling.discard)

    async def _tell(self, appkey: str, quota: str, limit: int) -> None:
        request = NoteQuotaReachedRequest(appkey=appkey, quota=quota, limit=limit)
        try:
            await self._registry.NoteQuotaReached(request, timeout=_TIMEOUT_S)
        except CarillonError as error:
            self._quiet_until_ms[appkey, quota] = self._clock.now_ms() + RETRY_MS
            logger.warning(
                "a reached quota is not recorded; the next refusal after a minute records it",
                appkey=appkey,
                quota=quota,
                error=str(error),
            )
