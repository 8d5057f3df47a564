-- The latest broadcasts and multicasts of an app.
SELECT msgid, toUnixTimestamp64Milli(min(time)) AS sent_ms, any(platform)
FROM broadcasts WHERE appkey = {appkey:String} AND time > fromUnixTimestamp64Milli({since_ms:Int64})
GROUP BY msgid ORDER BY sent_ms DESC, msgid DESC LIMIT 1000
