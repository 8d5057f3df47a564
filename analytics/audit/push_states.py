"""In which state each device of a push's audience is: in exactly one, so the counts always add up to the audience.

It is the first of the push's ladder that the log says of the device, wherever in the log it stands: a receipt counts
more than any end, however late it comes. The cancel of a push, or its finish, ends whoever is left in a partition. All
others are sent or pending.

What is left of a push that is older than its outcomes are kept tells nothing, so there every device is unknown.

In a list of devices each message id has an audience of its own: a device counts once for each message id it has.
"""

from collections.abc import Iterator

from analytics.store.clickhouse import ClickHouse
from analytics.store.retention import outlived_days
from protos.analytics.v1.analytics_pb2 import StateCount

STATES = ("pending", "sent", "received", "shown", "clicked", "failed", "dropped", "cancelled", "expired")
"""In the order in which they are told."""

UNKNOWN = "unknown"

_REACHED = ("clicked", "shown", "received")
_ENDED = ("failed", "dropped", "cancelled", "expired")
LADDER = (*_REACHED, *_ENDED)
"""The first of these that the log says of a device is its state."""

LADDER_IOS = (*_REACHED, "sent", *_ENDED)
"""iOS devices confirm nothing: there, sent is the end."""

_ENDED_IN = """
(SELECT groupUniqArray(partition) FROM push_partitions
 WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND event = 'cancelled') AS cancelled_in,
(SELECT groupUniqArray(partition) FROM push_partitions
 WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND event = 'finished') AS finished_in
"""
_EVENTS = """
SELECT msgid, partition, 'audience' AS event, devices FROM push_audiences
WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND NOT {is_listed:Bool}
UNION ALL
SELECT msgid + target.3 AS id, target.1 AS partition, 'audience' AS event, groupBitmapState(target.2) AS devices
FROM pushes ARRAY JOIN arrayZip(target_partitions, target_numbers, target_offsets) AS target
WHERE msgid = {push:UInt64} AND appkey = {appkey:String} AND {is_listed:Bool}
GROUP BY id, partition
UNION ALL
SELECT msgid, partition, if(kind = 'dismissed', 'shown', toString(kind)) AS event, devices FROM push_outcomes
WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64}
"""
_REASONS = """
SELECT msgid, partition, state, groupArray((reason_given, devices)) AS reasons
FROM (
  SELECT msgid, partition, state, reason_given, groupBitmapState(number) AS devices
  FROM (
    SELECT msgid, partition, number, toString(kind) AS state,
      argMin(toString(reason), (_offset, _index)) AS reason_given
    FROM deliveries
    WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} AND kind IN {ended:Array(String)}
    GROUP BY msgid, partition, number, state)
  WHERE reason_given != ''
  GROUP BY msgid, partition, state, reason_given)
GROUP BY msgid, partition, state
"""


async def states(
    clickhouse: ClickHouse, appkey: str, push: int, platform: str, *, is_listed: bool, first: int, last: int
) -> list[StateCount]:
    """Of the push's message ids from `first` to `last`; the most frequent reason of a state comes first."""
    parameters = {
        **{"appkey": appkey, "push": push, "is_listed": is_listed, "first": first, "last": last},
        "ended": list(_ENDED),
    }
    rows = await clickhouse.rows(_sql(LADDER_IOS if platform == "ios" else LADDER), parameters)
    counts = [StateCount(state=state, reason=reason, devices=devices) for state, reason, devices in rows]
    if counts and (days := await outlived_days(clickhouse, appkey, push)):
        reason = f"outcomes are kept for {days} days"
        return [StateCount(state=UNKNOWN, reason=reason, devices=sum(count.devices for count in counts))]
    return sorted(counts, key=lambda count: STATES.index(count.state))


def _sql(ladder: tuple[str, ...]) -> str:
    unions = (
        f"groupBitmapMergeStateIf(devices, event IN {ladder[:rung]}) AS until_{rung}"
        for rung in range(1, len(ladder) + 1)
    )
    return f"""
WITH {_ENDED_IN},
parts AS (
  SELECT msgid, partition,
    multiIf(has(cancelled_in, partition), 'cancelled', has(finished_in, partition), 'expired', '') AS ending,
    groupBitmapMergeStateIf(devices, event = 'audience') AS audience,
    groupBitmapMergeStateIf(devices, event = 'sent') AS were_sent,
    {", ".join(unions)}
  FROM ({_EVENTS}) WHERE msgid BETWEEN {{first:UInt64}} AND {{last:UInt64}} GROUP BY msgid, partition),
states AS (
  SELECT msgid, partition, one.1 AS state, one.2 AS devices
  FROM parts ARRAY JOIN [{", ".join(_states(ladder))}] AS one),
explained AS (
  SELECT state, bitmapCardinality(states.devices) AS total,
    arrayMap(r -> (r.1, bitmapAndCardinality(states.devices, r.2)), reasons) AS with_reason
  FROM states LEFT JOIN ({_REASONS}) AS given USING (msgid, partition, state))
SELECT state, one.1 AS reason, sum(one.2) AS devices
FROM explained ARRAY JOIN arrayPushBack(with_reason, ('', toUInt64(total - arraySum(r -> r.2, with_reason)))) AS one
GROUP BY state, reason HAVING devices > 0 ORDER BY devices DESC, reason
"""  # noqa: S608


def _states(ladder: tuple[str, ...]) -> Iterator[str]:
    """Pairs of a state and its devices; no device is in two of them, and all of the audience is in one."""
    yield f"('{ladder[0]}', bitmapAnd(audience, until_1))"
    for rung, state in enumerate(ladder[1:], 2):
        yield f"('{state}', bitmapAnd(audience, bitmapAndnot(until_{rung}, until_{rung - 1})))"
    left = f"bitmapAndnot(audience, until_{len(ladder)})"
    yield f"(if(ending = '', 'sent', ending), bitmapAnd({left}, were_sent))"
    yield f"(if(ending = '', 'pending', ending), bitmapAndnot({left}, were_sent))"
