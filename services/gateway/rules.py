"""The gateway's rules, pure: which hello is accepted, when a connection must end, and when devices reconnect."""

from random import Random
from typing import Literal, Protocol, TypeAlias

import msgspec

from protos.registry.v1.apps_pb2 import App, Platform
from services.domain.device_protocol.frames import Hello
from services.net.sockets import file_shares

DRAIN_MS = 16_000
"""Upper bound of the time over which a drain spreads its goodbyes."""

MAX_UNSENT_REPORTS = 1000
"""Upper bound of a connection's reports in a frame window on pushes that it was not sent, or has acknowledged already.

A device that reconnects may have some; one with more invents them.
"""

_MAX_REFUSED_AT_ONCE = 256
_RETRY_SPREAD_MS = 20_000
_GOODBYE_STEP_MS = 100

HelloDecision: TypeAlias = Literal["welcome", "register", "refuse"]
EndReason: TypeAlias = Literal["idle", "unacknowledged", "slow", "gone"]


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one connection; durations in milliseconds, heartbeats in seconds as in the device protocol.

    `frames` is the most a device may send in `window_ms`; `buffer_bytes` the most that may wait to be sent to it.
    """

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

    def heartbeat(self, requested_s: int | None) -> int:
        """Return the heartbeat agreed with a device that requests this one; None: it requests none."""
        if requested_s is None:
            return self.heartbeat_s
        return min(max(requested_s, self.min_heartbeat_s), self.max_heartbeat_s)


class Capacity(msgspec.Struct, frozen=True):
    """The number of welcomed devices a process accepts, and of further sockets: not welcomed yet, or closing.

    `per_address` is the number of sockets of one address; None: a quarter of the connections.
    """

    connections: int
    pending: int
    per_address: int | None = None


class ConnectionTimes(Protocol):
    """The times, in ms since 1970, from which a connection's deadlines count; None: that deadline does not run.

    `idle_after_ms` is the length of silence after which the connection is idle.
    """

    last_frame_ms: int
    idle_after_ms: int
    paused_ms: int | None
    closing_ms: int | None

    @property
    def oldest_unacknowledged_ms(self) -> int | None: ...


def process_capacity(open_files: int, connections: int | None, http: int | None = None) -> Capacity:
    """Return the capacity of a process that may open `open_files` files; `connections` lowers it when set.

    The files of other uses are subtracted, also those of app servers' HTTP connections (`http`, by default a share).
    """
    shares = file_shares(open_files, http)
    return Capacity(shares.devices if connections is None else min(connections, shares.devices), shares.pending)


def over_capacity(sockets: int, welcomed: int, capacity: Capacity) -> bool:
    """Return whether a new socket must be closed at once, given the numbers of open sockets and welcomed devices.

    A full gateway refuses devices with a goodbye, but only a bounded number of them at a time.
    """
    welcomed = min(welcomed, capacity.connections)
    full = welcomed == capacity.connections
    return sockets - welcomed >= (min(capacity.pending, _MAX_REFUSED_AT_ONCE) if full else capacity.pending)


def decide_hello(hello: Hello, app: App | None, number: int | None) -> HelloDecision:
    """Decide on a hello. `number` is the device number that the key proves, None if it proves none.

    All refusals are alike, so that they do not reveal which apps or tokens exist.
    """
    if app is None or app.platform != Platform.PLATFORM_ANDROID:
        return "refuse"
    if is_new(hello):
        return "register"
    return "refuse" if number is None else "welcome"


def is_new(hello: Hello) -> bool:
    """Return whether the device requests registration."""
    return hello.token is None and hello.key is None


def idle_ms(heartbeat_s: int) -> int:
    """Return the silence after which a device is idle: one and a half heartbeats and 10 s."""
    return heartbeat_s * 1500 + 10_000


def end_reason(now_ms: int, times: ConnectionTimes, limits: ConnectionLimits) -> EndReason | None:
    """Return why a connection must end, or None.

    idle: no frame came. unacknowledged: a push was not acknowledged. slow: the peer does not read. gone: the peer did
    not close after a goodbye.
    """
    if times.closing_ms is not None:
        return "gone" if now_ms >= times.closing_ms + limits.goodbye_ms else None
    if times.paused_ms is not None and now_ms >= times.paused_ms + limits.slow_ms:
        return "slow"
    if now_ms >= times.last_frame_ms + times.idle_after_ms:
        return "idle"
    oldest_ms = times.oldest_unacknowledged_ms
    return "unacknowledged" if oldest_ms is not None and now_ms >= oldest_ms + limits.ack_ms else None


def goodbye_delay_ms(index: int, connections: int, per_s: int) -> int:
    """Return the delay of this connection's goodbye after a drain began, rounded down to 100 ms to batch goodbyes."""
    span_ms = min(connections * 1000 // per_s, DRAIN_MS)
    return span_ms * index // connections // _GOODBYE_STEP_MS * _GOODBYE_STEP_MS


def drained_retry_ms(connections: int, per_s: int, random: Random) -> int:
    """Return the delay after which a device of a draining gateway reconnects, spread so that `per_s` a second do."""
    return 100 + random.randrange(max(200, connections * 1000 // per_s))


def refused_retry_ms(random: Random) -> int:
    """Return the delay after which a device that was refused for lack of capacity reconnects."""
    return 1000 + random.randrange(_RETRY_SPREAD_MS)


def over_quota_retry_ms(retry_after_s: int, random: Random) -> int:
    """Return the delay after which a device of an app over its quota tries again: one to two times the given delay."""
    return retry_after_s * 1000 + random.randrange(retry_after_s * 1000)
