"""Changes of the number of connections by openings and ends, minute by minute."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from analytics.ingestion.attributes import GREATEST_NUMBER
from analytics.ingestion.connections import spans as module
from analytics.ingestion.connections.spans import (
    LATEST,
    OPEN,
    ConnectionDelta,
    ConnectionSpan,
    LatestConnections,
    NumberedDevice,
    minute_of,
)

DEVICE = NumberedDevice("app", 1, 5)
NORTH, SOUTH = (1, 0, 0, 0, 0, 0, 0, 0), (2, 0, 0, 0, 0, 0, 0, 0)


def opened(id_: int, minute: int, gateway: int = 1, values: tuple[int, ...] = NORTH) -> ConnectionSpan:
    return ConnectionSpan(id_, minute * module.MINUTE_MS, OPEN, gateway, values)


def totals(changes: Sequence[ConnectionDelta]) -> dict[tuple[int, int, tuple[int, ...]], int]:
    """Return the sums by minute, gateway and values, without zero sums."""
    found = Counter[tuple[int, int, tuple[int, ...]]]()
    for minute, more, connection in changes:
        found[minute, connection.gateway, connection.values] += more
    return {key: count for key, count in found.items() if count}


@pytest.mark.parametrize(
    ("time_ms", "minute"),
    [(0, 0), (1, 1), (60_000, 1), (60_001, 2), (-1, 0), (-(2**62), 0), (2**62, 71_582_787)],
)
def test_a_connection_counts_from_the_next_full_minute_on(time_ms: int, minute: int) -> None:
    assert minute_of(time_ms) == minute
    assert module.minutes_of(np.array([time_ms])).tolist() == [minute]


def test_opened_and_closed() -> None:
    spans = LatestConnections()
    connection = opened(7, 10)
    assert spans.opened(DEVICE, connection) == [ConnectionDelta(10, 1, connection)]
    assert spans.closed(DEVICE, 7, 30) == [ConnectionDelta(30, -1, connection._replace(closed=30))]


def test_a_connection_within_a_minute_changes_nothing() -> None:
    spans = LatestConnections()
    changes = [*spans.opened(DEVICE, opened(7, 10)), *spans.closed(DEVICE, 7, 10)]
    assert totals(changes) == {}


def test_repeats_change_nothing() -> None:
    spans = LatestConnections()
    spans.opened(DEVICE, opened(7, 10))
    spans.closed(DEVICE, 7, 20)
    spans.opened(DEVICE, opened(8, 30))
    assert spans.opened(DEVICE, opened(7, 10, values=SOUTH)) == []
    assert spans.closed(DEVICE, 7, 20) == []
    assert spans.opened(DEVICE, opened(8, 30)) == []


def test_a_reconnect_ends_the_connection_before() -> None:
    """An end reported later by the old gateway counts only if it is earlier than the new connection."""
    spans = LatestConnections()
    changes = [*spans.opened(DEVICE, opened(7, 10)), *spans.opened(DEVICE, opened(8, 30, gateway=2, values=SOUTH))]
    assert totals(changes) == {(10, 1, NORTH): 1, (30, 1, NORTH): -1, (30, 2, SOUTH): 1}
    assert totals(spans.closed(DEVICE, 7, 20)) == {(30, 1, NORTH): 1, (20, 1, NORTH): -1}
    assert spans.closed(DEVICE, 7, 40) == []
    assert totals(spans.closed(DEVICE, 8, 50)) == {(50, 2, SOUTH): -1}


def test_an_opening_reported_after_a_later_one() -> None:
    spans = LatestConnections()
    changes = [*spans.opened(DEVICE, opened(8, 30)), *spans.opened(DEVICE, opened(7, 10, gateway=2))]
    assert totals(changes) == {(10, 2, NORTH): 1, (30, 2, NORTH): -1, (30, 1, NORTH): 1}
    assert totals(spans.closed(DEVICE, 7, 20)) == {(20, 2, NORTH): -1, (30, 2, NORTH): 1}
    assert spans.opened(DEVICE, opened(6, 5)) == [], "older than both that are kept"


def test_an_opening_reported_between_two_others() -> None:
    spans = LatestConnections()
    changes = [
        change
        for id_, minute in ((6, 10), (8, 30), (7, 20))
        for change in spans.opened(DEVICE, opened(id_, minute, id_))
    ]
    assert totals(changes) == {
        **{(10, 6, NORTH): 1, (20, 6, NORTH): -1, (20, 7, NORTH): 1, (30, 7, NORTH): -1, (30, 8, NORTH): 1}
    }


def test_connections_before_the_latest_are_stored_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of a connection that is not stored any more changes nothing, repeated or not."""
    monkeypatch.setattr(module, "MAX_BEFORE", 2)
    spans = LatestConnections()
    for number in range(3):
        for id_ in (7, 8):
            spans.opened(NumberedDevice("app", 1, number), opened(id_, id_))
    assert spans.closed(NumberedDevice("app", 1, 0), 7, 7) == []
    assert spans.opened(NumberedDevice("app", 1, 0), opened(7, 7)) == []
    assert spans.closed(NumberedDevice("app", 1, 0), 8, 9) != []
    assert spans.opened(NumberedDevice("app", 1, 0), opened(6, 5)) == []
    assert spans.closed(NumberedDevice("app", 1, 2), 7, 7) != []


def test_devices_do_not_mix_and_unknown_connections_change_nothing() -> None:
    spans = LatestConnections()
    spans.opened(DEVICE, opened(7, 10))
    for other in (("b", 1, 5), ("app", 2, 5), ("app", 1, 4), ("app", 1, 500)):
        assert spans.closed(NumberedDevice(*other), 7, 20) == []
    assert spans.closed(DEVICE, 9, 20) == []
    assert spans.opened(NumberedDevice("app", 1, GREATEST_NUMBER + 1), opened(1, 1)) == []
    assert spans.closed(NumberedDevice("app", 1, GREATEST_NUMBER + 1), 1, 1) == []


def test_values_with_codes_of_more_than_two_bytes() -> None:
    spans = LatestConnections()
    many = (70_000, 0, 0, 0, 0, 0, 0, 0)
    spans.opened(DEVICE, opened(7, 10))
    spans.opened(NumberedDevice("app", 1, 6), opened(7, 10, values=many))
    assert totals(spans.closed(NumberedDevice("app", 1, 6), 7, 20)) == {(20, 1, many): -1}
    assert totals(spans.closed(DEVICE, 7, 20)) == {(20, 1, NORTH): -1}


def test_loaded_connections_continue() -> None:
    spans = LatestConnections()
    minute_ms = module.MINUTE_MS
    latest = np.array([(8, 30 * minute_ms, OPEN, 2, True), (9, minute_ms, 2, 1, False)], LATEST)
    spans.note_all("app", 1, np.array([5, 9]), latest, np.array([SOUTH, NORTH]))
    spans.note_all("app", 1, np.array([], int), latest[:0], np.zeros((0, 8), int))
    spans.note_before(DEVICE, opened(7, 10))
    assert totals(spans.closed(DEVICE, 7, 20)) == {(30, 1, NORTH): 1, (20, 1, NORTH): -1}
    assert totals(spans.closed(DEVICE, 8, 50)) == {(50, 2, SOUTH): -1}
    assert spans.closed(NumberedDevice("app", 1, 9), 9, 2) == []
