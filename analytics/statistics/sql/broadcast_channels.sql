-- For each push, value and push service: whether it was a simulator, and the devices of `target` that it was sent the
-- push for, with their receipts. The services come by name.
$sets,
targets AS ($targets),
served AS (
  SELECT msgid, partition, toString(via) AS channel, toUInt64(simulated) AS is_simulated,
    groupBitmapMergeState(devices) AS devices
  FROM push_channels WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)}
  GROUP BY msgid, partition, channel, is_simulated)
SELECT msgid, info, channel, is_simulated,
  sum(bitmapAndCardinality(chosen, sent)), sum(bitmapAndCardinality(chosen, received)),
  sum(bitmapAndCardinality(chosen, shown)), sum(bitmapAndCardinality(chosen, clicked))
FROM (
  SELECT msgid, partition, info, channel, is_simulated, bitmapAnd(target, devices) AS chosen
  FROM served INNER JOIN targets USING (msgid, partition)) AS found
INNER JOIN sets USING (msgid, partition)
GROUP BY msgid, info, channel, is_simulated ORDER BY msgid, info, channel, is_simulated
