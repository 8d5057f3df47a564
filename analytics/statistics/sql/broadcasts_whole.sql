-- One row a push.
$sets
SELECT msgid, $counts
FROM (
  SELECT *, audience AS target, $final_sets,
    if(is_finished OR is_cancelled, bitmapAndnotCardinality(target, settled), 0) AS unsettled
  FROM sets)
GROUP BY msgid
