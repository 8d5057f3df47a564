-- For each kind of outcome that the service of a channel is asked for or decides, but for those that `push_channels` has:
-- the channel, empty for Apple's, whether a simulator was in its place, and the number of devices.
SELECT kind, toString(via), simulated, sum(devices)
FROM (
  SELECT kind, via, simulated, groupBitmap(number) AS devices FROM deliveries
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64}
    AND kind IN ('claimed', 'returned', 'failed') AND (via != '' OR simulated)
  GROUP BY kind, via, simulated, msgid, partition)
GROUP BY kind, via, simulated ORDER BY kind, via, simulated
