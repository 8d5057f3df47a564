-- The devices of a push's audience as bitmaps, by message id, partition and state. `until_N` are the devices with one of
-- the first N states of the precedence; devices with none of them take the state of the push in their partition, or are
-- sent or pending.
WITH
(SELECT groupUniqArray(partition) FROM push_partitions
 WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND event = 'cancelled') AS cancelled_in,
(SELECT groupUniqArray(partition) FROM push_partitions
 WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND event = 'finished') AS finished_in,
(SELECT groupUniqArray(partition) FROM push_partitions
 WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND event = 'failed') AS failed_in,
parts AS (
  SELECT msgid, partition,
    multiIf(has(cancelled_in, partition), 'cancelled', has(finished_in, partition), 'expired',
      has(failed_in, partition), 'failed', '') AS ending,
    groupBitmapMergeStateIf(devices, event = 'audience') AS audience,
    groupBitmapMergeStateIf(devices, event = 'sent') AS were_sent,
    $unions
  FROM ($events) WHERE msgid BETWEEN {first:UInt64} AND {last:UInt64} GROUP BY msgid, partition),
states AS (
  SELECT msgid, partition, one.1 AS state, one.2 AS devices
  FROM parts ARRAY JOIN [$states] AS one)
