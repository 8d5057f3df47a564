"""The table of refused requests."""

from analytics.ingestion.tables.row_source import EVENT_ID, POSITION, RowSource
from analytics.store.columns import BOOL, TEXT, TIME, UINT16, UINT32, Column, Row, Table
from protos.runtime.v1.refusals_pb2 import Refusal, RefusalFact
from services.log.port import Record

REFUSED_REQUESTS_TABLE = Table[RowSource[Refusal]](
    "refused_requests",
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("time", TIME, lambda row: row.part.time_ms),
    Column("interface", TEXT, lambda row: row.part.origin.interface),
    Column("call", TEXT, lambda row: row.part.call),
    Column("result", UINT16, lambda row: min(row.part.result, 999)),
    Column("answer", TEXT, lambda row: row.part.answer),
    Column("code", TEXT, lambda row: row.part.code),
    Column("address", TEXT, lambda row: row.part.origin.address),
    Column("is_signed", BOOL, lambda row: row.part.is_signed),
    Column("left_out", UINT32, lambda row: row.part.left_out),
    EVENT_ID,
    *POSITION,
)


def refusal_rows(record: Record, message: RefusalFact) -> list[Row]:
    """Return a row for each refused request of a record."""
    return [
        REFUSED_REQUESTS_TABLE.row(RowSource(record, message.meta, refusal, index))
        for index, refusal in enumerate(message.refusals.refusals)
    ]
