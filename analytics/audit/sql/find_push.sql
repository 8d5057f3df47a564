-- The push that has a message id: its first one or another of its list.
SELECT
  msgid, last_msgid, appkey, kind, audience, base64Encode(filter), base64Encode(audience_summary), request_json,
  toUnixTimestamp64Milli(time), task_key, writer, interface, address, request_id, platform,
  toUnixTimestamp64Milli(erased)
FROM {table:Identifier} FINAL
WHERE msgid BETWEEN {lowest:UInt64} AND {msgid:UInt64} AND last_msgid >= {msgid:UInt64}
ORDER BY msgid DESC LIMIT 1
