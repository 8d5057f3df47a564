-- One row for each value of an attribute (`column`) in the audience of one push.
$sets,
ended AS (
  SELECT partition, sent, received, shown, clicked, is_finished, is_cancelled, $final_sets FROM sets),
values AS (
  SELECT partition, one.1 AS info, CAST(one.2, 'AggregateFunction(groupBitmap, UInt32)') AS target
  FROM (
    SELECT partition, {column:Identifier} AS of_value FROM push_values FINAL
    WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)})
  ARRAY JOIN arrayZip(mapKeys(of_value), mapValues(of_value)) AS one
  WHERE NOT {is_one:Bool} OR info = {info:String})
SELECT info, $counts
FROM (
  SELECT *, if(is_finished OR is_cancelled, bitmapAndnotCardinality(target, settled), 0) AS unsettled
  FROM values INNER JOIN ended USING partition)
GROUP BY info ORDER BY info
