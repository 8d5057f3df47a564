"""Timelines of audits in a form that tests compare."""

from protos.analytics.v1.analytics_pb2 import TimelineEntry
from tests.roles.analytics.records import T0

Line = tuple[str, int, int, int, str]


def lines(timeline: "list[TimelineEntry]") -> list[Line]:
    """Return (event, first and last time in ms after T0, count, detail) of each entry."""
    return [(e.event, e.first_ms - T0, e.last_ms - T0, e.count, e.detail) for e in timeline]
