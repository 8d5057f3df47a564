"""Configurable behaviour of the simulator."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Limits and latency of the simulator's connections.

    A connection allows `first_streams` concurrent streams until one push had a valid provider token, then `streams`.
    `latency_ms` delays every response. `window` is the initial flow-control window of a stream in bytes. After
    `goaway_every` pushes a connection sends GOAWAY (0: never). `topics` are the bundle ids that exist (empty: all).
    """

    streams: int = 1000
    first_streams: int = 1
    latency_ms: int = 0
    window: int = 65_535
    goaway_every: int = 0
    topics: frozenset[str] = frozenset()
