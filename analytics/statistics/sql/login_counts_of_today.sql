-- Count the distinct devices of every window up to a day: the day's own set, and the devices of each earlier band that
-- are not in it. Values of the category without earlier log-ins have the band 0. A set may be stored twice.
SELECT info, arrayCumSum([max(on_day), $bands]) FROM (
  SELECT info, band, bitmapCardinality(of_day) AS on_day, bitmapAndnotCardinality(devices, of_day) AS only
  FROM (
    SELECT info, band, devices FROM login_before
    WHERE appkey = {appkey:String} AND category = {category:String} AND day = {day:Date32}
      AND version = {version:UInt64}) AS before
  FULL JOIN (
    SELECT info, groupBitmapMergeState(devices) AS of_day FROM login_days
    WHERE appkey = {appkey:String} AND category = {category:String} AND day = {day:Date32}
    GROUP BY info) AS that_day USING info)
GROUP BY info
