"""Each statistic against a recount in plain Python from the same facts, over days on which clocks change."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from protos.analytics.v1.analytics_pb2 import (
    BroadcastRow,
    Category,
    ConnectionsRow,
    LoginsRow,
    StatisticsKind,
    StatisticsRequest,
    UserKind,
    UsersRow,
)
from protos.delivery.v1.delivery_pb2 import DeliveryFact, OutcomeKind, Outcomes, PushFact
from protos.gateway.v1.sessions_pb2 import ConnectionCounts, SessionEvent, SessionEventKind, SessionFact
from protos.push.v1.push_pb2 import Kind
from protos.registry.v1.apps_pb2 import Platform
from services.domain.topics import DELIVERIES, PUSHES, SESSIONS
from testkit.examples import examples
from tests.roles.analytics.statistics.world import ZONES, World, dates
from tests.roles.analytics.support import app_outcomes, send

MINUTE_MS = 60_000
DAY_MS = 86_400_000
CHANGES = {
    "Europe/Berlin": date(2026, 10, 25),
    "Asia/Shanghai": date(2026, 10, 25),
    "America/St_Johns": date(2026, 3, 8),
    "Asia/Kathmandu": date(2026, 3, 8),
    "Australia/Lord_Howe": date(2026, 10, 4),
    "America/Santiago": date(2026, 9, 6),
}
INFOS = ("", "north", "south")
DEVICES = [(partition, number) for partition in (0, 3) for number in (0, 1, 40_000)]
ALWAYS = settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))

Device = tuple[int, int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    yield world
    world.close()


class Span(NamedTuple):
    """Dates in a zone around a day on which its clocks change."""

    zone: str
    first: date
    last: date

    @property
    def dates(self) -> list[date]:
        return [self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1)]

    def on(self, day: date) -> "Span":
        """One of the dates alone."""
        return Span(self.zone, day, day)

    def day_of(self, time_ms: int) -> date:
        return datetime.fromtimestamp(time_ms / 1000, ZoneInfo(self.zone)).date()

    def ms(self, day: date) -> int:
        """Somewhere at the day's noon."""
        return int(datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo(self.zone)).timestamp()) * 1000

    def request(self, appkey: str, kind: StatisticsKind.ValueType) -> StatisticsRequest:
        return StatisticsRequest(appkey=appkey, kind=kind, dates=dates(self.first.isoformat(), self.last.isoformat()))


@st.composite
def spans(draw: st.DrawFn, longest: int = 5) -> Span:
    zone = draw(st.sampled_from(ZONES))
    first = CHANGES[zone] + timedelta(days=draw(st.integers(-longest, 0)))
    return Span(zone, first, first + timedelta(days=draw(st.integers(0, longest))))


def moments(span: Span, before_days: int = 2, after_days: int = 2) -> st.SearchStrategy[int]:
    """Milliseconds; often within a minute of the start of a day."""
    low, high = span.ms(span.first) - before_days * DAY_MS, span.ms(span.last) + after_days * DAY_MS
    zone = ZoneInfo(span.zone)
    midnights = [int(datetime(d.year, d.month, d.day, tzinfo=zone).timestamp()) * 1000 for d in span.dates]
    near = st.builds(
        lambda at, off: at + off, st.sampled_from(midnights), st.integers(-2, 2) | st.integers(-4_000_000, 4_000_000)
    )
    return near | st.integers(low, high)


# --- logins


class Login(NamedTuple):
    device: Device
    time_ms: int
    info: str


@given(data=st.data())
@ALWAYS
def test_logins(world: World, data: st.DataObject) -> None:
    """Asked again and again while more of them come, also late ones."""
    span = data.draw(spans())
    one = st.builds(Login, st.sampled_from(DEVICES), moments(span, 33), st.sampled_from(INFOS))
    appkey = world.app()
    logins: list[Login] = []
    for more in data.draw(st.lists(st.lists(one, max_size=15), min_size=1, max_size=3)):
        log_in(world, appkey, more, span.ms(span.first))
        logins += more
        check_logins(world, appkey, logins, data.draw(st.just(span) | st.sampled_from(span.dates).map(span.on)))


def log_in(world: World, appkey: str, logins: Sequence[Login], at_ms: int) -> None:
    for info in INFOS:
        world.happen([world.device(appkey, *device, at_ms, attributes={"brand": info}) for device in DEVICES])
        world.happen(
            [
                world.sessions("g", login.device[0], [event(appkey, login.device, "LOGGED_IN", login.time_ms, 1)])
                for login in logins
                if login.info == info
            ]
            or [world.sessions("g", 0, [])]
        )


def check_logins(world: World, appkey: str, logins: Sequence[Login], span: Span) -> None:
    def count(day: date, window: int, info: str | None = None) -> int:
        return len(
            {
                login.device
                for login in logins
                if 0 <= (day - span.day_of(login.time_ms)).days < window and info in (None, login.info)
            }
        )

    def row(day: date, info: str | None = None) -> LoginsRow:
        counts = {window: count(day, window, info) for window in (1, 2, 3, 4, 5, 6, 7, 30)}
        return LoginsRow(date=day.isoformat(), info=info, counts=counts)

    request = span.request(appkey, StatisticsKind.STATISTICS_KIND_LOGINS)
    assert list(world.ask(request, 0, span.zone).logins) == [row(day) for day in span.dates]
    request.category, request.info = Category.CATEGORY_BRAND, "north"
    assert list(world.ask(request, 0, span.zone).logins) == [row(day, "north") for day in span.dates]
    request.info = "all"
    expected = [row(day, info) for day in span.dates for info in INFOS if count(day, 30, info)]
    assert list(world.ask(request, 0, span.zone).logins) == expected


def event(appkey: str, device: Device, kind: str, time_ms: int, connection: int) -> SessionEvent:
    return SessionEvent(
        appkey=appkey,
        token=f"{device[0]}-{device[1]}",
        number=device[1],
        kind=SessionEventKind.Value(f"SESSION_EVENT_KIND_{kind}"),
        time_ms=time_ms,
        connection=connection,
    )


# --- users


class State(NamedTuple):
    """A state of a device that registered at `registered_ms`; later ones in a list are written later."""

    device: Device
    registered_ms: int
    info: str


@given(data=st.data())
@ALWAYS
def test_users(world: World, data: st.DataObject) -> None:
    span = data.draw(spans())
    states = data.draw(
        st.lists(st.builds(State, st.sampled_from(DEVICES), moments(span), st.sampled_from(INFOS)), max_size=25)
    )
    appkey = world.app()
    world.happen(
        [
            world.device(
                appkey,
                *state.device,
                state.registered_ms + n,
                registered_ms=state.registered_ms,
                attributes={"os_version": state.info},
            )
            for n, state in enumerate(states)
        ]
        or [world.sessions("g", 0, [])]
    )
    registered: dict[Device, int] = {}
    infos: dict[Device, str] = {}
    for state in states:
        registered.setdefault(state.device, state.registered_ms)
        infos.setdefault(state.device, state.info)

    def count(first: date, last: date, info: str | None = None) -> int:
        return sum(
            first <= span.day_of(time_ms) <= last and info in (None, infos[device])
            for device, time_ms in registered.items()
        )

    for kind in (UserKind.USER_KIND_NEW, UserKind.USER_KIND_CUMULATIVE):
        since = date.min if kind == UserKind.USER_KIND_CUMULATIVE else None
        request = span.request(appkey, StatisticsKind.STATISTICS_KIND_USERS)
        request.user_kind = kind
        expected = [UsersRow(date=day.isoformat(), count=count(since or day, day)) for day in span.dates]
        assert list(world.ask(request, 0, span.zone).users) == expected
        request.category, request.info = Category.CATEGORY_OS_VERSION, "south"
        expected = [
            UsersRow(date=day.isoformat(), info="south", count=count(since or day, day, "south")) for day in span.dates
        ]
        assert list(world.ask(request, 0, span.zone).users) == expected
        request.info = "all"
        totals = {info: count(since or span.first, span.last, info) for info in INFOS}
        expected = [UsersRow(info=info, count=total) for info, total in totals.items() if total]
        assert list(world.ask(request, 0, span.zone).users) == expected


# --- connections


class Gateway(NamedTuple):
    """Counts at these minutes; the first and the last are those of its life."""

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
def gateways(draw: st.DrawFn, span: Span) -> list[Gateway]:
    """Some live until long after the days that are asked for."""
    end_ms = (span.ms(span.last) + 2 * DAY_MS) // MINUTE_MS * MINUTE_MS
    minutes = moments(span, 1, 1).map(lambda ms: ms // MINUTE_MS * MINUTE_MS)
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


class Moment(NamedTuple):
    """What the log says of a connection, while its device is like that."""

    connection: Connection
    is_end: bool

    def event(self, appkey: str) -> SessionEvent:
        c = self.connection
        kind, time_ms = ("CLOSED", c.closed_ms) if self.is_end else ("OPENED", c.opened_ms)
        return event(appkey, c.device, kind, time_ms or 0, c.id)


@st.composite
def logs(draw: st.DrawFn, made: Sequence[Connection]) -> list[Moment]:
    """An order in which gateways may tell of the connections, some of it twice.

    A connection's end comes after its opening and before the opening of the one after the next. The first two openings
    of a device may be exchanged.
    """
    told = []
    for device in DEVICES[:2]:
        mine = [c for c in made if c.device == device]
        late: list[Moment] = []
        if len(mine) > 1 and draw(st.booleans()):
            second, first, *mine = mine[1], mine[0], *mine[2:]
            told += [Moment(second, False), Moment(first, False)]
            told += draw(st.permutations([Moment(c, True) for c in (first, second) if c.closed_ms is not None]))
        for c in mine:
            told += draw(st.permutations([*late, Moment(c, False)]))
            told += draw(st.lists(st.just(Moment(c, False)), max_size=1))
            late = [Moment(c, True)] if c.closed_ms is not None else []
            told += draw(st.sampled_from(([], late)))
        told += late
    return told


@pytest.mark.long
@given(data=st.data())
@ALWAYS
def test_connections(world: World, data: st.DataObject) -> None:
    """In any order over partitions; within one as `logs` says."""
    span = data.draw(spans(2))
    alive = data.draw(gateways(span))
    made = data.draw(connections(alive))
    now_ms = data.draw(st.just(span.ms(span.last) + DAY_MS) | moments(span))
    appkey = world.app()
    counts = [
        SessionFact(counts=ConnectionCounts(gateway=f"{appkey} {g.name}", minute_ms=at, connections_by_app={appkey: n}))
        for g in alive
        for at, n in g.counts.items()
    ]
    world.happen([world.record(SESSIONS.name, 0, fact) for fact in counts] or [world.sessions("g", 0, [])])
    for info, told in itertools.groupby(data.draw(logs(made)), lambda moment: moment.connection.info):
        world.happen(
            [world.device(appkey, *device, span.ms(span.first), attributes={"region": info}) for device in DEVICES]
        )
        world.happen(
            [
                world.sessions(
                    f"{appkey} {moment.connection.gateway}", moment.connection.device[0], [moment.event(appkey)]
                )
                for moment in told
            ]
        )

    marks: dict[date, list[int]] = {day: [] for day in span.dates}
    start_ms = (span.ms(span.first) - 2 * DAY_MS) // MINUTE_MS * MINUTE_MS
    for at in range(start_ms, span.ms(span.last) + 2 * DAY_MS, MINUTE_MS):
        if at + MINUTE_MS <= now_ms and (day := span.day_of(at)) in marks:
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

    request = span.request(appkey, StatisticsKind.STATISTICS_KIND_CONNECTIONS)
    expected = [row([totals[at] for at in marks[day]], date=day.isoformat()) for day in span.dates]
    assert list(world.ask(request, now_ms, span.zone).connections) == expected

    last = {gateway.name: max(gateway.counts) for gateway in alive}

    def level(at: int, info: str) -> int:
        """Devices whose latest connection by then is still open, on a gateway that still counts."""
        latest = {c.device: c for c in made if c.opened_ms <= at}
        return sum(
            c.info == info and (c.closed_ms is None or c.closed_ms > at) and last[c.gateway] >= at
            for c in latest.values()
        )

    every = [at for day in span.dates for at in marks[day]]
    levels = {info: [level(at, info) for at in every] for info in INFOS}
    request.category, request.info = Category.CATEGORY_REGION, "all"
    expected = [row(of_info, info=info) for info, of_info in levels.items() if any(of_info)]
    assert list(world.ask(request, now_ms, span.zone).connections) == expected
    request.info = "south"
    expected = [row(levels["south"], info="south")]
    assert list(world.ask(request, now_ms, span.zone).connections) == expected


# --- broadcasts


class Push(NamedTuple):
    is_ios: bool
    audience: frozenset[Device]
    endings: dict[int, str]
    outcomes: list[tuple[Device, str]]


STEPS = ("SENT", "RECEIVED", "SHOWN", "CLICKED", "DISMISSED", "FAILED", "DROPPED", "EXPIRED", "CANCELLED")
STARTED_MS = 1_790_000_000_000

pushes = st.builds(
    Push,
    st.booleans(),
    st.frozensets(st.sampled_from(DEVICES)),
    st.dictionaries(st.sampled_from((0, 3)), st.sampled_from(("cancelled", "finished", "both"))),
    st.lists(st.tuples(st.sampled_from(DEVICES), st.sampled_from(STEPS)), max_size=25),
)


def _row(first_id: int, n: int, counts: dict[str, Any], info: str | None = None) -> BroadcastRow:
    return BroadcastRow(msgid=first_id + n, sent_ms=STARTED_MS + n, info=info, **counts)


def recount(push: Push, among: frozenset[Device]) -> dict[str, int]:
    """Every device of the audience by what happened to it, one by one."""
    found: dict[str, int] = defaultdict(int)
    for device in push.audience & among:
        steps = {step for of_device, step in push.outcomes if of_device == device}
        clicked = "CLICKED" in steps
        shown = clicked or bool(steps & {"SHOWN", "DISMISSED"})
        received = shown or "RECEIVED" in steps
        sent = received or "SENT" in steps
        done = sent if push.is_ios else received
        ending = push.endings.get(device[0])
        end = None
        if not done:
            if steps & {"FAILED", "DROPPED"}:
                end = "failed"
            elif "CANCELLED" in steps:
                end = "cancelled"
            elif "EXPIRED" in steps:
                end = "expired"
            elif ending in ("cancelled", "both"):
                end = "cancelled"
            elif ending == "finished":
                end = "expired"
        reached = {"target": True, "sent": sent, "received": received, "shown": shown, "clicked": clicked}
        for name, is_so in reached.items():
            found[name] += is_so
        if end:
            found[end] += 1
    return found


@pytest.mark.long
@given(data=st.data())
@ALWAYS
def test_broadcasts(world: World, data: st.DataObject) -> None:
    sent = data.draw(st.lists(pushes, max_size=4))
    later = {device: data.draw(st.sampled_from(INFOS)) for device in DEVICES}
    before = {device: data.draw(st.sampled_from(INFOS)) for device in DEVICES}
    appkey = world.app()
    first_id = int(appkey) * 1000
    new_records = [world.device(appkey, *d, STARTED_MS - 500, attributes={"carrier": "earlier"}) for d in DEVICES]
    new_records += [
        world.device(appkey, *d, STARTED_MS - 5, attributes={"carrier": info}) for d, info in before.items()
    ]
    world.happen(new_records)
    new_records = []
    for n, push in enumerate(sent):
        platform = Platform.PLATFORM_IOS if push.is_ios else Platform.PLATFORM_ANDROID
        msgid, at = first_id + n, STARTED_MS + n
        kind = (Kind.KIND_BROADCAST, Kind.KIND_MULTICAST)[n % 2]
        new_records.append(send(msgid, time_ms=at, kind=kind, platform=platform, appkey=appkey))
        for partition in (0, 3):
            numbers = BitMap(number for p, number in push.audience if p == partition)
            fact = PushFact(msgid=msgid, appkey=appkey, partition=partition)
            fact.meta.time_ms = at
            fact.started.audience = numbers.serialize()
            fact.started.count = len(numbers)
            new_records.append(world.record(PUSHES.name, partition, fact))
            for ending in ("cancelled", "finished"):
                if push.endings.get(partition) in (ending, "both"):
                    fact = PushFact(msgid=msgid, appkey=appkey, partition=partition)
                    getattr(fact, ending).SetInParent()
                    new_records.append(world.record(PUSHES.name, partition, fact))
        for m, ((partition, number), step) in enumerate(push.outcomes):
            value = OutcomeKind.Value(f"OUTCOME_KIND_{step}")
            apps = [app_outcomes(msgid, [number], value, at + 1000 + m, appkey=appkey)]
            new_records.append(world.record(DELIVERIES.name, partition, DeliveryFact(outcomes=Outcomes(apps=apps))))
    world.happen(new_records)
    world.happen(
        [world.device(appkey, *d, STARTED_MS + 500, attributes={"carrier": info}) for d, info in later.items()]
    )

    every = frozenset(DEVICES)
    request = StatisticsRequest(appkey=appkey, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS)
    expected = [_row(first_id, n, recount(push, every)) for n, push in enumerate(sent)]
    now_ms = STARTED_MS + 30 * DAY_MS - 1
    assert list(world.ask(request, now_ms, "UTC").broadcasts) == expected[::-1]
    for n, push in enumerate(sent):
        request.msgid = first_id + n
        request.category = Category.CATEGORY_UNSPECIFIED
        assert list(world.ask(request, now_ms, "UTC").broadcasts) == [expected[n]]
        request.category, request.info = Category.CATEGORY_CARRIER, "all"
        by_info = {info: recount(push, frozenset(d for d in DEVICES if before[d] == info)) for info in INFOS}
        rows = {info: _row(first_id, n, counts, info) for info, counts in by_info.items()}
        assert list(world.ask(request, now_ms, "UTC").broadcasts) == [r for r in rows.values() if r.target]
        request.info = "north"
        assert list(world.ask(request, now_ms, "UTC").broadcasts) == [rows["north"]]
