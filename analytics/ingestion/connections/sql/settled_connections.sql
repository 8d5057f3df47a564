-- The connections whose devices changed their attributes after the opening and until {settles_ms} after it, in the order of
-- the log: the last change of a connection counts.
SELECT appkey, partition, number, connection, $attributes
FROM (
  SELECT appkey, partition, number, connection, time AS opened, _offset AS opened_offset FROM sessions FINAL
  WHERE (appkey, partition) IN {groups:Array(Tuple(String, UInt16))} AND kind = 'opened' AND $read) AS openings
INNER JOIN (
  SELECT appkey, partition, number, $attributes, time AS changed, _offset AS changed_offset
  FROM attribute_changes FINAL
  WHERE (appkey, partition) IN {groups:Array(Tuple(String, UInt16))}
    AND time >= fromUnixTimestamp64Milli({since_ms:Int64})
    AND _offset < transform(partition, {partitions:Array(UInt16)}, {ends:Array(UInt64)}, toUInt64(0))) AS changes
USING (appkey, partition, number)
WHERE changed_offset > opened_offset
  AND toUnixTimestamp64Milli(changed) <= toUnixTimestamp64Milli(opened) + {settles_ms:Int64}
ORDER BY changed_offset
