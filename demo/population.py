"""Generates the devices of the demo from a seed: their apps, attributes, aliases and tags."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from carillon_device import MemoryStorage, Saved

Value = TypeVar("Value")

HISTORY_DAYS = 6
"""Days before the afternoon on which devices register and connect too."""

_REGIONS = {
    "上海市": 14, "北京市": 12, "广东省": 20, "浙江省": 11, "江苏省": 10, "四川省": 8, "湖北省": 6,
    "山东省": 6, "福建省": 4, "陕西省": 3, "香港特别行政区": 3, "台湾省": 2, "辽宁省": 1,
}  # fmt: skip
_CARRIERS = {"cm": 55, "cu": 24, "ct": 19, "cbn": 2}
_CHANNELS = {"official": 30, "huawei": 24, "xiaomi": 18, "oppo": 12, "google-play": 10, "samsung": 6}
_MODELS = {
    "Huawei": ("P60", "Mate 60", "nova 12"),
    "Xiaomi": ("14", "13T", "Redmi Note 13"),
    "OPPO": ("Find X7", "Reno 11"),
    "vivo": ("X100", "S18"),
    "Samsung": ("Galaxy S24", "Galaxy A55"),
    "Google": ("Pixel 8",),
}
_BRANDS = {"Huawei": 31, "Xiaomi": 26, "OPPO": 15, "vivo": 13, "Samsung": 11, "Google": 4}
_RESOLUTIONS = {"1080x2400": 50, "1220x2712": 25, "1440x3200": 15, "720x1600": 10}
_OS_VERSIONS = {"15": 22, "14": 41, "13": 22, "12": 11, "11": 4}
_APP_VERSIONS = {"5.2.0": 46, "5.1.3": 31, "5.0.1": 15, "4.9.0": 8}
_SDK_VERSIONS = {"0.1.0": 82, "0.0.9": 18}
_IPHONES = ("iPhone 13", "iPhone 14", "iPhone 15", "iPhone 15 Pro", "iPhone 16")
_IOS_VERSIONS = {"18.1": 48, "17.6": 39, "16.7": 13}
_JOINED = (24, 11, 12, 13, 12, 14, 14)
"""Weights of the days on which devices register: the first of the history, and so on to the afternoon's."""

_FIRST_NAMES = (
    "alice", "ben", "carla", "daniel", "elena", "felix", "grace", "hugo", "ines", "jonas", "kira", "leo", "mia",
    "noah", "olga", "paul", "quinn", "rosa", "sam", "tara", "uma", "victor", "wendy", "xiaoming", "yara", "zoe",
    "liwei", "fang", "jing", "haoran", "meiling", "zihan", "yuxuan", "xinyi",
)  # fmt: skip
_USUAL_DILIGENCE = 0.2
DEAD_IOS_SHARE = 0.012
REFUSED_IOS_SHARE = 0.006


@dataclass
class DemoDevice:
    """A device, with the attributes, alias and tags that it sends. `storage`: token and key, once it is registered."""

    app: str
    attributes: dict[str, str]
    alias: str
    tags: list[int]
    stags: list[str]
    joined_day: int
    diligence: float
    """How often its user opens what it gets, from 0 to 1."""

    ios_token: str = ""
    storage: MemoryStorage = field(default_factory=MemoryStorage)


@dataclass(frozen=True)
class Interests:
    """The string tags of an app with the share of its devices that have each, and the numeric tags of its levels."""

    stags: dict[str, float]
    tags: Sequence[int] = ()


def populate(app: str, count: int, interests: Interests, chance: random.Random, *, is_ios: bool) -> list[DemoDevice]:
    """Return the devices of an app, by the day on which they register."""
    devices = [_device(app, number, interests, chance, is_ios=is_ios) for number in range(count)]
    return sorted(devices, key=lambda device: device.joined_day)


def known_device(app: str, token: str, key: str) -> DemoDevice:
    """Return a device that registered earlier, of which nothing else is known."""
    storage = MemoryStorage(Saved(token, key))
    return DemoDevice(app, {}, "", [], [], 0, _USUAL_DILIGENCE, storage=storage)


def _device(app: str, number: int, interests: Interests, chance: random.Random, *, is_ios: bool) -> DemoDevice:
    stags = [stag for stag, share in interests.stags.items() if chance.random() < share]
    stags.append("lang:en" if chance.random() < 0.35 else "lang:zh")
    name = chance.choice(_FIRST_NAMES)
    return DemoDevice(
        app=app,
        attributes=_ios_attributes(chance) if is_ios else _android_attributes(chance),
        alias=_FIRST_NAMES[number] if number < len(_FIRST_NAMES) else f"{name}{number}",
        tags=[chance.choice(interests.tags)] if interests.tags and chance.random() < 0.3 else [],
        stags=stags,
        joined_day=0 if number < len(_FIRST_NAMES) else _picked(dict(enumerate(_JOINED)), chance),
        diligence=chance.betavariate(1.3, 4),
        ios_token=_ios_token(chance) if is_ios else "",
    )


def _android_attributes(chance: random.Random) -> dict[str, str]:
    brand = _picked(_BRANDS, chance)
    return {
        "region": _picked(_REGIONS, chance),
        "carrier": _picked(_CARRIERS, chance),
        "channel": _picked(_CHANNELS, chance),
        "sdk_version": _picked(_SDK_VERSIONS, chance),
        "brand": brand,
        "model": chance.choice(_MODELS[brand]),
        "resolution": _picked(_RESOLUTIONS, chance),
        "os_version": _picked(_OS_VERSIONS, chance),
        "app_version": _picked(_APP_VERSIONS, chance),
    }


def _ios_attributes(chance: random.Random) -> dict[str, str]:
    return {
        "region": _picked(_REGIONS, chance),
        "carrier": _picked(_CARRIERS, chance),
        "channel": "app-store",
        "brand": "Apple",
        "model": chance.choice(_IPHONES),
        "resolution": "1179x2556",
        "os_version": _picked(_IOS_VERSIONS, chance),
        "app_version": _picked(_APP_VERSIONS, chance),
    }


def _ios_token(chance: random.Random) -> str:
    """Return an APNs token; the simulator refuses those of some prefixes, as `carillon apns-simulator --help` lists."""
    token = f"{chance.getrandbits(248) | 1 << 247:062x}"
    kind = chance.random()
    if kind < DEAD_IOS_SHARE:
        return "dead" + token[:60]
    return ("e40001" + token)[:64] if kind < DEAD_IOS_SHARE + REFUSED_IOS_SHARE else "a0" + token


def _picked(weights: Mapping[Value, int], chance: random.Random) -> Value:
    return chance.choices(list(weights), list(weights.values()))[0]
