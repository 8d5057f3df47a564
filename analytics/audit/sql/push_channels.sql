-- For all devices of a push's audience ('' as the channel), then by push service: whether it was a simulator, and the
-- devices that it was sent the push for, with their receipts. A later outcome implies the earlier ones.
WITH reached AS (
  SELECT msgid, partition,
    groupBitmapMergeStateIf(devices, event = 'audience') AS audience,
    groupBitmapMergeStateIf(devices, event = 'clicked') AS clicked,
    groupBitmapMergeStateIf(devices, event IN ('shown', 'clicked')) AS shown,
    groupBitmapMergeStateIf(devices, event IN ('received', 'shown', 'clicked')) AS received,
    groupBitmapMergeStateIf(devices, event IN ('sent', 'handed_over', 'received', 'shown', 'clicked')) AS sent
  FROM ($events) WHERE msgid BETWEEN {first:UInt64} AND {last:UInt64} GROUP BY msgid, partition),
served AS (
  SELECT msgid, partition, toString(via) AS channel, toUInt64(simulated) AS is_simulated,
    groupBitmapMergeState(devices) AS by_channel
  FROM push_channels
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64}
  GROUP BY msgid, partition, channel, is_simulated
  UNION ALL
  SELECT msgid, partition, '' AS channel, toUInt64(0) AS is_simulated, audience AS by_channel FROM reached)
SELECT channel, is_simulated,
  sum(bitmapAndCardinality(chosen, sent)), sum(bitmapAndCardinality(chosen, received)),
  sum(bitmapAndCardinality(chosen, shown)), sum(bitmapAndCardinality(chosen, clicked))
FROM (
  SELECT channel, is_simulated, sent, received, shown, clicked, bitmapAnd(audience, by_channel) AS chosen
  FROM served INNER JOIN reached USING (msgid, partition))
GROUP BY channel, is_simulated ORDER BY channel, is_simulated
