"""Continues the sending of apps' held messages when the apps are resumed."""

import asyncio
import math
from collections import deque
from collections.abc import Sequence

from protos.delivery.v1.delivery_pb2 import GetBroadcastRequest
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from services.domain.apps import AppDirectory
from services.gateway.pushes.sender import PushSender
from services.runtime.errors import CarillonError, NotFoundError
from services.runtime.fairness.semaphore import FairSemaphore
from services.runtime.process import background
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.rpc.channel import Channel

_RETRY_MS = 1000

QUESTIONS = 64
"""Calls to delivery in flight, at most; apps take turns."""


class PushResumption:
    """Service: lets the sender write the held messages of each app that is resumed, whatever the others wait for.

    Delivery is asked first which of the broadcasts among them were cancelled meanwhile; unicasts cannot be cancelled.
    Every instance of delivery knows all broadcasts, so after one that does not answer the next one is asked.
    """

    name = "gateway-resumption"

    def __init__(self, apps: AppDirectory, sender: PushSender, deliveries: Sequence[Channel], clock: Clock) -> None:
        """`deliveries`: channels to the instances of delivery."""
        self._apps = apps
        self._sender = sender
        self._deliveries = deque(map(DeliveryServiceStub, deliveries))
        self._clock = clock
        self._questions = FairSemaphore("questions about broadcasts", QUESTIONS, max_waiting=math.inf)
        self._releases: dict[str, asyncio.Task[None]] = {}

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            while True:
                change = self._apps.pauses_changed
                self._note_pauses()
                await change.wait()
        finally:
            for release in self._releases.values():
                release.cancel()

    def _note_pauses(self) -> None:
        """Start a release for each resumed app, and end those of apps that are paused again: broadcasts about which
        delivery has answered may be cancelled before the next resume."""
        self._releases = {appkey: release for appkey, release in self._releases.items() if not release.done()}
        for appkey in self._sender.held:
            if self._apps.is_paused(appkey):
                if (release := self._releases.pop(appkey, None)) is not None:
                    release.cancel()
            elif appkey not in self._releases:
                self._releases[appkey] = background.start("release of a resumed app", self._release(appkey))

    async def _release(self, appkey: str) -> None:
        msgids = list(self._sender.held_broadcasts(appkey))
        answers = await asyncio.gather(*(self._is_cancelled(appkey, msgid) for msgid in msgids))
        self._sender.release(appkey, {msgid for msgid, gone in zip(msgids, answers, strict=True) if gone})

    async def _is_cancelled(self, appkey: str, msgid: int) -> bool:
        request = GetBroadcastRequest(appkey=appkey, msgid=msgid)
        while True:
            delivery = self._deliveries[0]
            try:
                async with self._questions.slot(appkey):
                    return bool((await delivery.GetBroadcast(request)).cancelled)
            except NotFoundError:
                return False
            except CarillonError as error:
                logger.warning("delivery does not say whether a push was cancelled; trying again", error=str(error))
                if self._deliveries[0] is delivery:
                    self._deliveries.rotate(-1)
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)
