"""The devices that did not receive a push, as a table: a row for each value of a category, a column for each reason."""

from collections.abc import Sequence
from typing import NamedTuple

from edge.console.view.explanation import ENDED
from protos.analytics.v1.analytics_pb2 import PushStatesResponse, ValueStates

_SHOWN = (*ENDED, "unknown")


class Ending(NamedTuple):
    """A state in which devices did not receive a push, and its reason, "" for none."""

    state: str
    reason: str


class ValueRow(NamedTuple):
    """A value of the category ("" for none), its devices in the audience, and those of each ending in order."""

    info: str
    audience: int
    failures: Sequence[int]


class Failures(NamedTuple):
    """The endings, and the values, each with the most devices first."""

    endings: Sequence[Ending]
    rows: Sequence[ValueRow]


def failures(answer: PushStatesResponse) -> Failures:
    """Return the table; without endings every device has received the push or may still do so."""
    totals: dict[Ending, int] = {}
    for value in answer.values:
        for ending, devices in _endings(value).items():
            totals[ending] = totals.get(ending, 0) + devices
    endings = sorted(totals, key=lambda ending: (-totals[ending], ending))
    rows = [_row(value, endings) for value in answer.values]
    return Failures(endings, sorted(rows, key=lambda row: (-sum(row.failures), -row.audience, row.info)))


def _row(value: ValueStates, endings: Sequence[Ending]) -> ValueRow:
    found = _endings(value)
    audience = sum(count.devices for count in value.states)
    return ValueRow(value.info, audience, [found.get(ending, 0) for ending in endings])


def _endings(value: ValueStates) -> dict[Ending, int]:
    return {Ending(count.state, count.reason): count.devices for count in value.states if count.state in _SHOWN}
