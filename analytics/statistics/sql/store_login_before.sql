-- Store the devices that logged in before a day, each in the band of its latest log-in.
INSERT INTO login_before (appkey, category, day, info, band, version, devices)
WITH bands AS (
  SELECT info, arrayCount(window -> window <= dateDiff('day', day, {day:Date32}), $windows) AS band,
    groupBitmapMergeState(devices) AS devices
  FROM login_days
  WHERE appkey = {appkey:String} AND category = {category:String}
    AND day > {day:Date32} - $longest AND day < {day:Date32}
  GROUP BY info, band)
SELECT {appkey:String}, {category:String}, {day:Date32}, info, band, {version:UInt64},
  bitmapAndnot(devices, groupBitmapMergeState(devices) OVER (
    PARTITION BY info ORDER BY band ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
FROM bands
