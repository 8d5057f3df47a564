-- The audience of each push by the values of an attribute (`category`), as bitmaps.
SELECT msgid, partition, one.1 AS info, CAST(one.2, 'AggregateFunction(groupBitmap, UInt32)') AS target
FROM (
  SELECT msgid, partition, {category:Identifier} AS of_value FROM push_values FINAL
  WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)})
ARRAY JOIN arrayZip(mapKeys(of_value), mapValues(of_value)) AS one
