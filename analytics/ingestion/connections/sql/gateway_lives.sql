-- Of gateways that counted connections lately: the time of the newest count, and of the earliest.
SELECT newest_ms, min(first_ms) FROM (
  SELECT toUnixTimestamp64Milli(min(minute)) AS first_ms, toUnixTimestamp64Milli(max(minute)) AS last_ms,
    max(last_ms) OVER () AS newest_ms
  FROM connection_counts GROUP BY gateway)
WHERE last_ms > newest_ms - {ended_ms:Int64} GROUP BY newest_ms
