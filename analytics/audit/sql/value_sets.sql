-- The audience of a broadcast or multicast by the values of a category, as bitmaps, by message id and partition. That
-- of a push to a list is not divided.
SELECT msgid, partition, one.1 AS info, CAST(one.2, 'AggregateFunction(groupBitmap, UInt32)') AS of_value
FROM (
  SELECT msgid, partition, {category:Identifier} AS sets FROM push_values FINAL
  WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND NOT {is_listed:Bool})
ARRAY JOIN arrayZip(mapKeys(sets), mapValues(sets)) AS one
