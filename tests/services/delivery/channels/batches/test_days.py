"""The days on which vendors count messages, and the counts of devices."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.delivery.channels.batches.days import DailyCounts, next_day_ms
from services.delivery.state.audience_parts import DeviceAddress

DAY_MS, HOUR_MS = 86_400_000, 3_600_000


def test_the_next_day_in_china_begins_at_16_utc() -> None:
    assert next_day_ms(20 * DAY_MS + 12 * HOUR_MS) == 20 * DAY_MS + 16 * HOUR_MS
    assert next_day_ms(20 * DAY_MS + 16 * HOUR_MS) == 21 * DAY_MS + 16 * HOUR_MS


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 3), st.integers(0, 30)), max_size=60)
)
def test_counts_are_those_of_a_day_and_a_device(had: list[tuple[str, int, int, int]]) -> None:
    """Each message comes some hours after the one before."""
    counts, now_ms, model, day = DailyCounts(), 0, Counter[DeviceAddress](), next_day_ms(0)
    for appkey, partition, number, hours in had:
        now_ms += hours * HOUR_MS
        if next_day_ms(now_ms) != day:
            model, day = Counter(), next_day_ms(now_ms)
        device = DeviceAddress(appkey, partition, number)
        counts.add(device, now_ms)
        model[device] += 1
        for cap in range(1, 6):
            assert counts.reached(device, cap, now_ms) == (model[device] >= cap)
