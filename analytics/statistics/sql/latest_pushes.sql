-- The latest broadcasts and multicasts of some apps. A push that is stored twice may have its words in one row alone.
SELECT any(appkey) AS app, msgid, toUnixTimestamp64Milli(min(time)) AS sent_ms, any(platform), max(title) AS heading,
  max(text) AS beginning
FROM broadcasts
WHERE appkey IN {appkeys:Array(String)} AND time >= fromUnixTimestamp64Milli({from_ms:Int64})
  AND time <= fromUnixTimestamp64Milli({to_ms:Int64})
GROUP BY msgid
HAVING (sent_ms, msgid) < ({to_ms:Int64}, {below_msgid:UInt64}) AND ({words:String} = ''
  OR positionCaseInsensitiveUTF8(heading, {words:String}) > 0
  OR positionCaseInsensitiveUTF8(beginning, {words:String}) > 0)
ORDER BY sent_ms DESC, msgid DESC LIMIT {limit:UInt32}
