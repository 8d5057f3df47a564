"""Continues the sending to Android devices when apps are resumed, or have capacity in the streams to gateways again."""

import asyncio

from services.delivery.android.fanout import Fanout
from services.domain.apps import AppDirectory
from services.runtime.process.clock import Clock, wait_for_first


class Resumption:
    """A service that lets the fanout send what waited, whenever a pause has changed or there is new capacity."""

    name = "delivery resumption"

    def __init__(self, apps: AppDirectory, fanout: Fanout, clock: Clock) -> None:
        self._apps = apps
        self._fanout = fanout
        self._clock = clock

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            change = self._apps.pauses_changed
            self._fanout.has_new_capacity.clear()
            await self._fanout.resume()
            await wait_for_first(self._clock, None, change, self._fanout.has_new_capacity)
