-- The connections of all gateways by day: sum, maximum and minimum over the minutes with a count, and their number.
SELECT roundDown(minute_ms, {starts:Array(Int64)}) AS day, sum(total), max(total), min(total), count()
FROM (
  SELECT toUnixTimestamp64Milli(minute) AS minute_ms, sum(connections) AS total
  FROM connection_counts FINAL
  WHERE appkey = {appkey:String} AND minute >= fromUnixTimestamp64Milli({start_ms:Int64})
    AND minute < fromUnixTimestamp64Milli({end_ms:Int64})
  GROUP BY minute_ms)
GROUP BY day
