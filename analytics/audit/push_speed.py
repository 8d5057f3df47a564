"""How fast a push was: when its devices were sent it, received it, showed it and clicked it."""

from collections.abc import Sequence

from analytics.audit.find_push import find_planned, no_such_push
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import PushSpeedResponse, SpeedLine

_OUTCOMES = """
SELECT count() FROM deliveries
WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} AND kind IN {kinds:Array(String)}
"""
_TIMES = """
SELECT kind, count(), quantilesExact(0.5, 0.75, 0.9, 0.99)(after_ms), max(after_ms) FROM ($firsts) GROUP BY kind
"""
_STEPS = """
SELECT kind, intDiv(after_ms, {step_ms:UInt64}) AS step, count() FROM ($firsts)
WHERE after_ms < {within_ms:UInt64} GROUP BY kind, step
"""
_KINDS = ("sent", "received", "shown", "clicked")
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
"""What the steps may cover where a request does not say; each is 60 steps of a handy length."""

STEPS = 60

LOOKED_AT = 500_000
"""About so many outcomes are looked at; each takes about 150 bytes of memory."""


async def push_speed(
    clickhouse: ClickHouse, msgid: int, within_ms: int, looked_at: int = LOOKED_AT
) -> PushSpeedResponse:
    """Return the speed of the push, or of one message of its list. NotFoundError: there is no such push.

    With more outcomes than `looked_at` it is an estimate from about so many.
    """
    push = await find_planned(clickhouse, msgid)
    if push is None:
        raise no_such_push(msgid)
    first, last = (push.msgid, push.last_msgid) if msgid == push.msgid else (msgid, msgid)
    parameters = {"appkey": push.appkey, "first": first, "last": last, "begins_ms": push.time_ms, "kinds": list(_KINDS)}
    one_in = -(-(await clickhouse.rows(_OUTCOMES, parameters))[0][0] // looked_at) or 1
    parameters["one_in"] = one_in
    firsts = sql(__package__, "first_outcomes_after")
    rows = await clickhouse.rows(_TIMES.replace("$firsts", firsts), parameters)
    lines = {
        kind: SpeedLine(event=kind, devices=devices * one_in, half_ms=half, p90_ms=p90, p99_ms=p99, all_ms=all_ms)
        for kind, devices, (half, _, p90, p99), all_ms in rows
    }
    delivered_ms = max((p75 for kind, _, (_, p75, _, _), _ in rows if kind in _DELIVERED), default=0)
    answer = PushSpeedResponse(appkey=push.appkey, begins_ms=push.time_ms, one_in=one_in)
    answer.within_ms = within_ms or _ranges(delivered_ms)[-1]
    answer.step_ms = -(-answer.within_ms // STEPS)
    if lines:
        steps = {"step_ms": answer.step_ms, "within_ms": answer.within_ms}
        counted = await clickhouse.rows(_STEPS.replace("$firsts", firsts), parameters | steps)
        numbers = {(kind, step): devices for kind, step, devices in counted}
        for kind, line in lines.items():
            line.steps.extend(numbers.get((kind, step), 0) * one_in for step in range(STEPS))
    answer.ranges_ms.extend(_ranges(max((line.all_ms for line in lines.values()), default=0)))
    answer.lines.extend(lines[kind] for kind in _KINDS if kind in lines)
    return answer


def _ranges(longest_ms: int) -> Sequence[int]:
    """Return the ranges up to the first that covers this time."""
    count = next((number for number, each in enumerate(RANGES_MS, 1) if longest_ms < each), len(RANGES_MS))
    return RANGES_MS[:count]
