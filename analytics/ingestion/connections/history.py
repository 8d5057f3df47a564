"""Loads the latest connections from the store when the ingestion starts, no further back than they matter."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.ingestion.attributes import CountedAttributes, DictionaryEncoder, attributes_of, bounded, by_partition
from analytics.ingestion.connections.spans import (
    LATEST,
    MINUTE_MS,
    OPEN,
    SETTLES_MS,
    ConnectionSpan,
    LatestConnections,
    NumberedDevice,
    minutes_of,
)
from analytics.store.clickhouse import ClickHouse
from analytics.store.columns import ATTRIBUTES
from analytics.store.sql import sql

_ENDED_MS = 2 * 86_400_000
_BEFORE_FIRST_COUNT_MS = 2 * MINUTE_MS
_LATE_MS = 10 * MINUTE_MS

_READ = """
kind IN ('opened', 'closed') AND connection != 0 AND time >= fromUnixTimestamp64Milli({since_ms:Int64})
  AND _offset < transform(partition, {partitions:Array(UInt16)}, {ends:Array(UInt64)}, toUInt64(0))
"""
_GROUPS = f"SELECT appkey, partition, count() FROM sessions WHERE {_READ} GROUP BY appkey, partition ORDER BY 1, 2"  # noqa: S608
_ATTRIBUTES = ", ".join(f"anyIf({name}, kind = 'opened') AS opened_{name}" for name in ATTRIBUTES)


async def load(
    connections: LatestConnections, attributes: CountedAttributes, clickhouse: ClickHouse, ends: Mapping[int, int]
) -> None:
    """Load the latest connections from records of `sessions` before these offsets of each partition.

    Gateways without a count within two days before the newest count are taken as gone, and their connections with them.
    """
    if not any(ends.values()):
        return
    lives = await clickhouse.rows(sql(__package__, "gateway_lives"), {"ended_ms": _ENDED_MS})
    newest_ms, first_ms = lives[0] if lives else (0, 0)
    since_ms = max(0, first_ms - _BEFORE_FIRST_COUNT_MS)
    parameters = {"since_ms": since_ms, "partitions": list(ends), "ends": list(ends.values())}
    latest = sql(__package__, "latest_connections", attributes=_ATTRIBUTES, read=_READ)
    settled = sql(__package__, "settled_connections", attributes=", ".join(ATTRIBUTES), read=_READ)
    for groups in bounded(await clickhouse.rows(_GROUPS, parameters)):
        table = await clickhouse.arrow(latest, {**parameters, "groups": groups})
        await asyncio.to_thread(_note_table, connections, attributes, table, newest_ms - _LATE_MS)
        changed = await clickhouse.rows(settled, {**parameters, "groups": groups, "settles_ms": SETTLES_MS})
        for appkey, partition, number, connection, *values in changed:
            codes = attributes.codes_for(attributes_of(values))
            connections.settle(NumberedDevice(appkey, partition, number), connection, tuple(codes))


def _note_table(connections: LatestConnections, attributes: CountedAttributes, table: pa.Table, late_ms: int) -> None:
    """Store one or two rows a device, the latest connection first; the second only if the latest opened late."""
    for appkey, partition, rows in by_partition(table.combine_chunks()):
        numbers = rows.column("number").to_numpy()
        latest, values = _spans(connections, attributes, rows)
        is_second = np.append(False, numbers[1:] == numbers[:-1])
        firsts, seconds = np.flatnonzero(~is_second), np.flatnonzero(is_second)
        latest["is_second"][seconds - 1] = True
        connections.note_all(appkey, partition, numbers[firsts], latest[firsts], values[firsts])
        for index in seconds[latest["opened_ms"][seconds - 1] >= late_ms].tolist():
            id_, opened_ms, closed, gateway, _ = latest[index].item()
            before = ConnectionSpan(id_, opened_ms, closed, gateway, tuple(values[index].tolist()))
            connections.note_before(NumberedDevice(appkey, partition, int(numbers[index])), before)


def _spans(
    connections: LatestConnections, attributes: CountedAttributes, rows: pa.Table
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]:
    """Return each row's connection as LATEST, and the codes of its device's attributes."""
    found = np.zeros(rows.num_rows, LATEST)
    found["id"] = rows.column("connection").to_numpy()
    found["opened_ms"] = rows.column("opened_ms").to_numpy()
    is_closed = rows.column("is_closed").to_numpy()
    found["closed"] = np.where(is_closed, minutes_of(rows.column("closed_ms").to_numpy()), OPEN)
    found["gateway"] = _codes(connections.gateways, rows.column("opened_at"))
    columns = (rows.column(f"opened_{name}") for name in ATTRIBUTES)
    pairs = zip(attributes.encoders, columns, strict=True)
    return found, np.stack([_codes(encoder, column) for encoder, column in pairs], axis=1)


def _codes(encoder: DictionaryEncoder, column: pa.ChunkedArray) -> npt.NDArray[np.uint32]:
    encoded = column.combine_chunks().dictionary_encode()
    codes = np.array([encoder.code(value) for value in encoded.dictionary.to_pylist()], np.uint32)
    found: npt.NDArray[np.uint32] = codes[encoded.indices.to_numpy()]
    return found
