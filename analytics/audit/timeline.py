"""Entries of a timeline, their order, and the parts of their text."""

from collections.abc import Iterable
from datetime import datetime
from zoneinfo import ZoneInfo

from protos.analytics.v1.analytics_pb2 import TimelineEntry

_ORDER = {
    event: rank
    for rank, event in enumerate(
        (
            *("registered", "task scheduled", "app paused", "all apps paused", "task paused"),
            *("app resumed", "all apps resumed", "task expired"),
            *("task fell due", "task sent", "task failed", "task cancelled"),
            *("command", "audience"),
            *("connected", "sent", "received", "shown", "clicked", "dismissed", "failed", "dropped"),
            *("cancel command", "push cancelled", "cancelled", "expired", "finished", "push failed"),
        )
    )
}


def entry(event: str, first_ms: int, last_ms: int | None = None, count: int = 1, detail: str = "") -> TimelineEntry:
    """Return an entry of an event that happened once, or `count` times up to `last_ms`; times in ms since 1970 UTC."""
    last = first_ms if last_ms is None else last_ms
    return TimelineEntry(first_ms=first_ms, last_ms=last, event=event, count=count, detail=detail)


def of_message(event: str, time_ms: int, msgid: int, reason: str = "", what: str = "message") -> TimelineEntry:
    """Return an entry of one device about one of its messages, or about a push; time in ms since 1970 UTC."""
    detail = comma_joined(f"{what} {msgid}", reason)
    return TimelineEntry(
        first_ms=time_ms, last_ms=time_ms, event=event, count=1, detail=detail, msgid=msgid, reason=reason
    )


def by_time(entries: Iterable[TimelineEntry]) -> list[TimelineEntry]:
    """Sort entries by time; entries of the same time by the order in which such events happen."""
    return sorted(entries, key=lambda e: (e.first_ms, _ORDER.get(e.event.removeprefix("message "), len(_ORDER))))


def origin_text(writer: str, interface: str, address: str, request_id: str) -> str:
    """Return the origin of a command, for example `through v2 from 10.0.0.1, request 4f2a`."""
    if not interface:
        return f"by {writer}" if writer else ""
    text = f"through {interface}" + (f" from {address}" if address else "")
    return f"{text}, request {request_id}" if request_id else text


def time_text(time_ms: int, zone: ZoneInfo) -> str:
    """Return a time for the detail of an entry."""
    return datetime.fromtimestamp(time_ms / 1000, zone).strftime("%Y-%m-%d %H:%M:%S %Z")


def comma_joined(*parts: str) -> str:
    """Join the parts that are not empty."""
    return ", ".join(part for part in parts if part)
