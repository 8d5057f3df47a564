-- One row a push, with the value '' for all its devices.
$sets
SELECT msgid, '' AS info, $counts
FROM (
  SELECT *, audience AS target, $final_sets,
    if(is_finished OR is_cancelled, bitmapAndnotCardinality(target, settled), 0) AS unsettled
  FROM sets)
GROUP BY msgid
