"""Statistics of connections against a recount in plain Python, over days on which clocks change."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.analytics.v1.analytics_pb2 import (
    Category,
    ConnectionsRow,
    StatisticsKind,
)
from protos.gateway.v1.sessions_pb2 import ConnectionCounts, SessionEvent, SessionFact
from services.domain.topics import SESSIONS
from tests.analytics.statistics.model import (
    DAY_MS,
    DEVICES,
    EXAMPLES,
    INFOS,
    MINUTE_MS,
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


class Gateway(NamedTuple):
    """A gateway with its counts by minute; it runs from the first to the last of them."""

    name: str
    counts: dict[int, int]


class Connection(NamedTuple):
    id: int
    device: Device
    gateway: str
    opened_ms: int
    closed_ms: int | None
    info: str


@st.composite
def gateways(draw: st.DrawFn, period: DateRange) -> list[Gateway]:
    """Draw gateways; some run until long after the requested days."""
    end_ms = (period.ms(period.last) + 2 * DAY_MS) // MINUTE_MS * MINUTE_MS
    minutes = moments(period, 1, 1).map(lambda ms: ms // MINUTE_MS * MINUTE_MS)
    counts = st.dictionaries(minutes, st.integers(1, 1000), min_size=1, max_size=12)
    ends: st.SearchStrategy[dict[int, int]] = st.sampled_from(({}, {end_ms: 5}))
    both = draw(st.lists(st.tuples(counts, ends), min_size=1, max_size=3))
    return [Gateway(f"g{n}", given | end) for n, (given, end) in enumerate(both)]


@st.composite
def connections(draw: st.DrawFn, alive: Sequence[Gateway]) -> list[Connection]:
    made = []
    for gateway in draw(st.lists(st.sampled_from(alive), max_size=12)) if alive else []:
        opened = draw(st.integers(min(gateway.counts) - MINUTE_MS, max(gateway.counts)))
        opened = draw(st.sampled_from((opened, opened // MINUTE_MS * MINUTE_MS)))
        lasted = draw(st.none() | st.none() | st.sampled_from((0, 1, MINUTE_MS)) | st.integers(0, 2 * DAY_MS))
        closed = None if lasted is None else opened + lasted
        made.append((opened, draw(st.sampled_from(DEVICES[:2])), gateway.name, closed, draw(st.sampled_from(INFOS))))
    made.sort(key=lambda one: one[0])
    return [
        Connection(n, device, gateway, opened, closed, info)
        for n, (opened, device, gateway, closed, info) in enumerate(made, 1)
    ]


class ConnectionChange(NamedTuple):
    """The opening or the end of a connection, as a record in the log."""

    connection: Connection
    is_end: bool

    def event(self, appkey: str) -> SessionEvent:
        c = self.connection
        kind, time_ms = ("CLOSED", c.closed_ms) if self.is_end else ("OPENED", c.opened_ms)
        return session_event(appkey, c.device, kind, time_ms or 0, c.id)


@st.composite
def logs(draw: st.DrawFn, made: Sequence[Connection]) -> list[ConnectionChange]:
    """Draw an order in which gateways may report the connections, some of them twice.

    A connection's end comes after its opening, and before the opening of the connection after the next. The first two
    openings of a device may be swapped.
    """
    changes = []
    for device in DEVICES[:2]:
        mine = [c for c in made if c.device == device]
        late: list[ConnectionChange] = []
        if len(mine) > 1 and draw(st.booleans()):
            second, first, *mine = mine[1], mine[0], *mine[2:]
            changes += [ConnectionChange(second, False), ConnectionChange(first, False)]
            changes += draw(
                st.permutations([ConnectionChange(c, True) for c in (first, second) if c.closed_ms is not None])
            )
        for c in mine:
            changes += draw(st.permutations([*late, ConnectionChange(c, False)]))
            changes += draw(st.lists(st.just(ConnectionChange(c, False)), max_size=1))
            late = [ConnectionChange(c, True)] if c.closed_ms is not None else []
            changes += draw(st.sampled_from(([], late)))
        changes += late
    return changes


@pytest.mark.long
@given(data=st.data())
@EXAMPLES
def test_connections(store: SyncStore, data: st.DataObject) -> None:
    """Records come in any order over partitions, and within one as drawn by `logs`."""
    period = data.draw(date_ranges(2))
    alive = data.draw(gateways(period))
    made = data.draw(connections(alive))
    now_ms = data.draw(st.just(period.ms(period.last) + DAY_MS) | moments(period))
    appkey = store.new_app()
    counts = [
        SessionFact(counts=ConnectionCounts(gateway=f"{appkey} {g.name}", minute_ms=at, connections_by_app={appkey: n}))
        for g in alive
        for at, n in g.counts.items()
    ]
    store.ingest([store.record(SESSIONS.name, 0, fact) for fact in counts] or [store.sessions_record("g", 0, [])])
    for info, changes in itertools.groupby(data.draw(logs(made)), lambda change: change.connection.info):
        store.ingest(
            [store.device(appkey, *device, period.ms(period.first), attributes={"region": info}) for device in DEVICES]
        )
        store.ingest(
            [
                store.sessions_record(
                    f"{appkey} {change.connection.gateway}", change.connection.device[0], [change.event(appkey)]
                )
                for change in changes
            ]
        )

    marks: dict[date, list[int]] = {day: [] for day in period.dates}
    start_ms = (period.ms(period.first) - 2 * DAY_MS) // MINUTE_MS * MINUTE_MS
    for at in range(start_ms, period.ms(period.last) + 2 * DAY_MS, MINUTE_MS):
        if at + MINUTE_MS <= now_ms and (day := period.day_of(at)) in marks:
            marks[day].append(at)

    totals: dict[int, int] = defaultdict(int)
    for gateway in alive:
        for at, n in gateway.counts.items():
            totals[at] += n

    def row(levels: list[int], **fields: str) -> ConnectionsRow:
        if not levels:
            return ConnectionsRow(**fields)  # type: ignore[arg-type]
        average = sum(levels) / len(levels)
        return ConnectionsRow(average=average, maximum=max(levels), minimum=min(levels), **fields)

    request = period.request(appkey, StatisticsKind.STATISTICS_KIND_CONNECTIONS)
    expected = [row([totals[at] for at in marks[day]], date=day.isoformat()) for day in period.dates]
    assert list(store.statistics(request, now_ms, period.zone).connections) == expected

    last = {gateway.name: max(gateway.counts) for gateway in alive}

    def level(at: int, info: str) -> int:
        """Count the devices whose latest connection by then is open, on a gateway that still counts."""
        latest = {c.device: c for c in made if c.opened_ms <= at}
        return sum(
            c.info == info and (c.closed_ms is None or c.closed_ms > at) and last[c.gateway] >= at
            for c in latest.values()
        )

    every = [at for day in period.dates for at in marks[day]]
    levels = {info: [level(at, info) for at in every] for info in INFOS}
    request.category, request.info = Category.CATEGORY_REGION, "all"
    expected = [row(of_info, info=info) for info, of_info in levels.items() if any(of_info)]
    assert list(store.statistics(request, now_ms, period.zone).connections) == expected
    request.info = "south"
    expected = [row(levels["south"], info="south")]
    assert list(store.statistics(request, now_ms, period.zone).connections) == expected
