-- For each push and partition, the devices of its audience and of each outcome as bitmaps. A later step implies the
-- earlier ones.
WITH sets AS (
  SELECT msgid, partition,
    has({ios:Array(UInt64)}, msgid) AS is_ios,
    max(event = 'cancelled') AS is_cancelled, max(event = 'finished') AS is_finished,
    groupBitmapMergeStateIf(devices, event = 'audience') AS audience,
    groupBitmapMergeStateIf(devices, event = 'clicked') AS clicked,
    groupBitmapMergeStateIf(devices, event IN ('shown', 'clicked', 'dismissed')) AS shown,
    groupBitmapMergeStateIf(devices, event IN ('received', 'shown', 'clicked', 'dismissed')) AS received,
    groupBitmapMergeStateIf(devices, event IN ('sent', 'handed_over', 'received', 'shown', 'clicked', 'dismissed')) AS sent,
    groupBitmapMergeStateIf(devices, event IN ('handed_over', 'received', 'shown', 'clicked', 'dismissed')) AS taken_over,
    if(is_ios, sent, taken_over) AS done,
    groupBitmapMergeStateIf(devices, event IN ('failed', 'dropped')) AS failed,
    groupBitmapMergeStateIf(devices, event = 'expired') AS expired,
    groupBitmapMergeStateIf(devices, event = 'cancelled_device') AS cancelled
  FROM (
    SELECT msgid, partition, 'audience' AS event, devices FROM push_audiences
    WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)}
    UNION ALL
    SELECT msgid, partition, if(kind = 'cancelled', 'cancelled_device', toString(kind)) AS event, devices
    FROM push_outcomes WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)}
    UNION ALL
    SELECT msgid, partition, toString(event) AS event, bitmapBuild(emptyArrayUInt32()) AS devices FROM push_partitions
    WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)} AND event IN ('cancelled', 'finished'))
  GROUP BY msgid, partition)
