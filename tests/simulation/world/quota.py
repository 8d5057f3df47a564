"""An app with a quota of broadcasts a day, and an app server that uses it up."""

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import httpx

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.registry.v1.registry_pb2 import CreateAppRequest, QuotasChange, UpdateAppRequest
from services.errors import CarillonError
from tests.soak.ledger import Ledger
from tests.soak.senders import HttpInterface

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub

_QUOTAS = (2, 3, 5)
_MORE = 3
_TOO_MANY = 429


class QuotaUser:
    """Sends broadcasts of an app that has no devices, until the first is refused because of the quota.

    A request without an answer may have counted. A refusal before the quota is used up is an error of the ledger.
    `pace`: how many times longer than usual it waits between two requests.
    """

    def __init__(
        self,
        registry: "RegistryServiceAsyncStub",
        interface: HttpInterface,
        ledger: Ledger,
        random: Random,
        pace: float = 1.0,
    ) -> None:
        self._registry = registry
        self._interface = interface
        self._ledger = ledger
        self._random = random
        self._pace = pace
        self._quota = random.choice(_QUOTAS)

    async def run(self, end: asyncio.Event) -> None:
        """Send until the quota is used up, or `end` is set."""
        appkey, secret = await self._app()
        body = {
            "sendTo": {"appkey": {"android": appkey}, "userScope": 1},
            "msgStyle": {"basic": {"content": "counted", "is_notif": 0}},
        }
        sent = 0
        while not end.is_set() and sent < self._quota + _MORE:
            sent += 1
            with suppress(httpx.TransportError):
                answer = await self._interface.call("POST", "/v2/push", body, secret, statuses=(200, 401, 503, 429))
                if answer["result"] == _TOO_MANY:
                    if sent <= self._quota:
                        self._ledger.errors.append(f"broadcast {sent} of {self._quota} a day was refused")
                    return
            await asyncio.sleep(self._pace * self._random.uniform(0.1, 2))

    async def _app(self) -> tuple[str, str]:
        request = CreateAppRequest(platform=PLATFORM_ANDROID, name="Counted", package="org.example.counted")
        while True:
            with suppress(CarillonError):
                created = await self._registry.CreateApp(request)
                self._ledger.apart.add(created.app.appkey)
                quotas = QuotasChange(broadcasts_per_day=self._quota)
                await self._registry.UpdateApp(UpdateAppRequest(appkey=created.app.appkey, quotas=quotas))
                return created.app.appkey, created.secret_key
            await asyncio.sleep(1)
