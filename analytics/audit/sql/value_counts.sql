-- Devices of a push's audience by value of a category, state and reason.
$sets,
explained AS (
  SELECT info, state, bitmapAnd(states.devices, of_value) AS chosen, bitmapCardinality(chosen) AS total,
    arrayMap(r -> (r.1, bitmapAndCardinality(chosen, r.2)), reasons) AS with_reason
  FROM states INNER JOIN ($values) AS divided USING (msgid, partition)
  LEFT JOIN ($reasons) AS given USING (msgid, partition, state))
SELECT info, state, one.1 AS reason, sum(one.2) AS devices
FROM explained ARRAY JOIN arrayPushBack(with_reason, ('', toUInt64(total - arraySum(r -> r.2, with_reason)))) AS one
GROUP BY info, state, reason HAVING devices > 0 ORDER BY info, devices DESC, reason
