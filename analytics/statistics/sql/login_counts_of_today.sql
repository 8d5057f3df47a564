-- Count the distinct devices of every window up to a day: the day's own set, and the devices of each earlier band that
-- are not in it.
SELECT info, arrayCumSum([on_day, $only]) FROM (
  SELECT info, groupBitmapMergeStateIf(devices, band = 0) AS of_day, bitmapCardinality(of_day) AS on_day,
    $bands,
    $only_counts
  FROM (
    SELECT info, band, devices FROM login_before FINAL
    WHERE appkey = {appkey:String} AND category = {category:String} AND day = {day:Date32}
      AND version = {version:UInt64}
    UNION ALL
    SELECT info, 0 AS band, devices FROM login_days
    WHERE appkey = {appkey:String} AND category = {category:String} AND day = {day:Date32})
  GROUP BY info)
