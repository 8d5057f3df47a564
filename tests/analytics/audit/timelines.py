"""Timelines of audits in a form that tests compare."""

from collections.abc import Iterable
from zoneinfo import ZoneInfo

from analytics.audit.details_text import details_text
from protos.analytics.v1.analytics_pb2 import ActionEntry, TimelineEntry
from tests.analytics.records import T0

ZONE = ZoneInfo("Asia/Shanghai")
Line = tuple[str, int, int, int, str]


def lines(timeline: "list[TimelineEntry]") -> list[Line]:
    """Return (event, first and last time in ms after T0, count, detail) of each entry.

    What the detail says is there as typed details too.
    """
    assert [e.detail for e in timeline] == [details_text(e.details, ZONE) for e in timeline]
    return [(e.event, e.first_ms - T0, e.last_ms - T0, e.count, e.detail) for e in timeline]


def kinds(entries: Iterable[TimelineEntry | ActionEntry]) -> list[list[str | None]]:
    """Return the kinds of the details of each entry."""
    return [[detail.WhichOneof("detail") for detail in e.details] for e in entries]
