"""Evaluation of Apple's refusals of an iOS app's tokens: a few mean bad tokens, many mean wrong settings of the app.

`BadDeviceToken` means "bad, or of the other environment", and at times it is a fault of Apple's. A wrong environment
gets it for every device of the app, so one answer removes nothing. `DeviceTokenNotForTopic` means another bundle id.

The state is folded from the outcomes in the log, each partition by itself, so that neither a restart nor another owner
forgets it, and the order in which partitions are read makes no difference.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind

CONFIRM_MS = 24 * 3_600_000
"""Shortest time between the first and the last of the answers by which a token is removed."""

MAX_SUSPECTS = 3_000
"""Upper bound of remembered suspects: devices of an app in one partition whose token was called bad. Beyond it a new
one replaces the oldest if that is `_KEEP_MS` old, and is not remembered otherwise.
"""

BAD_TOKEN = "BadDeviceToken"  # noqa: S105 - no password
_OF_SETTINGS = (BAD_TOKEN, "DeviceTokenNotForTopic")
"""Apple's reasons that a wrong setting of the app gets for every device."""

_KEEP_MS = 7 * CONFIRM_MS
_FEW = 3
"""Number of refusals up to which the app as a whole is not judged."""

_SENT = OutcomeKind.OUTCOME_KIND_SENT

BadTokensRow = tuple[str, int, bytes, list[tuple[int, int]], list[int], str]
"""Appkey, partition, accepted numbers (a portable bitmap), (number, time) of each suspect, counts, the last reason."""


class MostlyBad(NamedTuple):
    """An app most of whose tokens Apple refuses: its environment or bundle id is probably wrong.

    `refused` and `accepted` count Apple's answers in the last one to two days in which the app sent; `since_ms` and
    `last_ms` are the times of the first and of the last refusal of the present fault, `reason` is the one that Apple
    gave for the last refusal.
    """

    since_ms: int
    last_ms: int
    refused: int
    accepted: int
    reason: str


@dataclass(slots=True)
class _Part:
    """Apple's answers for one app's devices in one partition. `day`: the last day with answers, counted since 1970."""

    good: BitMap = field(default_factory=BitMap)
    suspects: dict[int, int] = field(default_factory=dict)
    day: int = 0
    accepted: int = 0
    accepted_before: int = 0
    refused: int = 0
    refused_before: int = 0
    since_ms: int = 0
    last_ms: int = 0
    reason: str = ""

    def begin_day(self, time_ms: int) -> None:
        """Begin the day of this time if it is a later one; keep the counts of the day before it apart."""
        day = time_ms // CONFIRM_MS
        if day > self.day:
            is_next = day == self.day + 1
            self.accepted_before, self.accepted = self.accepted if is_next else 0, 0
            self.refused_before, self.refused = self.refused if is_next else 0, 0
            self.day = day

    def counts(self, day: int) -> tuple[int, int]:
        """Return the numbers of accepted and of refused pushes on this day, which is not before `self.day`, and the
        day before.
        """
        if day == self.day:
            return self.accepted + self.accepted_before, self.refused + self.refused_before
        return (self.accepted, self.refused) if day == self.day + 1 else (0, 0)

    def accept(self, numbers: list[int]) -> None:
        self.accepted += len(numbers)
        self.good.update(numbers)
        if self.suspects:
            for number in numbers:
                self.suspects.pop(number, None)
        if self.accepted + self.accepted_before > self.refused + self.refused_before:
            self.since_ms = 0

    def refuse(self, numbers: list[int], reason: str, time_ms: int) -> None:
        self.refused += len(numbers)
        if not self.since_ms or time_ms - self.last_ms >= 2 * CONFIRM_MS:
            self.since_ms = time_ms
        self.last_ms, self.reason = max(self.last_ms, time_ms), reason
        if reason == BAD_TOKEN:
            for number in numbers:
                if number not in self.good:
                    self._suspect(number, time_ms)

    def _suspect(self, number: int, time_ms: int) -> None:
        """Note when the token was first called bad; CONFIRM_MS later, when removal was possible, begin anew."""
        first_ms = self.suspects.get(number)
        if first_ms is not None and time_ms - first_ms < CONFIRM_MS:
            return
        if self.suspects.pop(number, None) is None and len(self.suspects) >= MAX_SUSPECTS:
            oldest = next(iter(self.suspects))
            if time_ms - self.suspects[oldest] < _KEEP_MS:
                return
            del self.suspects[oldest]
        self.suspects[number] = time_ms


class BadTokens:
    """The tokens to be removed, and the apps that are mostly bad, by Apple's answers.

    A token is removed if Apple has never accepted it, has called it bad again after a day, and accepts most of the
    app's pushes.
    """

    def __init__(self) -> None:
        self._apps: defaultdict[str, dict[int, _Part]] = defaultdict(dict)
        self._on_change: Callable[[str, bool], None] | None = None
        self._watched_bad: set[str] = set()

    def watch(self, on_change: Callable[[str, bool], None]) -> None:
        """Call `on_change` with each app that is mostly bad and True, now or later, and False once it is not so."""
        self._on_change = on_change
        for appkey in list(self._apps):
            self._tell_change(appkey)

    def unwatch(self) -> None:
        """End the watch: call `on_change` with False for each app that counted as mostly bad."""
        on_change, self._on_change = self._on_change, None
        while on_change and self._watched_bad:
            on_change(self._watched_bad.pop(), False)

    def fold(self, partition: int, outcomes: AppOutcomes) -> None:
        """Note Apple's answers among the outcomes of an iOS app, whose columns have the same length."""
        kinds = numpy.frombuffer(outcomes.kinds, "u1")
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")
        accepted = numbers[kinds == _SENT]
        refused = {}
        for index, reason in enumerate(outcomes.reasons, 1):
            if reason in _OF_SETTINGS:
                of_reason = numbers[numpy.frombuffer(outcomes.reason_indexes, "u1") == index]
                if len(of_reason):
                    refused[reason] = of_reason.tolist()
        if not len(accepted) and not refused:
            return
        time_ms = int(numpy.frombuffer(outcomes.times_ms, "<i8").max())
        part = self._apps[outcomes.appkey].setdefault(partition, _Part())
        part.begin_day(time_ms)
        if len(accepted):
            part.accept(accepted.tolist())
        for reason, of_devices in refused.items():
            part.refuse(of_devices, reason, time_ms)
        if refused or outcomes.appkey in self._watched_bad:
            self._tell_change(outcomes.appkey)

    def first_refused_ms(self, appkey: str, partition: int, number: int, now_ms: int) -> int | None:
        """Return when Apple called the token of a device bad first, if it is to be removed, as Apple calls it bad now.

        A device that registers after that time keeps its token.
        """
        parts = self._apps.get(appkey, {})
        part = parts.get(partition)
        first_ms = part.suspects.get(number) if part else None
        if first_ms is None or now_ms - first_ms < CONFIRM_MS:
            return None
        accepted, refused = _sums(parts, max(now_ms // CONFIRM_MS, _last_day(parts)))
        return first_ms if accepted > refused + 1 else None

    def is_watched_as_bad(self, appkey: str) -> bool:
        """Whether `on_change` was told last that the app is mostly bad."""
        return appkey in self._watched_bad

    def mostly_bad(self, appkey: str) -> MostlyBad | None:
        """Return the counts of an app most of whose tokens Apple calls bad, by its latest pushes; else None."""
        parts = self._apps.get(appkey, {})
        accepted, refused = _sums(parts, _last_day(parts))
        if refused <= _FEW or accepted > refused:
            return None
        since_ms = min((part.since_ms for part in parts.values() if part.since_ms), default=0)
        last = max(parts.values(), key=lambda part: part.last_ms)
        return MostlyBad(since_ms, last.last_ms, refused, accepted, last.reason)

    def dump(self) -> Iterator[BadTokensRow]:
        for appkey, parts in sorted(self._apps.items()):
            for partition, part in sorted(parts.items()):
                counts = [getattr(part, name) for name in _COUNTS]
                yield appkey, partition, part.good.serialize(), list(part.suspects.items()), counts, part.reason

    def load(self, row: BadTokensRow) -> None:
        appkey, partition, good, suspects, counts, reason = row
        part = self._apps[appkey][partition] = _Part(BitMap.deserialize(good), dict(suspects), reason=reason)
        for name, value in zip(_COUNTS, counts, strict=True):
            setattr(part, name, value)

    def _tell_change(self, appkey: str) -> None:
        if self._on_change is None:
            return
        is_bad = self.mostly_bad(appkey) is not None
        if is_bad != (appkey in self._watched_bad):
            (self._watched_bad.add if is_bad else self._watched_bad.discard)(appkey)
            self._on_change(appkey, is_bad)


_COUNTS = ("day", "accepted", "accepted_before", "refused", "refused_before", "since_ms", "last_ms")


def _last_day(parts: dict[int, _Part]) -> int:
    return max((part.day for part in parts.values()), default=0)


def _sums(parts: dict[int, _Part], day: int) -> tuple[int, int]:
    """Return how many of the app's pushes Apple accepted, and of how many it called the token bad, on this day and the
    day before.
    """
    counts = [part.counts(day) for part in parts.values()]
    return sum(accepted for accepted, _ in counts), sum(refused for _, refused in counts)
