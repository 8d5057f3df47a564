-- For each kind of outcome, when the first came.
SELECT kind, toUnixTimestamp64Milli(min(time)) FROM deliveries
WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} GROUP BY kind
