"""The afternoon: five hours, up to now, in which the three teams send most of the pushes."""

from collections.abc import Awaitable, Callable

from demo.content import BROADCASTS, FOR_PEOPLE, Text, news_texts, rounds_texts, shop_texts
from demo.device_users import Advance
from demo.history import MINUTE_MS, register
from demo.installation import Demo
from demo.people import People
from demo.population import HISTORY_DAYS, DemoDevice
from demo.staff import planned_events

HOURS = 5
PUSHES_OF_PEOPLE = 18
"""Pushes that people send at the console, or that are part of what happens on this afternoon."""

EVENT_WEIGHT = 40
"""What an event adds to the progress; the connection of a device adds 1."""

_ONLINE_SHARE = 0.24
_LEAVE_EVERY = 9
PlannedEvent = Callable[[], Awaitable[object]]


async def simulate_afternoon(demo: Demo, people: People, begins_ms: int, pushes: int, advance: Advance) -> None:
    """Simulate the afternoon, which begins now: pushes of app servers, and the staff's actions at the console."""
    await register(demo, HISTORY_DAYS, advance)
    await _reconnect_some(demo, advance)
    demo.users.use_app(0.6, "open")
    demo.users.use_app(0.35, "login")
    planned = [*planned_events(demo, people), *_pushes_of_servers(demo, pushes)]
    for number, (minute, happen) in enumerate(sorted(planned, key=lambda each: each[0])):
        await demo.move_to(begins_ms + round(minute * MINUTE_MS))
        await happen()
        if number % _LEAVE_EVERY == _LEAVE_EVERY - 1:
            await _some_leave_and_others_come(demo)
        advance(EVENT_WEIGHT)


def _pushes_of_servers(demo: Demo, count: int) -> list[tuple[float, PlannedEvent]]:
    """Return the app servers' pushes, each with its minute: multicasts, unicasts, and some by the legacy interfaces."""
    chance = demo.chance
    shop, news, rounds = shop_texts(chance), news_texts(chance), rounds_texts(chance)
    makers = {
        "shop": lambda: _to_followers(demo, next(shop), "shop", "shop_ios"),
        "region": lambda: _to_a_region(demo, next(shop)),
        "brand": lambda: _to_a_brand(demo, next(news)),
        "news": lambda: _to_followers(demo, next(news), "news", "news_ios"),
        "rounds": lambda: _to_followers(demo, next(rounds), "rounds"),
        "level": lambda: _to_a_level(demo, next(shop)),
        "user": lambda: _to_a_user(demo, chance.choice(("shop", "shop", "news", "rounds"))),
        "sync": lambda: _to_the_app_alone(demo),
        "legacy": lambda: _by_a_legacy_interface(demo),
        "broadcast": lambda: _to_all(demo, chance.choice(("news", "rounds"))),
    }
    weights = (26, 8, 8, 26, 12, 6, 32, 5, 6, 4)
    kinds = chance.choices(list(makers), weights, k=count)
    return [(chance.uniform(2, HOURS * 60 - 1), makers[kind]) for kind in kinds]


async def _to_followers(demo: Demo, text: Text, *apps: str) -> None:
    """Send to the devices with a topic's string tag, now and then only to those of one language."""
    group = [text.stag] if demo.chance.random() < 0.6 else [text.stag, demo.chance.choice(("lang:en", "lang:zh"))]
    await demo.servers.push(text, apps, {"userScope": 6, "stag": [group]}, period=demo.chance.choice((3600, 14_400)))


async def _to_a_region(demo: Demo, text: Text) -> None:
    regions = demo.chance.sample(["上海市", "北京市", "广东省", "浙江省", "四川省", "香港特别行政区"], 2)
    send_to = {"userScope": 7, "optfilter": {"android": {"locate": regions, "activity_7": {">=": 1}}}}
    await demo.servers.push(text, ["shop"], send_to)


async def _to_a_brand(demo: Demo, text: Text) -> None:
    options = {"phone": [demo.chance.choice(("Huawei", "Xiaomi", "OPPO"))], "appversion_not": ["4.9.0"]}
    send_to = {"userScope": 8, "stag": [[text.stag]], "optfilter": {"android": options}}
    await demo.servers.push(text, ["news"], send_to)


async def _to_a_level(demo: Demo, text: Text) -> None:
    await demo.servers.push(text, ["shop"], {"userScope": 6, "tag": [[demo.chance.choice((1, 2, 3))]]})


async def _to_a_user(demo: Demo, app: str) -> None:
    title, content = demo.chance.choice(FOR_PEOPLE[app])
    chosen = _choose(demo, app)
    if demo.chance.random() < 0.5:
        send_to = {"userScope": 3, "alias": [chosen.alias]}
    else:
        send_to = {"userScope": 5, "token": {"android": [chosen.storage.saved.token]}}
    await demo.servers.push(Text("", title, content), [app], send_to, period=demo.chance.choice((600, 86_400)))


async def _to_the_app_alone(demo: Demo) -> None:
    await demo.servers.pass_through("rounds", '{"sync":"tasks"}', {"userScope": 6, "stag": [["drivers"]]})


async def _by_a_legacy_interface(demo: Demo) -> None:
    title, content = demo.chance.choice(FOR_PEOPLE["shop"])
    if demo.chance.random() < 0.3:
        await demo.servers.legacy_ios("shop_ios", Text("", title, content))
    else:
        await demo.servers.legacy_android("shop", Text("", title, content), alias=[_choose(demo, "shop").alias])


async def _to_all(demo: Demo, app: str) -> None:
    await demo.servers.push(demo.chance.choice(BROADCASTS[app]), [app], {"userScope": 1}, period=21_600)


def _choose(demo: Demo, app: str) -> DemoDevice:
    return demo.chance.choice(demo.registered(app))


async def _reconnect_some(demo: Demo, advance: Advance) -> None:
    """Connect a part of the known devices of each app."""
    online = {id(device) for device in demo.users.online_devices()}
    for app in demo.android():
        away = [device for device in demo.registered(app) if id(device) not in online]
        wanted = max(1, round(len(demo.devices[app]) * _ONLINE_SHARE)) - (len(demo.registered(app)) - len(away))
        if wanted > 0:
            back = demo.chance.sample(away, min(wanted, len(away)))
            await demo.users.connect(demo.installed.appkeys[app], back, advance)


async def _some_leave_and_others_come(demo: Demo) -> None:
    online = demo.users.online_devices()
    await demo.users.disconnect(demo.chance.sample(online, len(online) // 40))
    ids = {id(device) for device in demo.users.online_devices()}
    for app, devices in demo.android().items():
        away = [device for device in demo.registered(app) if id(device) not in ids]
        some = demo.chance.sample(away, min(len(away), len(devices) // 150))
        await demo.users.connect(demo.installed.appkeys[app], some, lambda _: None)
