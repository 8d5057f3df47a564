"""Export of a push: its state on each device of its audience, as a file that ClickHouse writes."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from analytics.audit.find_push import PushRecord
from analytics.audit.states import UNKNOWN, state_counts, state_precedence
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import ExportFormat
from services.domain.statistics_rows import OWN_CHANNELS
from services.domain.text import FORMULA_STARTS

FORMATS = {ExportFormat.EXPORT_FORMAT_CSV: "CSVWithNames", ExportFormat.EXPORT_FORMAT_PARQUET: "Parquet"}

_TIMES = (
    *("sent", "received", "shown", "clicked", "dismissed", "failed", "dropped", "cancelled", "expired"),
    "handed_over",
)

_IS_SENT = "hasAny(kinds, ['sent', 'received', 'shown', 'clicked'])"


class Export(NamedTuple):
    """The number of rows in the file, and its pieces; the file is written when the first piece is read."""

    rows: int
    pieces: AsyncIterator[bytes]


@asynccontextmanager
async def export(
    clickhouse: ClickHouse, push: PushRecord, msgid: int, file_format: str, zone: ZoneInfo
) -> AsyncIterator[Export]:
    """Export the whole push, or one message of its list; `file_format` is a value of FORMATS."""
    first, last = (push.msgid, push.last_msgid) if msgid == push.msgid else (msgid, msgid)
    is_listed = push.kind == "unicast"
    of_push = (clickhouse, push.appkey, push.msgid, push.platform)
    counts = await state_counts(*of_push, is_listed=is_listed, first=first, last=last)
    parameters: dict[str, Any] = {
        **{"appkey": push.appkey, "push": push.msgid, "is_listed": is_listed, "first": first, "last": last},
        **{"zone": zone.key, "is_unknown": any(count.state == UNKNOWN for count in counts)},
    }
    async with aclosing(
        _pieces(clickhouse, _export_query(push.platform, file_format), parameters, file_format)
    ) as pieces:
        yield Export(sum(count.devices for count in counts), pieces)


async def _pieces(
    clickhouse: ClickHouse, query: str, parameters: Mapping[str, Any], file_format: str
) -> AsyncGenerator[bytes, None]:
    async with clickhouse.file(query, parameters, file_format) as pieces:
        async for piece in pieces:
            yield piece


def _export_query(platform: str, file_format: str) -> str:
    """Return the query of a file. In CSV no text may be a formula: devices and Apple write some of the texts."""
    text = _no_formula if file_format == FORMATS[ExportFormat.EXPORT_FORMAT_CSV] else str
    times = (
        f"if({kind}_ms = 0, NULL, fromUnixTimestamp64Milli({kind}_ms, {{zone:String}})) AS {kind}" for kind in _TIMES
    )
    return sql(
        __package__,
        "export",
        token=text("known.token"),
        reason=text("arrayFirst(r -> r.1 = state, reasons).2"),
        states=", ".join(f"has(kinds, '{state}'), '{state}'" for state in state_precedence(platform)),
        times=", ".join(times),
        channel=f"multiIf(handed_to != '', handed_to, {_IS_SENT}, '{OWN_CHANNELS[platform]}', '')",
        first_times=", ".join(f"minIf(time_ms, kind = '{kind}') AS {kind}_ms" for kind in _TIMES),
        events=sql(__package__, "export_events"),
    )


def _no_formula(text: str) -> str:
    """Return the SQL expression of a text that spreadsheets do not take for a formula: after an apostrophe."""
    starts = ", ".join(f"char({', '.join(map(str, start.encode()))})" for start in FORMULA_STARTS)
    return f"concat(if(substringUTF8({text}, 1, 1) IN ({starts}), '\\'', ''), {text})"
