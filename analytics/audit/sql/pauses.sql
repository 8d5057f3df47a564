-- The pauses of an app and of all apps, and their ends, up to a time.
SELECT appkey, action, toUnixTimestamp64Milli(time), detail, writer, interface, address, request_id
FROM app_changes FINAL
WHERE appkey IN ({appkey:String}, '') AND action IN ('paused', 'resumed')
  AND time <= fromUnixTimestamp64Milli({until_ms:Int64})
ORDER BY time
