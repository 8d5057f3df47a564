-- The ten most frequent reasons for each kind of outcome.
SELECT kind, reason, sum(devices) AS total
FROM (
  SELECT kind, reason, groupBitmap(number) AS devices FROM deliveries
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} AND reason != ''
  GROUP BY kind, reason, msgid, partition)
GROUP BY kind, reason ORDER BY total DESC, reason LIMIT 10 BY kind
