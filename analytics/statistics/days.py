"""Days of a time zone: 24 hours, or more or fewer on days when the clocks change."""

from datetime import date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from services.runtime.errors import InputError

FIRST = date(1970, 1, 1)
LAST = date(2199, 12, 31)
MAX_DAYS = 400
"""The greatest number of days in one query."""


class Day(NamedTuple):
    """From `start_ms` up to and not including `end_ms`, in milliseconds since 1970 UTC."""

    date: str
    start_ms: int
    end_ms: int


def days_between(first: date, last: date, zone: ZoneInfo) -> list[Day]:
    """Return the days from `first` to `last`, both included. InputError: none, too many, or out of range."""
    if first > last:
        raise InputError("from is later than to")
    if first < FIRST or last > LAST:
        raise InputError(f"dates lie between {FIRST} and {LAST}")
    count = (last - first).days + 1
    if count > MAX_DAYS:
        raise InputError(f"from and to are {count} days, more than {MAX_DAYS}")
    return [_day(first + timedelta(days=after), zone) for after in range(count)]


def today(now_ms: int, zone: ZoneInfo) -> date:
    return datetime.fromtimestamp(now_ms / 1000, zone).date()


def parse_date(text: str, name: str) -> date:
    """Parse YYYY-MM-DD. InputError: the text has another form, or there is no such day."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise InputError(f"{name} must be a date like 2026-01-31")
    return day


def _day(day: date, zone: ZoneInfo) -> Day:
    return Day(day.isoformat(), _start_ms(day, zone), _start_ms(day + timedelta(days=1), zone))


def _start_ms(day: date, zone: ZoneInfo) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp() * 1000)
