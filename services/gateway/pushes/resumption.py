"""Continues the sending of an app's held messages when the app is resumed."""

import asyncio

from protos.delivery.v1.delivery_pb2 import GetBroadcastRequest
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from services.domain.apps import AppDirectory
from services.gateway.pushes.sender import PushSender
from services.runtime.errors import CarillonError, NotFoundError
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.rpc.channel import Channel

_RETRY_MS = 1000


class PushResumption:
    """Service: lets the sender write an app's held messages when the app is resumed.

    Delivery is asked first which of the broadcasts among them were cancelled meanwhile; unicasts cannot be cancelled.
    """

    name = "gateway-resumption"

    def __init__(self, apps: AppDirectory, sender: PushSender, delivery: Channel, clock: Clock) -> None:
        self._apps = apps
        self._sender = sender
        self._delivery = DeliveryServiceStub(delivery)
        self._clock = clock

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            change = self._apps.pauses_changed
            for appkey in self._sender.held:
                if not self._apps.is_paused(appkey):
                    msgids = list(self._sender.held_broadcasts(appkey))
                    answers = await asyncio.gather(*(self._is_cancelled(appkey, msgid) for msgid in msgids))
                    self._sender.release(appkey, {msgid for msgid, gone in zip(msgids, answers, strict=True) if gone})
            await change.wait()

    async def _is_cancelled(self, appkey: str, msgid: int) -> bool:
        request = GetBroadcastRequest(appkey=appkey, msgid=msgid)
        while True:
            try:
                return bool((await self._delivery.GetBroadcast(request)).cancelled)
            except NotFoundError:
                return False
            except CarillonError as error:
                logger.warning("delivery does not say whether a push was cancelled; trying again", error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)
