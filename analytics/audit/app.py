"""The audit of an app: its pushes, cancels, timed tasks, settings, and changes of devices, each with its origin."""

from base64 import b64decode
from typing import NamedTuple
from zoneinfo import ZoneInfo

from analytics.audit.details import origins, push_kind, texts
from analytics.audit.details_text import read_summary
from analytics.audit.timeline import entry, with_texts
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import AuditAppResponse, TimelineEntry
from protos.analytics.v1.details_pb2 import Detail, Remark
from services.errors import Code, InputError, NotFoundError

_KNOWN = """
SELECT 1 FROM app_changes WHERE appkey = {appkey:String} LIMIT 1
UNION ALL SELECT 1 FROM pushes WHERE appkey = {appkey:String} LIMIT 1
UNION ALL SELECT 1 FROM devices WHERE appkey = {appkey:String} LIMIT 1
"""


class TimeRange(NamedTuple):
    """From `from_ms` up to and not including `to_ms`, in milliseconds since 1970 UTC."""

    from_ms: int
    to_ms: int


class AppEvent(NamedTuple):
    """A row of the app's timeline; `filter` and `audience_summary`, which only pushes have, are in base64.

    `entry_count`: the devices in the audience of a push, otherwise how often the event happened.
    """

    time_ms: int
    id: str
    event: str
    entry_count: int
    msgid: int
    push_kind: str
    filter: str
    audience_summary: str
    task_key: str
    text: str
    is_hourly: bool
    writer: str
    interface: str
    address: str
    request_id: str


async def audit_app(
    clickhouse: ClickHouse, appkey: str, time_range: TimeRange, pos: str, limit: int, zone: ZoneInfo
) -> AuditAppResponse:
    """Return a page, ascending by time.

    InputError: `pos` is not the position of an earlier page. NotFoundError: the store has nothing of such an app.
    """
    after_ms, after = _position(pos)
    parameters = {"appkey": appkey, **time_range._asdict(), "after_ms": after_ms, "after": after, "limit": limit + 1}
    rows = await clickhouse.rows(sql(__package__, "app_timeline"), parameters)
    if not rows and not await clickhouse.rows(_KNOWN, {"appkey": appkey}):
        raise NotFoundError(Code.LOG_WITHOUT_APP, appkey=appkey)
    page = rows[:limit]
    following = f"{page[-1][0]}/{page[-1][1]}" if len(rows) > limit else ""
    entries = [_entry(AppEvent(*row)) for row in page]
    return AuditAppResponse(timeline=with_texts(entries, zone), pos=following)


def _entry(event: AppEvent) -> TimelineEntry:
    details = [
        *([Detail(push=event.msgid)] if event.msgid else []),
        *(_audience(event) if event.push_kind else []),
        *([Detail(task=event.task_key)] if event.task_key else []),
        *texts(event.text),
        *([Detail(remark=Remark.REMARK_WITHIN_HOUR)] if event.is_hourly else []),
        *origins(event.writer, event.interface, event.address, event.request_id),
    ]
    return entry(event.event, event.time_ms, count=event.entry_count, details=details)


def _audience(event: AppEvent) -> list[Detail]:
    summary = read_summary(b64decode(event.audience_summary), b64decode(event.filter))
    return [push_kind(event.push_kind), Detail(audience=summary)]


def _position(pos: str) -> tuple[int, str]:
    if not pos:
        return -1, ""
    time_ms, _, row = pos.partition("/")
    if not time_ms.isascii() or not time_ms.isdecimal() or len(time_ms) > 15 or not row:
        raise InputError("pos is not a position that a page gave")
    return int(time_ms), row
