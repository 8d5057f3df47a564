"""What the door decides: who comes in, who has to go, and when those who were sent away come back. Pure."""

from random import Random
from typing import Literal, Protocol, TypeAlias

import msgspec

from protos.registry.v1.apps_pb2 import App, Platform
from services.domain.device_protocol import Hello

DRAIN_MS = 16_000
"""How long the goodbyes of a stop may take."""

_OWN_FILES = 512
_MAX_ANTEROOM = 4096
_LATER_MS = 20_000
_TICK_MS = 100

Verdict: TypeAlias = Literal["welcome", "register", "refuse"]
Overdue: TypeAlias = Literal["idle", "unacknowledged", "slow", "gone"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection may take; durations in milliseconds, but heartbeats in seconds as devices are told them."""

    hello_ms: int
    slow_ms: int
    ack_ms: int
    goodbye_ms: int
    frames: int
    window_ms: int
    buffer_bytes: int
    heartbeat_s: int
    min_heartbeat_s: int
    max_heartbeat_s: int
    drain_per_s: int

    def heartbeat(self, wished_s: int | None) -> int:
        """The heartbeat of a device that wishes for this one."""
        if wished_s is None:
            return self.heartbeat_s
        return min(max(wished_s, self.min_heartbeat_s), self.max_heartbeat_s)


class Room(msgspec.Struct, frozen=True):
    """How many devices may be inside, and how many sockets more: of those not welcomed yet, or on their way out."""

    connections: int
    anteroom: int


class Waits(Protocol):
    """Since when a connection waits for something; None: it does not. `patience_ms` is for its silence."""

    last_ms: int
    patience_ms: int
    paused_ms: int | None
    closing_ms: int | None

    @property
    def owed_ms(self) -> int | None: ...


def room(open_files: int, connections: int | None) -> Room:
    """What a process with that many open files has room for; fewer `connections` when the operator says so.

    Some files stay for the log, calls, and the other doors of a process that runs all roles.
    """
    own = min(_OWN_FILES, open_files // 8)
    anteroom = min(_MAX_ANTEROOM, open_files // 4)
    most = open_files - own - anteroom
    return Room(most if connections is None else min(connections, most), anteroom)


def judge(hello: Hello, app: App | None, number: int | None) -> Verdict:
    """Who says hello? `number` is the device's when its key proved the token.

    All refusals look alike, so that nobody learns which apps or tokens exist.
    """
    if app is None or app.platform != Platform.PLATFORM_ANDROID:
        return "refuse"
    if is_new(hello):
        return "register"
    return "refuse" if number is None else "welcome"


def is_new(hello: Hello) -> bool:
    """Does the device ask to be registered?"""
    return hello.token is None and hello.key is None


def idle_ms(heartbeat_s: int) -> int:
    """A device is given up after one and a half heartbeats and 10 s without a frame."""
    return heartbeat_s * 1500 + 10_000


def overdue(now_ms: int, each: Waits, limits: Limits) -> Overdue | None:
    """Why a connection must end: it is silent, keeps a push, takes nothing, or does not go after its goodbye."""
    if each.closing_ms is not None:
        return "gone" if now_ms >= each.closing_ms + limits.goodbye_ms else None
    if each.paused_ms is not None and now_ms >= each.paused_ms + limits.slow_ms:
        return "slow"
    if now_ms >= each.last_ms + each.patience_ms:
        return "idle"
    owed_ms = each.owed_ms
    return "unacknowledged" if owed_ms is not None and now_ms >= owed_ms + limits.ack_ms else None


def drained_ms(index: int, connections: int, per_s: int) -> int:
    """How long after a stop began the device with this index is sent away: together with those of the same tenth."""
    span_ms = min(connections * 1000 // per_s, DRAIN_MS)
    return span_ms * index // connections // _TICK_MS * _TICK_MS


def retry_after_ms(connections: int, per_s: int, random: Random) -> int:
    """When a device of a gateway that stops may come back: spread so that `per_s` a second come."""
    return 100 + random.randrange(max(200, connections * 1000 // per_s))


def later_ms(random: Random) -> int:
    """When a device that found no room may try again."""
    return 1000 + random.randrange(_LATER_MS)
