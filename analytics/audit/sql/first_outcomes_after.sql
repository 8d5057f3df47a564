-- How many milliseconds after the push each device, or one in so many, had its first outcome of each kind.
SELECT kind, toUInt64(greatest(0, toUnixTimestamp64Milli(min(time)) - {begins_ms:Int64})) AS after_ms FROM deliveries
WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} AND kind IN {kinds:Array(String)}
  AND intHash32(number) % {one_in:UInt32} = 0
GROUP BY kind, msgid, partition, number
