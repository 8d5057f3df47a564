"""Requests that were not answered as they should be: which call, which edge, and what the edge's log says of it."""

import datetime
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.soak.cluster.measured import Attempt
from tests.soak.cluster.table import is_error

_MARGIN_MS = 100
"""How far an entry of the log may lie outside the time of its request."""


def errors(attempts: Sequence[Attempt], logs: Path) -> Iterator[str]:
    """Yield a line for each request with an error. `logs`: the directory with each edge's `NAME.out`."""
    found = [each for each in attempts if is_error(each.answer)]
    for edge in dict.fromkeys(each.edge for each in found):
        entries = list(_failures((logs / f"{edge}.out").read_text("utf-8").splitlines())) if edge else []
        for each in found:
            if each.edge == edge:
                said = [text for time_ms, text in entries if _is_during(time_ms, each)]
                where = f"{each.answer} by {edge}" if edge else each.answer
                yield f"{_clock(each.begun_ms)} {each.call}: {where} after {each.ms} ms {' | '.join(said)}".strip()


def _failures(lines: Iterable[str]) -> Iterator[tuple[float, str]]:
    """Yield time and text of each request that the log says has failed."""
    for line in lines:
        if '"a request failed"' in line:
            entry = json.loads(line)
            time_ms = datetime.datetime.fromisoformat(entry["timestamp"]).timestamp() * 1000
            yield time_ms, f"{entry.get('path')} {entry.get('error', entry.get('exception'))}"


def _is_during(time_ms: float, attempt: Attempt) -> bool:
    return attempt.begun_ms - _MARGIN_MS <= time_ms <= attempt.begun_ms + attempt.ms + _MARGIN_MS


def _clock(time_ms: int) -> str:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
