"""How fast a push was: when its devices were sent it, received it, showed it and clicked it.

A device that reached a later step has reached the earlier ones by then too, as in the push's counts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analytics.audit.find_push import find_planned, no_such_push
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import PushSpeedResponse, SpeedLine

_KINDS = ("sent", "received", "shown", "clicked")
_OUTCOMES = (*_KINDS, "handed_over", "dismissed")
"""A device that is handed a message over is sent it."""

_DELIVERED = ("sent", "received")
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
RANGES_MS = (
    6_000,
    _MINUTE_MS,
    10 * _MINUTE_MS,
    _HOUR_MS,
    6 * _HOUR_MS,
    _DAY_MS,
    5 * _DAY_MS,
    30 * _DAY_MS,
)
"""Spans that the steps may cover where the request names none; each divides into 60 steps of a round length."""

STEPS = 60

MAX_OUTCOMES = 500_000
"""About how many outcomes one answer reads at most; each takes about 150 bytes of memory."""


class _Times(NamedTuple):
    """Ascending times in ms after which sampled devices, one in `one_in`, first reached a step."""

    one_in: int
    after_ms: npt.NDArray[np.int64]

    def within(self, share: float) -> int:
        """Return the time in ms within which this share of the devices reached the step."""
        return int(self.after_ms[min(int(share * len(self.after_ms)), len(self.after_ms) - 1)])


async def push_speed(
    clickhouse: ClickHouse, msgid: int, within_ms: int, max_outcomes: int = MAX_OUTCOMES
) -> PushSpeedResponse:
    """Return the speed of the push, or of one message of its list. NotFoundError: there is no such push.

    With more outcomes than `max_outcomes` it is an estimate from about that number of them.
    """
    push = await find_planned(clickhouse, msgid)
    if push is None:
        raise no_such_push(msgid)
    first, last = (push.msgid, push.last_msgid) if msgid == push.msgid else (msgid, msgid)
    parameters = {
        "appkey": push.appkey,
        "first": first,
        "last": last,
        "begins_ms": push.time_ms,
        "kinds": list(_OUTCOMES),
        "max_outcomes": max_outcomes,
    }
    rows = await clickhouse.arrow(sql(__package__, "first_outcomes_after"), parameters)
    found = {
        event: _Times(one_in, times.values.to_numpy())
        for event, one_in, times in zip(
            rows["event"].to_pylist(), rows["sampled"].to_pylist(), rows["times"], strict=True
        )
    }
    delivered_ms = max((found[kind].within(0.75) for kind in _DELIVERED if kind in found), default=0)
    answer = PushSpeedResponse(appkey=push.appkey, begins_ms=push.time_ms)
    answer.one_in = next((times.one_in for times in found.values()), 1)
    answer.within_ms = within_ms or _ranges(delivered_ms)[-1]
    answer.step_ms = -(-answer.within_ms // STEPS)
    answer.lines.extend(_line(kind, found[kind], answer) for kind in _KINDS if kind in found)
    answer.ranges_ms.extend(_ranges(max((line.all_ms for line in answer.lines), default=0)))
    return answer


def _line(event: str, times: _Times, speed: PushSpeedResponse) -> SpeedLine:
    """Return the line of an event, with its devices in each step of `speed.step_ms`."""
    covered = times.after_ms[: np.searchsorted(times.after_ms, speed.within_ms)]
    steps = np.bincount(covered // speed.step_ms, minlength=STEPS)
    return SpeedLine(
        event=event,
        devices=len(times.after_ms) * times.one_in,
        half_ms=times.within(0.5),
        p90_ms=times.within(0.9),
        p99_ms=times.within(0.99),
        all_ms=times.within(1),
        steps=(int(devices) * times.one_in for devices in steps),
    )


def _ranges(longest_ms: int) -> Sequence[int]:
    """Return the offered ranges, ascending, up to the first that covers `longest_ms`."""
    count = next((number for number, each in enumerate(RANGES_MS, 1) if longest_ms < each), len(RANGES_MS))
    return RANGES_MS[:count]
