"""What the store knows of connections, for a start: no more of the past than can still matter."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.ingestion.attributes import ATTRIBUTES, DeviceAttributes, DictionaryEncoder, bounded, by_partition
from analytics.ingestion.connection_spans import (
    LATEST,
    MINUTE_MS,
    OPEN,
    Connection,
    Device,
    Spans,
    minute_of,
    minutes_of,
)
from analytics.store.clickhouse import ClickHouse

_ENDED_MS = 2 * 86_400_000
_BEFORE_FIRST_COUNT_MS = 2 * MINUTE_MS
_LATE_MS = 10 * MINUTE_MS

_LIVES = """
SELECT newest_ms, min(first_ms) FROM (
  SELECT toUnixTimestamp64Milli(min(minute)) AS first_ms, toUnixTimestamp64Milli(max(minute)) AS last_ms,
    max(last_ms) OVER () AS newest_ms
  FROM connection_counts GROUP BY gateway)
WHERE last_ms > newest_ms - {ended_ms:Int64} GROUP BY newest_ms
"""
_THERE = """
kind IN ('opened', 'closed') AND connection != 0 AND time >= fromUnixTimestamp64Milli({since_ms:Int64})
  AND _offset < transform(partition, {partitions:Array(UInt16)}, {ends:Array(UInt64)}, toUInt64(0))
"""
_GROUPS = f"SELECT appkey, partition, count() FROM sessions WHERE {_THERE} GROUP BY appkey, partition ORDER BY 1, 2"  # noqa: S608
_LATEST = f"""
SELECT appkey, partition, number, connection,
  toUnixTimestamp64Milli(anyIf(time, kind = 'opened')) AS opened_ms,
  countIf(kind = 'closed') > 0 AS is_closed,
  toUnixTimestamp64Milli(minIf(time, kind = 'closed')) AS closed_ms,
  anyIf(gateway, kind = 'opened') AS opened_at,
  {", ".join(f"anyIf({name}, kind = 'opened') AS opened_{name}" for name in ATTRIBUTES)}
FROM sessions FINAL
WHERE (appkey, partition) IN {{groups:Array(Tuple(String, UInt16))}} AND {_THERE}
GROUP BY appkey, partition, number, connection HAVING countIf(kind = 'opened') > 0
ORDER BY appkey, partition, number, connection DESC LIMIT 2 BY appkey, partition, number
"""  # noqa: S608


async def load(spans: Spans, attributes: DeviceAttributes, clickhouse: ClickHouse, ends: Mapping[int, int]) -> None:
    """Remember the latest connections by what was read up to these offsets of each partition of `sessions`.

    Connections of gateways that counted nothing within two days before the newest count matter no more.
    """
    if not any(ends.values()):
        return
    lives = await clickhouse.rows(_LIVES, {"ended_ms": _ENDED_MS})
    newest_ms, first_ms = lives[0] if lives else (0, 0)
    since_ms = max(0, first_ms - _BEFORE_FIRST_COUNT_MS)
    asked = {"since_ms": since_ms, "partitions": list(ends), "ends": list(ends.values())}
    late = minute_of(newest_ms - _LATE_MS)
    for groups in bounded(await clickhouse.rows(_GROUPS, asked)):
        table = await clickhouse.arrow(_LATEST, {**asked, "groups": groups})
        await asyncio.to_thread(_note_table, spans, attributes, table, late)


def _note_table(spans: Spans, attributes: DeviceAttributes, table: pa.Table, late: int) -> None:
    """`table` has one or two rows a device, the latest connection first. The one before a late one is kept too."""
    for appkey, partition, rows in by_partition(table.combine_chunks()):
        numbers = rows.column("number").to_numpy()
        latest, values = _connections(spans, attributes, rows)
        is_second = np.append(False, numbers[1:] == numbers[:-1])
        firsts, seconds = np.flatnonzero(~is_second), np.flatnonzero(is_second)
        latest["is_second"][seconds - 1] = True
        spans.note_all(appkey, partition, numbers[firsts], latest[firsts], values[firsts])
        for at in seconds[latest["opened"][seconds - 1] >= late].tolist():
            id_, opened, closed, gateway, _ = latest[at].item()
            before = Connection(id_, opened, closed, gateway, tuple(values[at].tolist()))
            spans.note_before(Device(appkey, partition, int(numbers[at])), before)


def _connections(
    spans: Spans, attributes: DeviceAttributes, rows: pa.Table
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]:
    """LATEST, and the codes of what the devices were like, of each row."""
    found = np.zeros(rows.num_rows, LATEST)
    found["id"] = rows.column("connection").to_numpy()
    found["opened"] = minutes_of(rows.column("opened_ms").to_numpy())
    is_closed = rows.column("is_closed").to_numpy()
    found["closed"] = np.where(is_closed, minutes_of(rows.column("closed_ms").to_numpy()), OPEN)
    found["gateway"] = _codes(spans.gateways, rows.column("opened_at"))
    columns = (rows.column(f"opened_{name}") for name in ATTRIBUTES)
    pairs = zip(attributes.vocabularies, columns, strict=True)
    return found, np.stack([_codes(vocabulary, column) for vocabulary, column in pairs], axis=1)


def _codes(vocabulary: DictionaryEncoder, column: pa.ChunkedArray) -> npt.NDArray[np.uint32]:
    coded = column.combine_chunks().dictionary_encode()
    codes = np.array([vocabulary.code(value) for value in coded.dictionary.to_pylist()], np.uint32)
    found: npt.NDArray[np.uint32] = codes[coded.indices.to_numpy()]
    return found
