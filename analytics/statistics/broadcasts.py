"""Counts of broadcasts and multicasts: their audience, the devices they reached, and how they ended for the others.

A device that reported a later step counts for the earlier ones too. A device is done with a push when it has received
it (Android) or when it was sent to it (iOS). A device that is done counts as none of failed, expired and cancelled;
any other device of the audience counts as at most one of them, or is still pending.

With a category, a device counts under the value it had when the start of the push was ingested, so the values add up to
the audience. If the outcomes of a push have outlived their retention, only its audience is counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from analytics.store.retention import outcomes_since_ms
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import BroadcastRow, ChannelCounts
from services.domain.statistics_rows import BROADCAST_COUNTS, CHANNEL_COUNTS, OWN_CHANNELS
from services.errors import Code, NotFoundError

# Counts of broadcasts, whole or by the values of an attribute, stored with a version so that later queries read them.
#
# Merging the sets of devices of a thousand broadcasts takes long with millions of devices, and so does dividing those
# of one broadcast by the values of an attribute; nothing changes any more in most of them. The version of a push is
# the number of outcomes and of events that its counts were made of: any further one makes them invalid. It is read
# before the sets, so that counts may be newer than their version and are then made once more, but never older. A
# store that is filled from the log again forgets its stored counts, as devices may have other attributes then.

_VERSIONS = """
SELECT msgid, [sum(outcomes), sum(sets), sum(events) + sum(served), sum(audiences), sum(divided)], sum(served)
FROM (
  SELECT msgid, sum(rows) AS outcomes, uniqExact(kind, partition) AS sets, 0 AS events, 0 AS audiences, 0 AS divided,
    0 AS served
  FROM push_outcomes WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)} GROUP BY msgid
  UNION ALL
  SELECT msgid, 0, 0, uniqExact(event, partition), 0, 0, 0
  FROM push_partitions WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)} GROUP BY msgid
  UNION ALL
  SELECT msgid, 0, 0, 0, uniqExact(partition), 0, 0
  FROM push_audiences WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)} GROUP BY msgid
  UNION ALL
  SELECT msgid, 0, 0, 0, 0, uniqExact(partition), 0
  FROM push_values
  WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)} AND {category:String} != ''
  GROUP BY msgid
  UNION ALL
  SELECT msgid, 0, 0, 0, 0, 0, sum(rows)
  FROM push_channels WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)} GROUP BY msgid)
GROUP BY msgid
"""
_STORED = """
SELECT msgid, info, version, counts, channels, channel_counts FROM broadcast_counts FINAL
WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)} AND category = {category:String}
"""
_TABLE = pa.schema(
    [
        ("appkey", pa.string()),
        ("msgid", pa.uint64()),
        ("category", pa.string()),
        ("info", pa.string()),
        ("version", pa.list_(pa.uint64())),
        ("counts", pa.list_(pa.uint64())),
        ("channels", pa.list_(pa.string())),
        ("channel_counts", pa.list_(pa.list_(pa.uint64()))),
    ]
)


class CountedPush(NamedTuple):
    """A push whose devices are counted; message ids are unique in an installation."""

    appkey: str
    msgid: int
    sent_ms: int
    platform: str


class ValueCounts(NamedTuple):
    """Counts of devices of a push, for one value of the category. `of_columns`: one count for each column of the table.
    `of_channels`: each push service that was sent the push, with five numbers: 1 if a simulator answered in its place,
    and the devices to which the push was sent, and which have received, shown and clicked it.
    """

    of_columns: Sequence[int] = ()
    of_channels: Sequence[tuple[str, Sequence[int]]] = ()


Counts = dict[int, dict[str, ValueCounts]]
"""By message id and value of the category; a push without an audience and without outcomes is left out."""


async def broadcast_counts(clickhouse: ClickHouse, pushes: Sequence[CountedPush], category: str = "") -> Counts:
    """Return the counts of pushes by the values of a category; without one, all devices have the value "".

    Counts that are not stored or have changed are made and stored.
    """
    if not pushes:
        return {}
    parameters = {
        "appkeys": sorted({push.appkey for push in pushes}),
        "msgids": [push.msgid for push in pushes],
        "ios": [push.msgid for push in pushes if push.platform == "ios"],
        "category": category,
    }
    found = await clickhouse.rows(_VERSIONS, parameters)
    versions = {msgid: list(version) for msgid, version, _ in found}
    counts: Counts = {}
    for msgid, info, version, of_columns, channels, of_channels in await clickhouse.rows(_STORED, parameters):
        if versions.get(msgid) == list(version):
            pairs = [*zip(channels, of_channels, strict=True)]
            counts.setdefault(msgid, {})[info] = ValueCounts(of_columns, pairs)
    changed = [msgid for msgid in versions if msgid not in counts]
    if changed:
        new = await _counted(clickhouse, {**parameters, "msgids": changed})
        if served := [msgid for msgid, _, outcomes in found if outcomes and msgid in new]:
            await _count_channels(clickhouse, {**parameters, "msgids": served}, new)
        await _store(clickhouse, pushes, category, versions, new)
        counts |= new
    return counts


async def _counted(clickhouse: ClickHouse, parameters: Mapping[str, Any]) -> Counts:
    """Return the counts from the sets of devices."""
    parts = {part: sql(__package__, f"broadcast_{part}") for part in ("sets", "final_sets", "counts", "values")}
    query = sql(__package__, "broadcasts_by_value" if parameters["category"] else "broadcasts_whole", **parts)
    counts: Counts = {}
    for msgid, info, *of_columns in await clickhouse.rows(query, parameters):
        counts.setdefault(msgid, {})[info] = ValueCounts(of_columns)
    return counts


async def _count_channels(clickhouse: ClickHouse, parameters: Mapping[str, Any], counts: Counts) -> None:
    """Add the counts of each push service that was sent one of the pushes."""
    targets = sql(__package__, "broadcast_values" if parameters["category"] else "broadcast_audiences")
    query = sql(__package__, "broadcast_channels", sets=sql(__package__, "broadcast_sets"), targets=targets)
    for msgid, info, channel, *of_channel in await clickhouse.rows(query, parameters):
        of_value = counts[msgid].get(info)
        if of_value is not None:
            pairs = [*of_value.of_channels, (channel, of_channel)]
            counts[msgid][info] = of_value._replace(of_channels=pairs)


async def _store(
    clickhouse: ClickHouse,
    pushes: Sequence[CountedPush],
    category: str,
    versions: Mapping[int, Sequence[int]],
    counts: Counts,
) -> None:
    appkeys = {push.msgid: push.appkey for push in pushes}
    rows = [
        {
            "appkey": appkeys[msgid],
            "msgid": msgid,
            "category": category,
            "info": info,
            "version": versions[msgid],
            "counts": of_value.of_columns,
            "channels": [channel for channel, _ in of_value.of_channels],
            "channel_counts": [of_channel for _, of_channel in of_value.of_channels],
        }
        for msgid, of_push in counts.items()
        for info, of_value in of_push.items()
    ]
    if rows:
        await clickhouse.store_rows("broadcast_counts", pa.Table.from_pylist(rows, schema=_TABLE))


LISTED_DAYS_MS = 30 * 86_400_000
"""Of a list without days."""

_ONE = """
SELECT msgid, toUnixTimestamp64Milli(time), platform FROM pushes FINAL
WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} AND kind != 'unicast'
"""


async def broadcasts(clickhouse: ClickHouse, query: StatisticsQuery) -> list[BroadcastRow]:
    """Return the list, newest first; or the broadcast of a message id, with a category one row for each value.

    NotFoundError: the app has no broadcast with the message id.
    """
    since_ms = await outcomes_since_ms(clickhouse)
    if query.msgid is None:
        latest = (query.now_ms - LISTED_DAYS_MS + 1, query.now_ms + LISTED_DAYS_MS)
        begin_ms, end_ms = (query.start_ms, query.end_ms) if query.days else latest
        parameters = {"appkey": query.appkey, "begin_ms": begin_ms, "end_ms": end_ms}
        found = await clickhouse.rows(sql(__package__, "broadcast_list"), parameters)
        rows = await counted(clickhouse, [CountedPush(query.appkey, *row) for row in found])
        return [row if row.sent_ms >= since_ms else _without_outcomes(row) for row in rows]
    found = await clickhouse.rows(_ONE, {"appkey": query.appkey, "msgid": query.msgid})
    if not found:
        raise NotFoundError(Code.NO_SUCH_BROADCAST, msgid=str(query.msgid))
    push = CountedPush(query.appkey, *found[0])
    rows = await _by_value(clickhouse, query, push) if query.category else await counted(clickhouse, [push])
    return rows if push.sent_ms >= since_ms else [_without_outcomes(row) for row in rows]


def _without_outcomes(row: BroadcastRow) -> BroadcastRow:
    """Return the row of a push whose outcomes are not kept any more: their remains would not add up."""
    return BroadcastRow(msgid=row.msgid, sent_ms=row.sent_ms, info=_info(row), target=row.target)


async def counted(clickhouse: ClickHouse, pushes: Sequence[CountedPush]) -> list[BroadcastRow]:
    """Return the counts of each push, in the same order."""
    counts = await broadcast_counts(clickhouse, pushes)
    return [_row(push, counts.get(push.msgid, {}).get("", ValueCounts())) for push in pushes]


async def _by_value(clickhouse: ClickHouse, query: StatisticsQuery, push: CountedPush) -> list[BroadcastRow]:
    counts = await broadcast_counts(clickhouse, [push], query.category)
    of_values = counts.get(push.msgid, {})
    infos = sorted(of_values) if query.info is None else [query.info]
    return [_row(push, of_values.get(info, ValueCounts()), info) for info in infos]


def _info(row: BroadcastRow) -> str | None:
    return row.info if row.HasField("info") else None


def _row(push: CountedPush, counts: ValueCounts, info: str | None = None) -> BroadcastRow:
    of_columns: Any = dict(zip(BROADCAST_COUNTS, counts.of_columns, strict=False))
    row = BroadcastRow(msgid=push.msgid, sent_ms=push.sent_ms, info=info, **of_columns)
    whole = ChannelCounts(**{name: getattr(row, name) for name in CHANNEL_COUNTS})
    row.channels.extend(with_the_rest(push.platform, whole, channel_rows(counts.of_channels)))
    return row


# The counts of a push by channel. A push service has the devices that it was handed; the app's own way the others.


def channel_rows(found: Iterable[tuple[str, Sequence[int]]]) -> list[ChannelCounts]:
    """Return the counts of each push service: 1 for a simulator, then the counts of CHANNEL_COUNTS."""
    rows = []
    for channel, (is_simulated, *counts) in found:
        of_columns: Any = dict(zip(CHANNEL_COUNTS, counts, strict=True))
        rows.append(ChannelCounts(channel=channel, simulated=bool(is_simulated), **of_columns))
    return rows


def with_the_rest(platform: str, whole: ChannelCounts, services: Sequence[ChannelCounts]) -> list[ChannelCounts]:
    """Return the counts by channel: first the devices of no service (own connections, or Apple for iOS), then each
    service.

    Return nothing if no service has any device: then the whole push left by its platform's own channel. A device is
    handed over to one service only.
    """
    served = [service for service in services if service.sent]
    if not served:
        return []
    left = {name: max(0, getattr(whole, name) - sum(getattr(each, name) for each in served)) for name in CHANNEL_COUNTS}
    rest = ChannelCounts(channel=OWN_CHANNELS[platform], **left)
    return [*([rest] if rest.sent else []), *served]
