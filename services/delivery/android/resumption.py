"""Continues the sending to Android devices when apps are resumed."""

import asyncio

from services.delivery.android.fanout import Fanout
from services.domain.apps import AppDirectory


class Resumption:
    """A service that lets the fanout send what waited, whenever a pause has changed."""

    name = "delivery resumption"

    def __init__(self, apps: AppDirectory, fanout: Fanout) -> None:
        self._apps = apps
        self._fanout = fanout

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            change = self._apps.pauses_changed
            await self._fanout.resume()
            await change.wait()
