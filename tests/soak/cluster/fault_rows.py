"""Figures for each fault: the requests and pushes that began during it, and their answers and messages."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from tests.soak.checks import Observations
from tests.soak.cluster.measured_interface import MeasuredRequest
from tests.soak.ledger import Outcome, Push

_ANSWERED = frozenset({"0", "400", "401"})
"""Results that are no errors: the load has requests that are refused."""


def is_error(answer: str) -> bool:
    """Return whether this answer is an error: the load gets none of this kind while nothing is wrong."""
    return answer not in _ANSWERED


class Phase(NamedTuple):
    """The time of one fault, from before it until everything ran again for some seconds."""

    fault: str
    begun_ms: int
    ended_ms: int

    def has(self, time_ms: int) -> bool:
        return self.begun_ms <= time_ms < self.ended_ms


class Row(NamedTuple):
    """The figures of one fault, over the pushes and requests that began during its phase.

    `answered`: pushes answered with result 0. `due`: their messages that a device has to show, of which `lost` were not
    shown. `doubled`: messages that a device showed twice. `gap_s`: the longest time without an answer of result 0.
    `request_s`: the longest time of a request that was answered. `frame_s`: the longest time from the answer until a
    steady device showed the message. `errors`: the number of requests by wrong answer.
    """

    fault: str
    seconds: float
    requests: int
    answered: int
    due: int
    lost: int
    doubled: int
    gap_s: float
    request_s: float
    frame_s: float
    errors: Mapping[str, int]


def rows(observed: Observations, phases: Sequence[Phase], requests: Sequence[MeasuredRequest]) -> list[Row]:
    """Return a row for each phase."""
    return [_row(observed, phase, [each for each in requests if phase.has(each.begun_ms)]) for phase in phases]


def _row(observed: Observations, phase: Phase, requests: Sequence[MeasuredRequest]) -> Row:
    pushes = [push for push in observed.ledger.pushes if phase.has(push.begun_ms)]
    due = list(_due(observed, pushes))
    ids = {msgid for msgid, *_ in due}
    answered_ms = sorted(each.begun_ms + each.ms for each in requests if each.answer == "0")
    moments = [phase.begun_ms, *(each for each in answered_ms if phase.has(each)), phase.ended_ms]
    return Row(
        fault=phase.fault,
        seconds=round((phase.ended_ms - phase.begun_ms) / 1000, 1),
        requests=len(requests),
        answered=sum(push.outcome is Outcome.ACCEPTED for push in pushes),
        due=len(due),
        lost=sum(not is_shown for _, is_shown in due),
        doubled=sum(msgid in ids for msgid in observed.ledger.doubled),
        gap_s=max(later - earlier for earlier, later in pairwise(moments)) / 1000,
        request_s=max((each.ms for each in requests if not is_error(each.answer)), default=0) / 1000,
        frame_s=max(0, *_frames_ms(observed, pushes), 0) / 1000,
        errors=Counter(each.answer for each in requests if is_error(each.answer)),
    )


def _due(observed: Observations, pushes: Sequence[Push]) -> Iterator[tuple[int, bool]]:
    """Yield each message that a device has to show, and whether it did."""
    for first, appkey in _sent(observed, pushes):
        if not observed.must_be_shown(first):
            continue
        for msgid, device_number in observed.history.audience(first):
            client = observed.client(appkey, device_number)
            if client is not None and not observed.history.outcome("dropped", msgid, device_number):
                yield msgid, msgid in client.shown


def _frames_ms(observed: Observations, pushes: Sequence[Push]) -> Iterator[int]:
    """Yield how long after the answer each steady device showed each message that was to be sent at once."""
    at_once = [push for push in pushes if not push.is_timed and not push.qps and push.cancel is None]
    answered_ms = {first: push.answered_ms for push in at_once for first in push.ids.values()}
    steady = [client for client in observed.clients.values() if client.is_steady]
    for first, _ in _sent(observed, at_once):
        if observed.history.sent[first].send.platform != PLATFORM_ANDROID:
            continue
        for msgid in {msgid for msgid, _ in observed.history.audience(first)}:
            for client in steady:
                if msgid in client.shown:
                    yield client.shown[msgid].time_ms - answered_ms[first]


def _sent(observed: Observations, pushes: Sequence[Push]) -> Iterator[tuple[int, str]]:
    for push in pushes:
        for appkey, first in push.ids.items():
            if first in observed.history.sent:
                yield first, appkey
