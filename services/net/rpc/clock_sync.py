"""Comparison of the hosts' clocks: a process whose host's clock is wrong follows the majority of the others.

The same calls tell a process that cannot reach the event log whether others can.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from protos.runtime.v1.clock_pb2 import NowRequest, NowResponse
from protos.runtime.v1.clock_pb2_grpc import ClockServiceServicer, ClockServiceStub
from services.errors import CarillonError
from services.net.rpc.channel import Channel
from services.net.rpc.server import Context
from services.process.clock import SteadyClock
from services.process.logs import logger
from services.process.metrics import CLOCK_SKEW

if TYPE_CHECKING:
    from protos.runtime.v1.clock_pb2_grpc import ClockServiceAsyncStub

CHECK_S = 30.0
MAX_SKEW_MS = 1000
"""Difference between two hosts' clocks above which it is logged."""

_CALL_S = 1.0
_LEAST_CLOCKS = 3


class ClockServicer(ClockServiceServicer):
    """Tells the time of the host, and how long ago the event log accepted a record of this process."""

    def __init__(self, clock: SteadyClock, log_accepted_ms_ago: Callable[[], int | None]) -> None:
        self._clock = clock
        self._log_accepted_ms_ago = log_accepted_ms_ago

    async def Now(self, request: NowRequest, context: Context) -> NowResponse:
        return NowResponse(host_ms=self._clock.host_ms(), log_accepted_ms_ago=self._log_accepted_ms_ago())


class ClockSync:
    """Service that asks the other roles for their hosts' clocks, and lets the process follow the median of all.

    Ready after the first round, so that a role begins with the right time. Two clocks that differ have no majority:
    then each process follows its own host.
    """

    name = "clock"

    def __init__(self, clock: SteadyClock, channels: Mapping[str, Sequence[Channel]], own: str = "") -> None:
        """`own`: the ROLE-NUMBER of this process among the channels, if it is there; it has one vote, not two."""
        self._clock = clock
        self._peers = {
            f"{role}-{at}": ClockServiceStub(channel)
            for role, of_role in channels.items()
            for at, channel in enumerate(of_role)
            if f"{role}-{at}" != own
        }
        self._skewed: set[str] = set()

    async def run(self, ready: asyncio.Event) -> None:
        while True:
            await self.check()
            ready.set()
            await asyncio.sleep(CHECK_S)

    async def check(self) -> None:
        """Compare the clocks once. Peers that do not answer in time have no vote."""
        answers = await asyncio.gather(*map(self._skew_ms, self._peers.values()))
        skews = {name: skew for name, skew in zip(self._peers, answers, strict=True) if skew is not None}
        for name, skew_ms in skews.items():
            CLOCK_SKEW.labels(name).set(skew_ms / 1000)
        skewed = {name for name, skew_ms in skews.items() if abs(skew_ms) > MAX_SKEW_MS}
        for name in sorted(skewed - self._skewed):
            logger.warning("the clocks of two hosts differ", peer=name, ahead_s=round(skews[name] / 1000, 3))
        self._skewed = skewed
        if 1 + len(skews) >= _LEAST_CLOCKS:
            self._clock.follow(round(median([0, *skews.values()])))

    async def log_age_elsewhere(self) -> float | None:
        """Return how long ago, in ms, the event log accepted a record of any other role that takes calls.

        Infinity if no role that answers knows, such as one of an older version; None if no role answers.
        """
        answers = await asyncio.gather(*map(self._log_age, self._peers.values()))
        return min((age for age in answers if age is not None), default=None)

    async def _log_age(self, peer: "ClockServiceAsyncStub") -> float | None:
        try:
            answer = await peer.Now(NowRequest(), timeout=_CALL_S)
        except CarillonError:
            return None
        return answer.log_accepted_ms_ago if answer.HasField("log_accepted_ms_ago") else math.inf

    async def _skew_ms(self, peer: "ClockServiceAsyncStub") -> float | None:
        """Return how far the peer's host is ahead of this one; None when it does not answer."""
        before_ms, sent_s = self._clock.host_ms(), time.monotonic()
        try:
            answer = await peer.Now(NowRequest(), timeout=_CALL_S)
        except CarillonError:
            return None
        half_ms = (time.monotonic() - sent_s) * 500
        return float(answer.host_ms - before_ms - half_ms)
