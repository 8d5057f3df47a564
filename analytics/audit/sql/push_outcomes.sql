-- For each kind of outcome: when the first and the latest came, and the number of devices.
SELECT kind, toUnixTimestamp64Milli(min(earliest)), toUnixTimestamp64Milli(max(latest)), sum(of_partition)
FROM (
  SELECT kind, min(first) AS earliest, max(time) AS latest, groupBitmapMerge(devices) AS of_partition
  FROM push_outcomes
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64}
  GROUP BY kind, msgid, partition)
GROUP BY kind
