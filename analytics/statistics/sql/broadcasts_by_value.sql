-- One row for each push and value of an attribute (`category`) in its audience.
$sets,
ended AS (
  SELECT msgid, partition, sent, received, shown, clicked, is_finished, is_cancelled, $final_sets FROM sets),
values AS ($values)
SELECT msgid, info, $counts
FROM (
  SELECT *, if(is_finished OR is_cancelled, bitmapAndnotCardinality(target, settled), 0) AS unsettled
  FROM values INNER JOIN ended USING (msgid, partition))
GROUP BY msgid, info
