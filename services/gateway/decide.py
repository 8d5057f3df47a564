"""What the door decides: who comes in, who has to go, and when those who were sent away come back. Pure."""

from random import Random
from typing import Literal, TypeAlias

import msgspec

from protos.registry.v1.apps_pb2 import App, Platform
from services.runtime.device_protocol import Hello

Verdict: TypeAlias = Literal["welcome", "register", "refuse"]
Overdue: TypeAlias = Literal["idle", "slow", "gone"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection may take; durations in milliseconds."""

    hello_ms: int
    idle_ms: int
    slow_ms: int
    goodbye_ms: int
    frames: int
    window_ms: int
    buffer_bytes: int


def judge(hello: Hello, app: App | None, number: int | None) -> Verdict:
    """Who says hello? `number` is the device's when its key proved the token.

    All refusals look alike, so that nobody learns which apps or tokens exist.
    """
    if app is None or app.platform != Platform.PLATFORM_ANDROID:
        return "refuse"
    if hello.token is None and hello.key is None:
        return "register"
    return "refuse" if number is None else "welcome"


def overdue(
    now_ms: int, last_ms: int, welcomed: bool, paused_ms: int | None, closing_ms: int | None, limits: Limits
) -> Overdue | None:
    """Why a connection must end: it said nothing for too long, takes nothing, or does not go after its goodbye."""
    if closing_ms is not None:
        return "gone" if now_ms >= closing_ms + limits.goodbye_ms else None
    if paused_ms is not None and now_ms >= paused_ms + limits.slow_ms:
        return "slow"
    patience_ms = limits.idle_ms if welcomed else limits.hello_ms
    return "idle" if now_ms >= last_ms + patience_ms else None


def retry_after_ms(connections: int, random: Random) -> int:
    """When a device of a gateway that stops may come back: spread so that 2,000 a second come at most."""
    return 100 + random.randrange(max(200, connections // 2))
