"""Records of delivery's topics for tests of the state."""

import struct
from collections.abc import Mapping, Sequence

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, Outcomes, PushFact
from protos.push.v1.push_pb2 import PushCommand
from services.domain.recorded_reasons import FixedReason
from services.log.port import Record
from testkit.delivery.records import START_MS


def parsed(record: Record) -> PushCommand | PushFact | DeliveryFact:
    """Return a fresh message of the record, because the state may change the one it applies."""
    types: dict[str, type[PushCommand | PushFact | DeliveryFact]] = {
        "push-commands": PushCommand,
        "pushes": PushFact,
        "deliveries": DeliveryFact,
    }
    return types[record.topic].FromString(record.value)


def outcomes_fact(
    app: str,
    rows: Sequence[tuple[int, int, int]],
    reasons: Mapping[int, FixedReason] | None = None,
    channels: Sequence[int] = (),
    *,
    carry_msgids: bool = False,
) -> DeliveryFact:
    """Return the fact of these outcomes, as rows of (message id, device number, kind).

    `reasons`: those of some rows by their places. `channels`: one for each row.
    """
    count, named = len(rows), sorted(set((reasons or {}).values()))
    indexes = {place: 2 + named.index(reason) for place, reason in (reasons or {}).items()}
    columns = AppOutcomes(
        appkey=app,
        msgids=struct.pack(f"<{count}Q", *(row[0] for row in rows)),
        numbers=struct.pack(f"<{count}I", *(row[1] for row in rows)),
        kinds=bytes(row[2] for row in rows),
        times_ms=struct.pack(f"<{count}q", *[START_MS] * count),
        reason_indexes=bytes(indexes.get(place, 0) for place in range(count)),
        reasons=["other", *named] if named else [],
        channels=bytes(channels),
        carry_msgids=carry_msgids,
    )
    return DeliveryFact(outcomes=Outcomes(apps=[columns]))
