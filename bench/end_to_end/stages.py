"""Times of the stages of a push: from the app server's request, through the service's stages, to the device's frame.

The service writes the times of its stages into CARILLON_STAGES_DIR; the benchmark takes the first and the last one.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.end_to_end.measured import Measured, Push, percentile

STAGES = {
    "HTTP read": ("sent", "read"),
    "sign": ("read", "signed"),
    "look-ups": ("signed", "resolved"),
    "log append": ("resolved", "appended"),
    "delivery's read": ("appended", "followed"),
    "started": ("followed", "started"),
    "gateway": ("started", "handed"),
    "socket": ("handed", "arrived"),
}
"""The moments between which each stage lies. Delivery may read a command before the edge knows that it is in the log;
its read then counts as 0."""


def stage_rows(directory: Path, measured: Measured) -> dict[str, dict[str, float]]:
    """Return the percentiles of each stage in ms: of all pushes, and of the pushes of the worst second."""
    moments = _moments(directory)
    times, worst = _times_ms(moments, measured.pushes), _times_ms(moments, measured.worst_second())
    return {
        name: {
            "p50_ms": round(percentile(times[name], 0.5), 2),
            "p99_ms": round(percentile(times[name], 0.99), 2),
            "worst_second_p99_ms": round(percentile(worst[name], 0.99), 2),
        }
        for name in STAGES
        if times[name] and worst[name]
    }


def _times_ms(moments: Mapping[int, Mapping[str, float]], pushes: Iterable[Push]) -> dict[str, list[float]]:
    """Return the sorted times of each stage, in ms, over the pushes of which all moments are known."""
    by_stage: dict[str, list[float]] = {name: [] for name in STAGES}
    for push in pushes:
        known = {**moments.get(push.msgid, {}), "sent": push.sent_s, "arrived": push.arrived_s}
        if all(moment in known for ends in STAGES.values() for moment in ends):
            for name, (start, end) in STAGES.items():
                by_stage[name].append(max(0.0, known[end] - known[start]) * 1000)
    return {name: sorted(times) for name, times in by_stage.items()}


def _moments(directory: Path) -> Mapping[int, dict[str, float]]:
    """Return the first time at which each message id reached each stage, in s."""
    by_request: dict[str, dict[str, float]] = {}
    by_push: dict[int, dict[str, float]] = {}
    for words in _lines(directory):
        stage, key, request_id, time_ns = words
        if stage in ("read", "signed"):
            by_request.setdefault(key, {})[stage] = int(time_ns) / 1e9
            continue
        push = by_push.setdefault(int(key), dict(by_request.get(request_id, {})))
        push.setdefault(stage, int(time_ns) / 1e9)
    return by_push


def _lines(directory: Path) -> list[Sequence[str]]:
    """Return the words of all lines, those of the edge's requests first."""
    lines = [line.split() for file in directory.glob("*.txt") for line in file.read_text().splitlines()]
    order = {"read": 0, "signed": 0, "resolved": 1}
    return sorted(lines, key=lambda words: order.get(words[0], 2))
