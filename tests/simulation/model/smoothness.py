"""The check that app servers notice nothing of what happens to the installation: no call fails or takes long."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.soak.checks import Violation

BOUND_S = 1.0
_ANSWERED = ("0", "400", "429")
"""Results of calls that were carried out, or refused because of what they ask for."""


class FinishedCall(NamedTuple):
    """A call of an app server: its method and path, when it began, and its end: the result or an error."""

    name: str
    begun_s: float
    took_s: float
    result: str


def noticed(calls: Iterable[FinishedCall]) -> Iterator[Violation]:
    """Yield the calls that failed, or took longer than BOUND_S."""
    for call in calls:
        if call.result not in _ANSWERED or call.took_s > BOUND_S:
            text = f"{call.name} at {call.begun_s:.2f} s took {call.took_s:.2f} s: {call.result}"
            yield Violation("smooth", text)
