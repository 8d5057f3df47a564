-- The next receipts of each partition from a position on, at most `most` of each. Arrays hold one value for each
-- partition of the installation, in order; a partition whose end is 0 has none.
SELECT partition, _offset, _index, msgid, number, toUnixTimestamp64Milli(time) FROM acks
WHERE appkey = {appkey:String} AND time > fromUnixTimestamp64Milli({kept_ms:Int64})
  AND _offset >= {first:UInt64} AND _offset < {end:UInt64}
  AND _offset < {ends:Array(UInt64)}[partition + 1]
  AND (_offset, _index) >= ({offsets:Array(UInt64)}[partition + 1], {rows:Array(UInt32)}[partition + 1])
ORDER BY partition, _offset, _index LIMIT {most:UInt32} BY partition
