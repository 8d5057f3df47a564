"""Simulated users of devices: they register and connect with the SDK, and click or dismiss notifications."""

import asyncio
import contextlib
import heapq
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import httpx

from carillon_device import Device, DeviceError, Push
from carillon_device.frames import ActivityEvent, ReportEvent
from demo.moved_clock import NOT_KEPT
from demo.population import DemoDevice
from services.errors import CarillonError

Each = TypeVar("Each")
Advance = Callable[[int], None]
_AT_ONCE = 64
_HTTP_AT_ONCE = 16
_WELCOME_S = 120.0
_CLICK_MS = 25 * 60_000
_DISMISSED_SHARE = 0.3


class DeviceUsers:
    """Connected Android devices, and iOS devices, which have no connection.

    A notification is shown when it comes; a part of the users click or dismiss it within the next half an hour.
    """

    def __init__(self, gateway_url: str, v2_url: str, now_ms: Callable[[], int], chance: random.Random) -> None:
        self._gateway_url = gateway_url
        self._http = httpx.AsyncClient(base_url=v2_url, trust_env=False, timeout=60, headers=NOT_KEPT)
        self._now_ms = now_ms
        self._chance = chance
        self._online: dict[int, tuple[DemoDevice, Device]] = {}
        self._reactions: list[tuple[int, int, int, ReportEvent, int]] = []
        self._order = itertools.count()

    def online_devices(self) -> list[DemoDevice]:
        return [known for known, _ in self._online.values()]

    async def connect(self, appkey: str, devices: Sequence[DemoDevice], advance: Advance) -> None:
        """Connect devices, which registers new ones and sets their alias and numeric tags."""
        await _for_all(devices, _AT_ONCE, lambda device: self._connect(appkey, device), advance)

    async def disconnect(self, devices: Iterable[DemoDevice]) -> None:
        found = [self._online.pop(id(device)) for device in devices if id(device) in self._online]
        await _for_all(found, _AT_ONCE, lambda pair: pair[1].close(), lambda _: None)

    def use_app(self, share: float, event: ActivityEvent) -> None:
        """Let a part of the connected devices report an app open, a log-in or a log-out."""
        for _, device in list(self._online.values()):
            if self._chance.random() < share:
                device.activity(event)

    async def register_ios(self, appkey: str, devices: Sequence[DemoDevice], advance: Advance) -> None:
        """Register iOS devices over HTTP; half of them report that their app was opened."""
        await _for_all(devices, _HTTP_AT_ONCE, lambda device: self._register_ios(appkey, device), advance)

    def react(self) -> None:
        """Report the clicks and dismissals whose time has come."""
        while self._reactions and self._reactions[0][0] <= self._now_ms():
            _, _, known, event, msgid = heapq.heappop(self._reactions)
            if known in self._online:
                self._online[known][1].report(event, msgid)

    async def close(self) -> None:
        await self.disconnect(self.online_devices())
        await self._http.aclose()

    async def _connect(self, appkey: str, known: DemoDevice) -> None:
        is_new = known.storage.saved.token is None

        def show(push: Push) -> None:
            if push["is_notif"]:
                with contextlib.suppress(DeviceError):
                    device.report("shown", push["msgid"])
                self._decide(known, push["msgid"])

        attributes = known.attributes if is_new else None
        device = Device(self._gateway_url, appkey, storage=known.storage, attributes=attributes, on_push=show)
        await device.connect(_WELCOME_S)
        self._online[id(known)] = known, device
        if is_new:
            await device.set_alias(known.alias)
            if known.tags:
                await device.add_tags(known.tags)

    def _decide(self, known: DemoDevice, msgid: int) -> None:
        """Decide what the user does with a notification, and when."""
        drawn = self._chance.random()
        if drawn < known.diligence:
            event: ReportEvent = "clicked"
        elif drawn < known.diligence + (1 - known.diligence) * _DISMISSED_SHARE:
            event = "dismissed"
        else:
            return
        due_ms = self._now_ms() + round(self._chance.expovariate(4 / _CLICK_MS))
        heapq.heappush(self._reactions, (due_ms, next(self._order), id(known), event, msgid))

    async def _register_ios(self, appkey: str, known: DemoDevice) -> None:
        identity = {"appkey": appkey, "token": known.ios_token}
        welcome = await self._frame({"type": "hello", "device": known.attributes, **identity})
        identity["key"] = welcome["key"]
        await self._frame({"type": "set_alias", "id": 1, "alias": known.alias, **identity})
        if self._chance.random() < 0.5:
            await self._frame({"type": "activity", "event": "open", **identity})

    async def _frame(self, frame: dict[str, object]) -> dict[str, str]:
        response = await self._http.post("/device/v1", json=frame)
        answer: dict[str, str] = response.json()
        if answer["type"] == "error":
            raise CarillonError(f"a device's {frame['type']} is refused: {answer}")
        return answer


async def _for_all(each: Sequence[Each], at_once: int, do: Callable[[Each], Awaitable[None]], advance: Advance) -> None:
    """Do something for each, so many at a time."""
    waiting = iter(each)

    async def work() -> None:
        for one in waiting:
            await do(one)
            advance(1)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(at_once, len(each))):
            tasks.create_task(work())
