-- Devices by value and day of their first registration; with a cumulative count also those before the first day.
SELECT info, toInt64({before_ms:Int64}) AS day, count() FROM (
  SELECT $info AS info FROM registrations
  WHERE appkey = {appkey:String} AND registered < fromUnixTimestamp64Milli({start_ms:Int64})
    AND {is_cumulative:Bool} AND $condition)
GROUP BY info
UNION ALL
SELECT $info AS info, roundDown(toUnixTimestamp64Milli(registered), {starts:Array(Int64)}) AS day, count()
FROM registrations
WHERE appkey = {appkey:String} AND registered >= fromUnixTimestamp64Milli({start_ms:Int64})
  AND registered < fromUnixTimestamp64Milli({end_ms:Int64}) AND $condition
GROUP BY info, day
