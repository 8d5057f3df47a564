-- Changes on some gateways, by hours: an array with the change of each minute. Those before the first day of the query
-- (UTC) are one change at its midnight.
SELECT $key, toUnixTimestamp(hour) AS hour_s, sumWithOverflowForEachMerge(changes) AS by_minute
FROM connection_hours
WHERE appkey = {appkey:String} AND category = {category:String} AND gateway IN $gateways
  AND ingester IN (SELECT identity FROM ingesters FINAL)
  AND hour >= toDateTime({midnight_s:UInt32}, 'UTC') AND hour < toDateTime({end_s:UInt32}, 'UTC')
GROUP BY $key, hour_s
UNION ALL
SELECT $key, {midnight_s:UInt32} AS hour_s, [toInt32(sum(change))] AS by_minute
FROM connection_days
WHERE appkey = {appkey:String} AND category = {category:String} AND gateway IN $gateways
  AND ingester IN (SELECT identity FROM ingesters FINAL)
  AND day < toDate32(toDateTime({midnight_s:UInt32}, 'UTC'))
GROUP BY $key
