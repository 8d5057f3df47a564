-- Devices of a push's audience by state and reason.
$sets,
explained AS (
  SELECT state, bitmapCardinality(states.devices) AS total,
    arrayMap(r -> (r.1, bitmapAndCardinality(states.devices, r.2)), reasons) AS with_reason
  FROM states LEFT JOIN ($reasons) AS given USING (msgid, partition, state))
SELECT state, one.1 AS reason, sum(one.2) AS devices
FROM explained ARRAY JOIN arrayPushBack(with_reason, ('', toUInt64(total - arraySum(r -> r.2, with_reason)))) AS one
GROUP BY state, reason HAVING devices > 0 ORDER BY devices DESC, reason
