-- The latest broadcasts and multicasts of an app in a time.
SELECT msgid, toUnixTimestamp64Milli(min(time)) AS sent_ms, any(platform)
FROM broadcasts WHERE appkey = {appkey:String} AND time >= fromUnixTimestamp64Milli({begin_ms:Int64})
  AND time < fromUnixTimestamp64Milli({end_ms:Int64})
GROUP BY msgid ORDER BY sent_ms DESC, msgid DESC LIMIT 1000
