"""The latest requests of an app's servers that were refused."""

from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import ListRefusalsResponse, RefusedRequest

MAX_REFUSALS = 1_000
"""Refusals that are listed of an app."""


async def list_refusals(clickhouse: ClickHouse, appkey: str, limit: int) -> ListRefusalsResponse:
    """Return the latest refusals of the last 30 days, the newest first."""
    rows = await clickhouse.rows(sql(__package__, "refusals"), {"appkey": appkey, "limit": min(limit, MAX_REFUSALS)})
    names = ("time_ms", "interface", "call", "result", "answer", "code", "address", "is_signed", "left_out")
    return ListRefusalsResponse(refusals=[RefusedRequest(**dict(zip(names, row, strict=True))) for row in rows])
