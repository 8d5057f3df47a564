"""The days before the afternoon: devices register and connect, and a few pushes are sent."""

import asyncio

from demo.content import BROADCASTS, news_texts, shop_texts
from demo.device_users import Advance
from demo.installation import Demo
from demo.population import HISTORY_DAYS, DemoDevice

DAY_MS = 86_400_000
MINUTE_MS = 60_000
_AGAIN_SHARE = 0.05
"""The part of the known devices that come back on a day."""

_STAY = 40
"""Devices of an app that are connected at night."""


async def simulate_history(demo: Demo, ends_ms: int, advance: Advance) -> None:
    """Simulate the days until `ends_ms`, the beginning of the afternoon."""
    shop, news = shop_texts(demo.chance), news_texts(demo.chance)
    for day in range(HISTORY_DAYS):
        begins_ms = ends_ms - (HISTORY_DAYS - day) * DAY_MS
        await demo.move_to(begins_ms)
        await register(demo, day, advance)
        demo.users.use_app(0.55, "open")
        demo.users.use_app(0.3, "login")
        text = next(shop)
        await demo.servers.push(text, ["shop", "shop_ios"], {"userScope": 6, "stag": [[text.stag]]})
        await demo.move_to(begins_ms + 40 * MINUTE_MS)
        broadcast = BROADCASTS["news"][day % 2]
        await demo.servers.push(broadcast, ["news", "news_ios"], {"userScope": 0})
        await demo.move_to(begins_ms + 95 * MINUTE_MS)
        await _disconnect_most(demo, 3)
        text = next(news)
        await demo.servers.push(text, ["news"], {"userScope": 6, "stag": [[text.stag]]}, period=7200)
        await demo.move_to(begins_ms + 220 * MINUTE_MS)
        await _disconnect_most(demo, 1)
        await demo.move_to(begins_ms + 400 * MINUTE_MS)


async def register(demo: Demo, day: int, advance: Advance) -> None:
    """Let the devices that are new on a day register, and some of the others come back."""
    for app, devices in demo.devices.items():
        new = [device for device in devices if device.joined_day == day]
        appkey = demo.installed.appkeys[app]
        if devices[0].ios_token:
            await demo.users.register_ios(appkey, new, advance)
        else:
            known = [device for device in demo.registered(app) if demo.chance.random() < _AGAIN_SHARE]
            await asyncio.gather(
                demo.users.connect(appkey, new, advance),
                demo.users.connect(appkey, _offline(demo, known), lambda _: None),
            )
        await demo.servers.add_stags(app, new)


def _offline(demo: Demo, devices: list[DemoDevice]) -> list[DemoDevice]:
    online = {id(device) for device in demo.users.online_devices()}
    return [device for device in devices if id(device) not in online]


async def _disconnect_most(demo: Demo, times: int) -> None:
    """Disconnect devices, but for some of each app."""
    online = demo.users.online_devices()
    for app in demo.android():
        of_app = [device for device in online if device.app == app]
        await demo.users.disconnect(of_app[_STAY * times :])
