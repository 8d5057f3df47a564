"""The speed of a push as a chart: one line for each kind of outcome, over the time since the push was accepted."""

from typing import NamedTuple

from protos.analytics.v1.analytics_pb2 import PushSpeedResponse

_UNITS_MS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


class SpeedChart(NamedTuple):
    """`marks`: when each step begins, in `unit`s after the acceptance; `series`: devices in each step, by line."""

    unit: str
    marks: list[float]
    series: list[list[int]]


def speed_chart(speed: PushSpeedResponse) -> SpeedChart:
    unit, length_ms = next((each for each in _UNITS_MS if speed.within_ms >= 3 * each[1]), _UNITS_MS[-1])
    steps = max((len(line.steps) for line in speed.lines), default=0)
    marks = [round(number * speed.step_ms / length_ms, 4) for number in range(steps)]
    return SpeedChart(unit, marks, [list(line.steps) for line in speed.lines])
