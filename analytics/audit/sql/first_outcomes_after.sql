-- How many milliseconds after the push each device had its first outcome of each kind, in order. Of a push with more than
-- `looked_at` outcomes one device in `one_in` is looked at.
WITH
(SELECT greatest(1, intDiv(sum(greatest(rows, bitmapCardinality(devices))) + {looked_at:UInt64} - 1, {looked_at:UInt64}))
 FROM push_outcomes
 WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} AND kind IN {kinds:Array(String)}) AS one_in
SELECT toString(kind) AS event, toUInt32(any(one_in)) AS sampled, arraySort(groupArray(after_ms)) AS times
FROM (
  SELECT kind, toInt64(greatest(0, toUnixTimestamp64Milli(min(time)) - {begins_ms:Int64})) AS after_ms
  FROM deliveries
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} AND kind IN {kinds:Array(String)}
    AND intHash32(number) % one_in = 0
  GROUP BY kind, msgid, partition, number)
GROUP BY kind
