"""Errors of a world: time limits that were reached, and the logged errors that are findings."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

from tests.simulation.kernel.clock import START_MS
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.hosts import is_superseded
from tests.simulation.kernel.log.losses import is_explained
from tests.simulation.kernel.world import LoggedError
from tests.simulation.world.apple import is_alarm

_SUPERSEDED = ("another process of the role scheduling has taken over", "is stopping; try again")
"""Texts of a process of scheduling that stops because another process of its instance has started."""

_UNCONFIRMED = "reports may be lost at the stop: delivery has not confirmed them"
"""The text of a gateway that stops before the log has taken its reports."""

_REFUSALS = ("a request failed", "a device could not be registered", "a push failed")


class NotSettledError(Exception):
    """A time limit was reached although there were no faults any more."""


@contextmanager
def in_time(what: str) -> Iterator[None]:
    """Turn a time limit that is reached inside the `with` into a NotSettledError with this text."""
    try:
        yield
    except TimeoutError as error:
        raise NotSettledError(what) from error


def unexpected(
    errors: Iterable[LoggedError], faults: Sequence[Fault], calm_ms: int, is_slow: bool = False
) -> Sequence[LoggedError]:
    """Return the errors that the faults do not explain. Where the log or the network is slow, and under faults until
    `calm_ms`, from which on nothing is broken, requests and pushes may fail; where they are slow a stopping gateway may
    not wait for all confirmations. Other checks judge what is lost."""
    found = [error for error in errors if not is_alarm(error) and not is_superseded(error)]
    found = [error for error in found if not is_explained(error, (fault.kind for fault in faults))]
    if is_slow:
        found = [error for error in found if error.text != _UNCONFIRMED]
    if any(fault.kind == "run_second" for fault in faults):
        found = [error for error in found if not any(text in error.details for text in _SUPERSEDED)]
    broken_s = inf if is_slow else (calm_ms - START_MS) / 1000 if faults else 0
    return [error for error in found if not (_is_refusal(error) and error.time_s < broken_s)]


def _is_refusal(error: LoggedError) -> bool:
    """Return whether an error reports a failed request or push with its reason, and no unforeseen exception."""
    return error.text in _REFUSALS and error.details.endswith("} None")
