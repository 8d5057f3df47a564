"""Date ranges and moments around changes of the clocks, for tests that recount statistics in plain Python."""

from datetime import date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from protos.analytics.v1.analytics_pb2 import (
    StatisticsKind,
    StatisticsRequest,
)
from protos.gateway.v1.sessions_pb2 import SessionEvent, SessionEventKind
from testkit.examples import examples
from tests.analytics.statistics.sync_store import ZONES, dates

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
EXAMPLES = settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))

Device = tuple[int, int]


class DateRange(NamedTuple):
    """Dates in a zone, around a day on which its clocks change."""

    zone: str
    first: date
    last: date

    @property
    def dates(self) -> list[date]:
        return [self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1)]

    def on(self, day: date) -> "DateRange":
        """Return one of the dates as a range."""
        return DateRange(self.zone, day, day)

    def day_of(self, time_ms: int) -> date:
        return datetime.fromtimestamp(time_ms / 1000, ZoneInfo(self.zone)).date()

    def ms(self, day: date) -> int:
        """Return the day's noon in milliseconds."""
        return int(datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo(self.zone)).timestamp()) * 1000

    def request(self, appkey: str, kind: StatisticsKind.ValueType) -> StatisticsRequest:
        return StatisticsRequest(appkey=appkey, kind=kind, dates=dates(self.first.isoformat(), self.last.isoformat()))


@st.composite
def date_ranges(draw: st.DrawFn, longest: int = 5) -> DateRange:
    zone = draw(st.sampled_from(ZONES))
    first = CHANGES[zone] + timedelta(days=draw(st.integers(-longest, 0)))
    return DateRange(zone, first, first + timedelta(days=draw(st.integers(0, longest))))


def moments(period: DateRange, before_days: int = 2, after_days: int = 2) -> st.SearchStrategy[int]:
    """Draw times in milliseconds, often within a minute of the start of a day."""
    low, high = period.ms(period.first) - before_days * DAY_MS, period.ms(period.last) + after_days * DAY_MS
    zone = ZoneInfo(period.zone)
    midnights = [int(datetime(d.year, d.month, d.day, tzinfo=zone).timestamp()) * 1000 for d in period.dates]
    near = st.builds(
        lambda at, off: at + off, st.sampled_from(midnights), st.integers(-2, 2) | st.integers(-4_000_000, 4_000_000)
    )
    return near | st.integers(low, high)


def session_event(appkey: str, device: Device, kind: str, time_ms: int, connection: int) -> SessionEvent:
    return SessionEvent(
        appkey=appkey,
        number=device[1],
        kind=SessionEventKind.Value(f"SESSION_EVENT_KIND_{kind}"),
        time_ms=time_ms,
        connection=connection,
    )
