-- Changes on some gateways; changes before the start are added up at the start.
SELECT info, gateway, greatest(toUnixTimestamp(minute), {start_s:UInt32}) AS at_s, change
FROM connection_changes
WHERE appkey = {appkey:String} AND category = {category:String} AND gateway IN $gateways
  AND reader IN (SELECT identity FROM readers FINAL)
  AND minute >= toDateTime({midnight_s:UInt32}, 'UTC') AND minute < toDateTime({end_s:UInt32}, 'UTC')
UNION ALL
SELECT info, gateway, {start_s:UInt32} AS at_s, change
FROM connection_days
WHERE appkey = {appkey:String} AND category = {category:String} AND gateway IN $gateways
  AND reader IN (SELECT identity FROM readers FINAL)
  AND day < toDate32(toDateTime({midnight_s:UInt32}, 'UTC'))
