"""The audit of an app: its pushes, cancels, timed tasks, settings, and changes of devices, each with its origin."""

from typing import NamedTuple

from analytics.audit.timeline import comma_joined, entry, origin_text
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import AuditAppResponse, TimelineEntry
from services.runtime.errors import InputError, NotFoundError

_KNOWN = """
SELECT 1 FROM app_changes WHERE appkey = {appkey:String} LIMIT 1
UNION ALL SELECT 1 FROM pushes WHERE appkey = {appkey:String} LIMIT 1
UNION ALL SELECT 1 FROM devices WHERE appkey = {appkey:String} LIMIT 1
"""


class TimeRange(NamedTuple):
    """From `from_ms` up to and not including `to_ms`, in milliseconds since 1970 UTC."""

    from_ms: int
    to_ms: int


async def audit_app(
    clickhouse: ClickHouse, appkey: str, time_range: TimeRange, pos: str, limit: int
) -> AuditAppResponse:
    """Return a page, ascending by time.

    InputError: `pos` is not the position of an earlier page. NotFoundError: the store has nothing of such an app.
    """
    after_ms, after = _position(pos)
    parameters = {"appkey": appkey, **time_range._asdict(), "after_ms": after_ms, "after": after, "limit": limit + 1}
    rows = await clickhouse.rows(sql(__package__, "app_timeline"), parameters)
    if not rows and not await clickhouse.rows(_KNOWN, {"appkey": appkey}):
        raise NotFoundError(f"the event log knows no app with the appkey {appkey!r}")
    page = rows[:limit]
    following = f"{page[-1][0]}/{page[-1][1]}" if len(rows) > limit else ""
    return AuditAppResponse(timeline=[_entry(*row) for row in page], pos=following)


def _entry(time_ms: int, _: str, event: str, count: int, what: str, *origin: str) -> TimelineEntry:
    return entry(event, time_ms, count=count, detail=comma_joined(what, origin_text(*origin)))


def _position(pos: str) -> tuple[int, str]:
    if not pos:
        return -1, ""
    time_ms, _, row = pos.partition("/")
    if not time_ms.isascii() or not time_ms.isdecimal() or len(time_ms) > 15 or not row:
        raise InputError("pos is not a position that a page gave")
    return int(time_ms), row
