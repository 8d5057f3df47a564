"""Describes requests that got a wrong answer or none: the call, the edge, and the entries in the edge's log."""

import datetime
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.soak.cluster.fault_rows import is_error
from tests.soak.cluster.measured_interface import MeasuredRequest

_MARGIN_MS = 100
"""How far an entry of the log may lie outside the time of its request."""


def errors(requests: Sequence[MeasuredRequest], logs: Path) -> Iterator[str]:
    """Yield a line for each request with an error. `logs`: the directory with each edge's `NAME.out`."""
    found = [each for each in requests if is_error(each.answer)]
    for edge in dict.fromkeys(each.edge for each in found):
        entries = list(_failures((logs / f"{edge}.out").read_text("utf-8").splitlines())) if edge else []
        for each in found:
            if each.edge == edge:
                said = dict.fromkeys(text for time_ms, text in entries if _is_during(time_ms, each))
                where = f"{each.answer} by {edge}" if edge else each.answer
                yield f"{_clock(each.begun_ms)} {each.call}: {where} after {each.ms} ms {' | '.join(said)}".strip()


def _failures(lines: Iterable[str]) -> Iterator[tuple[float, str]]:
    """Yield time and text of each log entry about a failed request."""
    for line in lines:
        if '"a request failed"' in line:
            entry = json.loads(line)
            time_ms = datetime.datetime.fromisoformat(entry["timestamp"]).timestamp() * 1000
            yield time_ms, f"{entry.get('path')} {entry.get('error', entry.get('exception'))}"


def _is_during(time_ms: float, request: MeasuredRequest) -> bool:
    return request.begun_ms - _MARGIN_MS <= time_ms <= request.begun_ms + request.ms + _MARGIN_MS


def _clock(time_ms: int) -> str:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
