"""Final outcomes: those after which a message is not sent to the device any more."""

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind
from services.domain.recorded_reasons import FixedReason

FINAL_OUTCOMES = frozenset(
    {
        OutcomeKind.OUTCOME_KIND_RECEIVED,
        OutcomeKind.OUTCOME_KIND_FAILED,
        OutcomeKind.OUTCOME_KIND_EXPIRED,
        OutcomeKind.OUTCOME_KIND_CANCELLED,
        OutcomeKind.OUTCOME_KIND_DROPPED,
    }
)
"""On iOS SENT is final too, because iOS devices send no acknowledgements."""

_IS_FINAL = numpy.isin(numpy.arange(256), list(FINAL_OUTCOMES))
_IS_FINAL_ON_IOS = numpy.isin(numpy.arange(256), [*FINAL_OUTCOMES, OutcomeKind.OUTCOME_KIND_SENT])


class FinalOutcomes(NamedTuple):
    """Device numbers by message id: `concluded` have a final outcome, `withdrawn` one after which a receipt may follow.

    A message that was dropped because the device changed its alias may be on its way to the device.
    """

    concluded: dict[int, list[int]]
    withdrawn: dict[int, list[int]]


def final_outcomes(outcomes: AppOutcomes, is_ios: bool) -> FinalOutcomes:
    """Return the devices with a final outcome. ValueError: the columns have different lengths."""
    msgids = numpy.frombuffer(outcomes.msgids, "<u8")
    numbers = numpy.frombuffer(outcomes.numbers, "<u4")
    kinds = numpy.frombuffer(outcomes.kinds, "u1")
    badges = len(outcomes.badges) // 4 or len(kinds)
    if not len(msgids) == len(numbers) == len(kinds) == len(outcomes.times_ms) // 8 == badges:
        raise ValueError("outcomes have columns of different lengths")
    chosen = (_IS_FINAL_ON_IOS if is_ios else _IS_FINAL)[kinds]
    if is_ios or FixedReason.ALIAS_CHANGED not in outcomes.reasons:
        return FinalOutcomes(_grouped(msgids[chosen], numbers[chosen]), {})
    reason = list(outcomes.reasons).index(FixedReason.ALIAS_CHANGED) + 1
    reasons = numpy.frombuffer(outcomes.reason_indexes, "u1")
    if len(reasons) != len(kinds):
        raise ValueError("outcomes have columns of different lengths")
    withdrawn = (kinds == OutcomeKind.OUTCOME_KIND_DROPPED) & (reasons == reason)
    return FinalOutcomes(
        _grouped(msgids[chosen & ~withdrawn], numbers[chosen & ~withdrawn]),
        _grouped(msgids[withdrawn], numbers[withdrawn]),
    )


def _grouped(msgids: NDArray[numpy.uint64], numbers: NDArray[numpy.uint32]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for msgid, number in zip(msgids.tolist(), numbers.tolist(), strict=True):
        groups.setdefault(msgid, []).append(number)
    return groups
