-- For each kind of outcome: when the first and the latest came, and the number of devices.
WITH firsts AS (
  SELECT kind, min(time) AS first FROM deliveries
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} GROUP BY kind)
SELECT kind, toUnixTimestamp64Milli(any(firsts.first)), toUnixTimestamp64Milli(max(latest)), sum(of_partition)
FROM (
  SELECT kind, max(time) AS latest, groupBitmapMerge(devices) AS of_partition FROM push_outcomes
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64}
  GROUP BY kind, msgid, partition) AS parts
INNER JOIN firsts USING kind
GROUP BY kind
