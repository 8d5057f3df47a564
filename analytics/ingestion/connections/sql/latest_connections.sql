-- The two latest connections of each device whose opening was read, the latest first.
SELECT appkey, partition, number, connection,
  toUnixTimestamp64Milli(anyIf(time, kind = 'opened')) AS opened_ms,
  countIf(kind = 'closed') > 0 AS is_closed,
  toUnixTimestamp64Milli(minIf(time, kind = 'closed')) AS closed_ms,
  anyIf(gateway, kind = 'opened') AS opened_at,
  $attributes
FROM sessions FINAL
WHERE (appkey, partition) IN {groups:Array(Tuple(String, UInt16))} AND $read
GROUP BY appkey, partition, number, connection HAVING countIf(kind = 'opened') > 0
ORDER BY appkey, partition, number, connection DESC LIMIT 2 BY appkey, partition, number
