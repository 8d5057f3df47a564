-- Count the distinct devices of every window up to some dates, and store the counts with their versions. `band` is the
-- number of windows that a day is too old for; the sets of the bands are merged from the shortest window to the longest.
INSERT INTO login_counts (appkey, category, day, info, counts, version)
WITH bands AS (
  SELECT info, place.1 AS date, arrayCount(window -> window <= place.2, $windows) AS band,
    groupBitmapMergeState(devices) AS devices
  FROM login_days ARRAY JOIN arrayMap(age -> (day + age, age), arrayFilter(
    age -> has({dates:Array(Date32)}, day + age), range($longest))) AS place
  WHERE appkey = {appkey:String} AND category = {category:String}
    AND day > {first:Date32} - $longest AND day <= {last:Date32}
  GROUP BY info, date, band),
since AS (
  SELECT info, date, band, groupBitmapMergeState(devices) OVER (
    PARTITION BY info, date ORDER BY band ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS devices
  FROM bands)
SELECT {appkey:String}, {category:String}, date, info,
  [$counts],
  arrayElement({versions:Array(UInt64)}, indexOf({dates:Array(Date32)}, date))
FROM since GROUP BY info, date
