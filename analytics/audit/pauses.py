"""The pauses that held while a push could be sent: why it waited, in the push's timeline."""

from collections.abc import Iterable
from typing import NamedTuple

from analytics.audit.details.parts import origins, texts
from analytics.audit.timeline import entry
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import TimelineEntry


class _Change(NamedTuple):
    """A pause or its end; `appkey` is empty for all apps at once, `reason` is the operator's."""

    appkey: str
    action: str
    time_ms: int
    reason: str
    origin: tuple[str, ...]


async def pause_entries(clickhouse: ClickHouse, appkey: str, from_ms: int, until_ms: int) -> list[TimelineEntry]:
    """Return the pauses and resumes of the app and of all apps whose pause held at some time in the span.

    A pause from before the span is included if it still held at its start.
    """
    rows = await clickhouse.rows(sql(__package__, "pauses"), {"appkey": appkey, "until_ms": until_ms})
    changes = [_Change(of, action, time_ms, reason, tuple(origin)) for of, action, time_ms, reason, *origin in rows]
    before = {change.appkey: change for change in changes if change.time_ms < from_ms}
    holding = [change for change in before.values() if change.action == "paused"]
    return list(_entries([*holding, *(change for change in changes if change.time_ms >= from_ms)]))


def _entries(changes: Iterable[_Change]) -> Iterable[TimelineEntry]:
    for change in changes:
        whose = "app" if change.appkey else "all apps"
        details = [*texts(change.reason), *origins(*change.origin)]
        yield entry(f"{whose} {change.action}", change.time_ms, details=details)
