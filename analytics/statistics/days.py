"""Days of a time zone: 24 hours, or 23 or 25 where the clocks change."""

from datetime import date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from services.runtime.errors import InputError

FIRST = date(1970, 1, 1)
LAST = date(2199, 12, 31)
MOST = 400
"""Days that one question may span."""


class Day(NamedTuple):
    """From `start_ms` up to but without `end_ms`, milliseconds since 1970 UTC."""

    date: str
    start_ms: int
    end_ms: int


def days_between(first: date, last: date, zone: ZoneInfo) -> list[Day]:
    """Both included. InputError: there are none, too many, or they lie outside of what the store can tell apart."""
    if first > last:
        raise InputError("from is later than to")
    if first < FIRST or last > LAST:
        raise InputError(f"dates lie between {FIRST} and {LAST}")
    count = (last - first).days + 1
    if count > MOST:
        raise InputError(f"from and to are {count} days, more than {MOST}")
    return [_day(first + timedelta(days=after), zone) for after in range(count)]


def today(now_ms: int, zone: ZoneInfo) -> date:
    return datetime.fromtimestamp(now_ms / 1000, zone).date()


def parsed(text: str, name: str) -> date:
    """InputError: not YYYY-MM-DD, or no such day."""
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
