"""Statistics of registered devices against a recount in plain Python, over days on which clocks change."""

from collections.abc import Iterator
from datetime import date
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.analytics.v1.analytics_pb2 import (
    Category,
    StatisticsKind,
    UserKind,
    UsersRow,
)
from tests.analytics.statistics.model import DEVICES, EXAMPLES, INFOS, Device, date_ranges, moments
from tests.analytics.statistics.sync_store import SyncStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncStore]:
    store = SyncStore(tmp_path_factory.mktemp("world"))
    yield store
    store.close()


class State(NamedTuple):
    """A state of a device that registered at `registered_ms`; a list has them in the order of their records."""

    device: Device
    registered_ms: int
    info: str


@given(data=st.data())
@EXAMPLES
def test_users(store: SyncStore, data: st.DataObject) -> None:
    period = data.draw(date_ranges())
    states = data.draw(
        st.lists(st.builds(State, st.sampled_from(DEVICES), moments(period), st.sampled_from(INFOS)), max_size=25)
    )
    appkey = store.new_app()
    store.ingest(
        [
            store.device(
                appkey,
                *state.device,
                state.registered_ms + n,
                registered_ms=state.registered_ms,
                attributes={"os_version": state.info},
            )
            for n, state in enumerate(states)
        ]
        or [store.sessions_record("g", 0, [])]
    )
    registered: dict[Device, int] = {}
    infos: dict[Device, str] = {}
    for state in states:
        registered.setdefault(state.device, state.registered_ms)
        infos.setdefault(state.device, state.info)

    def count(first: date, last: date, info: str | None = None) -> int:
        return sum(
            first <= period.day_of(time_ms) <= last and info in (None, infos[device])
            for device, time_ms in registered.items()
        )

    for kind in (UserKind.USER_KIND_NEW, UserKind.USER_KIND_CUMULATIVE):
        since = date.min if kind == UserKind.USER_KIND_CUMULATIVE else None
        request = period.request(appkey, StatisticsKind.STATISTICS_KIND_USERS)
        request.user_kind = kind
        expected = [UsersRow(date=day.isoformat(), count=count(since or day, day)) for day in period.dates]
        assert list(store.statistics(request, 0, period.zone).users) == expected
        request.category, request.info = Category.CATEGORY_OS_VERSION, "south"
        expected = [
            UsersRow(date=day.isoformat(), info="south", count=count(since or day, day, "south"))
            for day in period.dates
        ]
        assert list(store.statistics(request, 0, period.zone).users) == expected
        request.info = "all"
        totals = {info: count(since or period.first, period.last, info) for info in INFOS}
        expected = [UsersRow(info=info, count=total) for info, total in totals.items() if total]
        assert list(store.statistics(request, 0, period.zone).users) == expected
