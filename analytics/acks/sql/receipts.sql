-- The next receipts of each partition from a position on, at most `most` of each. Arrays hold one value a partition.
SELECT partition, _offset, _index, msgid, number, toUnixTimestamp64Milli(time) FROM acks
WHERE appkey = {appkey:String} AND time > fromUnixTimestamp64Milli({kept_ms:Int64})
  AND partition IN {partitions:Array(UInt16)} AND _offset >= {first:UInt64} AND _offset < {end:UInt64}
  AND _offset < transform(partition, {partitions:Array(UInt16)}, {ends:Array(UInt64)}, 0)
  AND (_offset, _index) >= (
    transform(partition, {partitions:Array(UInt16)}, {offsets:Array(UInt64)}, 0),
    transform(partition, {partitions:Array(UInt16)}, {rows:Array(UInt32)}, 0))
ORDER BY partition, _offset, _index LIMIT {most:UInt32} BY partition
