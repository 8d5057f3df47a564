-- One row for each push and value of an attribute (`category`) in its audience.
$sets,
ended AS (
  SELECT msgid, partition, sent, received, shown, clicked, is_finished, is_cancelled, $final_sets FROM sets),
values AS (
  SELECT msgid, partition, one.1 AS info, CAST(one.2, 'AggregateFunction(groupBitmap, UInt32)') AS target
  FROM (
    SELECT msgid, partition, {category:Identifier} AS of_value FROM push_values FINAL
    WHERE appkey IN {appkeys:Array(String)} AND msgid IN {msgids:Array(UInt64)})
  ARRAY JOIN arrayZip(mapKeys(of_value), mapValues(of_value)) AS one)
SELECT msgid, info, $counts
FROM (
  SELECT *, if(is_finished OR is_cancelled, bitmapAndnotCardinality(target, settled), 0) AS unsettled
  FROM values INNER JOIN ended USING (msgid, partition))
GROUP BY msgid, info
