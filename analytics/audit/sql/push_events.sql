-- The audience and the outcomes of a push as bitmaps, by message id and partition. A list of devices has an audience for
-- each message id. A timed push that was sent twice may have another list the second time; FINAL: the first one counts.
SELECT msgid, partition, 'audience' AS event, devices FROM push_audiences
WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND NOT {is_listed:Bool}
UNION ALL
SELECT msgid + target.3 AS id, target.1 AS partition, 'audience' AS event, groupBitmapState(target.2) AS devices
FROM pushes FINAL ARRAY JOIN arrayZip(target_partitions, target_numbers, target_offsets) AS target
WHERE msgid = {push:UInt64} AND appkey = {appkey:String} AND {is_listed:Bool}
GROUP BY id, partition
UNION ALL
SELECT msgid, partition, if(kind = 'dismissed', 'shown', toString(kind)) AS event, devices FROM push_outcomes
WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64}
