"""Statistics of log-ins against a recount in plain Python, over days on which clocks change."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.analytics.v1.analytics_pb2 import (
    Category,
    LoginsRow,
    StatisticsKind,
)
from services.log.port import NewRecord
from tests.analytics.statistics.model import (
    DEVICES,
    EXAMPLES,
    INFOS,
    DateRange,
    Device,
    date_ranges,
    moments,
    session_event,
)
from tests.analytics.statistics.sync_store import SyncStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncStore]:
    store = SyncStore(tmp_path_factory.mktemp("world"))
    yield store
    store.close()


class Login(NamedTuple):
    device: Device
    time_ms: int
    info: str


@given(data=st.data())
@EXAMPLES
@pytest.mark.long
def test_logins(store: SyncStore, data: st.DataObject) -> None:
    """Statistics are requested repeatedly while further log-ins arrive, also late ones."""
    period = data.draw(date_ranges())
    one = st.builds(Login, st.sampled_from(DEVICES), moments(period, 33), st.sampled_from(INFOS))
    appkey = store.new_app()
    logins: list[Login] = []
    for more in data.draw(st.lists(st.lists(one, max_size=15), min_size=1, max_size=3)):
        log_in(store, appkey, more, period.ms(period.first))
        logins += more
        check_logins(store, appkey, logins, data.draw(st.just(period) | st.sampled_from(period.dates).map(period.on)))


def login_record(store: SyncStore, appkey: str, login: Login) -> NewRecord:
    event = session_event(appkey, login.device, "LOGGED_IN", login.time_ms, 1)
    return store.sessions_record("g", login.device[0], [event])


def log_in(store: SyncStore, appkey: str, logins: Sequence[Login], at_ms: int) -> None:
    for info in INFOS:
        store.ingest([store.device(appkey, *device, at_ms, attributes={"brand": info}) for device in DEVICES])
        store.ingest(
            [
                store.sessions_record(
                    "g", login.device[0], [session_event(appkey, login.device, "LOGGED_IN", login.time_ms, 1)]
                )
                for login in logins
                if login.info == info
            ]
            or [store.sessions_record("g", 0, [])]
        )


def check_logins(store: SyncStore, appkey: str, logins: Sequence[Login], period: DateRange) -> None:
    def count(day: date, window: int, info: str | None = None) -> int:
        return len(
            {
                login.device
                for login in logins
                if 0 <= (day - period.day_of(login.time_ms)).days < window and info in (None, login.info)
            }
        )

    def row(day: date, info: str | None = None) -> LoginsRow:
        counts = {window: count(day, window, info) for window in (1, 2, 3, 4, 5, 6, 7, 30)}
        return LoginsRow(date=day.isoformat(), info=info, counts=counts)

    request = period.request(appkey, StatisticsKind.STATISTICS_KIND_LOGINS)
    assert list(store.statistics(request, 0, period.zone).logins) == [row(day) for day in period.dates]
    request.category, request.info = Category.CATEGORY_BRAND, "north"
    assert list(store.statistics(request, 0, period.zone).logins) == [row(day, "north") for day in period.dates]
    request.info = "all"
    expected = [row(day, info) for day in period.dates for info in INFOS if count(day, 30, info)]
    assert list(store.statistics(request, 0, period.zone).logins) == expected
