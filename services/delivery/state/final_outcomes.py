"""Final outcomes: those after which a message is not sent to the device any more."""

import numpy
from numpy.typing import NDArray

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind

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


def concluded_devices(outcomes: AppOutcomes, is_ios: bool) -> dict[int, list[int]]:
    """Return the numbers of the devices with a final outcome, by message id.

    ValueError: the columns have different lengths.
    """
    msgids = numpy.frombuffer(outcomes.msgids, "<u8")
    numbers = numpy.frombuffer(outcomes.numbers, "<u4")
    kinds = numpy.frombuffer(outcomes.kinds, "u1")
    badges = len(outcomes.badges) // 4 or len(kinds)
    if not len(msgids) == len(numbers) == len(kinds) == len(outcomes.times_ms) // 8 == badges:
        raise ValueError("outcomes have columns of different lengths")
    chosen = (_IS_FINAL_ON_IOS if is_ios else _IS_FINAL)[kinds]
    return _grouped(msgids[chosen], numbers[chosen])


def _grouped(msgids: NDArray[numpy.uint64], numbers: NDArray[numpy.uint32]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for msgid, number in zip(msgids.tolist(), numbers.tolist(), strict=True):
        groups.setdefault(msgid, []).append(number)
    return groups
