"""The last badge of each device: recorded beside outcomes, folded from them, and 0 once the app was used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, Outcomes
from services.delivery.outcome_recorder import OutcomeColumns
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.devices import Badges
from services.domain.topics import DELIVERIES
from services.log.port import Record
from testkit.delivery.records import APP, OTHER_APP, SENT

Sent = tuple[int, int | None]
"""Device number, badge."""

batches = st.lists(
    st.lists(st.tuples(st.integers(0, 70), st.none() | st.integers(0, 2**32 - 2)), min_size=1, max_size=20), max_size=6
)


def outcomes(sent: list[Sent], time_ms: int, appkey: str = APP) -> list[AppOutcomes]:
    columns = OutcomeColumns()
    for number, badge in sent:
        columns.add(1, number, SENT, time_ms, "", badge)
    return columns.batches(appkey)


@given(sent=batches, queried=st.integers(0, 80), active=st.integers(0, 8))
def test_the_last_badge_counts_until_the_app_is_used(sent: list[list[Sent]], queried: int, active: int) -> None:
    badges = Badges()
    expected = 0
    for time_ms, batch in enumerate(sent, start=1):
        for some in outcomes(batch, time_ms):
            badges.fold(3, some)
        for number, badge in batch:
            if number == queried and badge is not None:
                expected = badge if time_ms > active else 0
    assert badges.last((APP, 3), queried, active) == expected
    assert badges.last((APP, 4), queried, active) == badges.last((OTHER_APP, 3), queried, active) == 0
    again = Badges()
    again.load(badges.dump())
    assert again.dump() == badges.dump()
    assert again.last((APP, 3), queried, active) == expected


def test_badges_stay_with_their_rows_when_a_batch_is_split_into_records() -> None:
    badges = Badges()
    sent: list[Sent] = [(number, number if number % 3 == 0 else None) for number in range(70_000)]
    records = outcomes(sent, 5)
    assert len(records) == 3
    for record in records:
        badges.fold(0, record)
    assert [badges.last((APP, 0), number, 0) for number in (0, 3, 29_997, 30_000, 30_001, 69_999)] == [
        *(0, 3, 29_997, 30_000, 0, 69_999)
    ]


def test_outcomes_without_badges_have_no_badge_column() -> None:
    (record,) = outcomes([(1, None), (2, None)], 5)
    assert record.badges == b""


@pytest.mark.parametrize("column", ["msgids", "numbers", "kinds", "times_ms", "badges"])
def test_outcomes_with_columns_of_different_lengths_are_rejected_as_a_whole(column: str) -> None:
    (record,) = outcomes([(1, 5), (2, 6)], 5)
    short = getattr(record, column)
    setattr(record, column, short[: len(short) // 2])
    state = DeliveryState([0])
    fact = DeliveryFact(outcomes=Outcomes(apps=[record]))
    with pytest.raises(ValueError, match="different lengths"):
        state.apply(Record(DELIVERIES.name, 0, 0, b"", fact.SerializeToString()), fact)
    assert state.badges.dump() == []
