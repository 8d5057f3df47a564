-- How many milliseconds after the push each device first reached each step, in order. A later step implies the earlier
-- ones: a device acknowledges a push once its app has handled it, and the app may report before that. Of a push with more
-- than `max_outcomes` outcomes one device in `one_in` is read.
WITH
(SELECT greatest(1, intDiv(sum(greatest(rows, bitmapCardinality(devices))) + {max_outcomes:UInt64} - 1, {max_outcomes:UInt64}))
 FROM push_outcomes
 WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} AND kind IN {kinds:Array(String)}) AS one_in
SELECT one.1 AS event, toUInt32(any(one_in)) AS sampled,
  arraySort(groupArray(toInt64(greatest(0, toUnixTimestamp64Milli(one.2) - {begins_ms:Int64})))) AS times
FROM (
  SELECT
    min(time) AS sent,
    minIf(time, kind NOT IN ('sent', 'handed_over')) AS received,
    minIf(time, kind IN ('shown', 'clicked', 'dismissed')) AS shown,
    minIf(time, kind = 'clicked') AS clicked
  FROM deliveries
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} AND kind IN {kinds:Array(String)}
    AND intHash32(number) % one_in = 0
  GROUP BY msgid, partition, number)
ARRAY JOIN [('sent', sent), ('received', received), ('shown', shown), ('clicked', clicked)] AS one
WHERE toUnixTimestamp64Milli(one.2) > 0
GROUP BY event
