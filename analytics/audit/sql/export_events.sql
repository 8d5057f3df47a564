-- The audience and the outcomes of a push, one row for each device and event. Of a list that is stored twice the first
-- one counts.
SELECT partition, number, msgid, toString(kind) AS kind, toString(reason) AS reason,
  toUnixTimestamp64Milli(time) AS time_ms, _offset, _index, toString(via) AS via, simulated AS by_simulator
FROM deliveries WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64}
UNION ALL
SELECT partition, arrayJoin(bitmapToArray(devices)) AS number, msgid, 'audience' AS kind, '' AS reason,
  toInt64(0) AS time_ms, toUInt64(0) AS _offset, toUInt32(0) AS _index, '' AS via, false AS by_simulator
FROM push_audiences
WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND NOT {is_listed:Bool}
UNION ALL
SELECT target.1 AS partition, target.2 AS number, of_push + target.3 AS msgid, 'audience' AS kind, '' AS reason,
  toInt64(0) AS time_ms, toUInt64(0) AS _offset, toUInt32(0) AS _index, '' AS via, false AS by_simulator
FROM (SELECT pushes.msgid AS of_push, arrayJoin(arrayZip(target_partitions, target_numbers, target_offsets)) AS target
  FROM pushes FINAL WHERE msgid = {push:UInt64} AND appkey = {appkey:String} AND {is_listed:Bool})
WHERE of_push + target.3 BETWEEN {first:UInt64} AND {last:UInt64}
