"""Outcomes of one app in one partition as columns, the form in which they are written to the log."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from protos.delivery.v1.delivery_pb2 import AppOutcomes
from services.domain.recorded_reasons import FixedReason

REASON_CHARS = 200
"""Reasons are cut to this length."""

_ROWS_PER_RECORD = 30_000
_MAX_REASONS = 255


@dataclass(slots=True)
class OutcomeColumns:
    """One row for each outcome; `badges` may be shorter than the other columns, missing rows are 0."""

    msgids: "array[int]" = field(default_factory=lambda: array("Q"))
    numbers: "array[int]" = field(default_factory=lambda: array("I"))
    kinds: "array[int]" = field(default_factory=lambda: array("B"))
    times_ms: "array[int]" = field(default_factory=lambda: array("q"))
    reason_indexes: "array[int]" = field(default_factory=lambda: array("B"))
    reasons: dict[str, int] = field(default_factory=dict)
    badges: "array[int]" = field(default_factory=lambda: array("I"))

    def add(self, msgid: int, number: int, kind: int, time_ms: int, reason: str, badge: int | None = None) -> None:
        if badge is not None:
            self.badges.extend(array("I", [0]) * (len(self.msgids) - len(self.badges)))
            self.badges.append(1 + badge)
        self.msgids.append(msgid)
        self.numbers.append(number)
        self.kinds.append(kind)
        self.times_ms.append(time_ms)
        self.reason_indexes.append(self._reason_index(reason[:REASON_CHARS]) if reason else 0)

    def add_many(self, msgid: int, numbers: Sequence[int], kind: int, time_ms: int) -> None:
        count = len(numbers)
        self.msgids.extend(array("Q", [msgid]) * count)
        self.numbers.extend(numbers)
        self.kinds.extend(array("B", [kind]) * count)
        self.times_ms.extend(array("q", [time_ms]) * count)
        self.reason_indexes.extend(array("B", [0]) * count)

    def batches(self, appkey: str) -> list[AppOutcomes]:
        """Return the rows as messages that each fit into one record."""
        return [
            AppOutcomes(
                appkey=appkey,
                msgids=self.msgids[at : at + _ROWS_PER_RECORD].tobytes(),
                numbers=self.numbers[at : at + _ROWS_PER_RECORD].tobytes(),
                kinds=self.kinds[at : at + _ROWS_PER_RECORD].tobytes(),
                times_ms=self.times_ms[at : at + _ROWS_PER_RECORD].tobytes(),
                reason_indexes=self.reason_indexes[at : at + _ROWS_PER_RECORD].tobytes(),
                reasons=list(self.reasons),
                badges=self._badges_from(at),
            )
            for at in range(0, len(self.msgids), _ROWS_PER_RECORD)
        ]

    def _reason_index(self, reason: str) -> int:
        if reason not in self.reasons and len(self.reasons) >= _MAX_REASONS - 1:
            reason = FixedReason.OTHER
        return self.reasons.setdefault(reason, len(self.reasons) + 1)

    def _badges_from(self, at: int) -> bytes:
        if not self.badges:
            return b""
        some = self.badges[at : at + _ROWS_PER_RECORD]
        return some.tobytes().ljust(4 * min(_ROWS_PER_RECORD, len(self.msgids) - at), b"\0")
