-- Records of a push that are in the log more than once, by event.
SELECT event, toUnixTimestamp64Milli(min(last)), toUnixTimestamp64Milli(max(last)), sum(records) - count(), count()
FROM (
  SELECT event, max(time) AS last, count() AS records FROM push_records FINAL
  WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} GROUP BY event, _partition HAVING records > 1)
GROUP BY event
