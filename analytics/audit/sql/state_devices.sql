-- The next devices of `$of_states` with a state and reason, after a message id, partition and device number.
$sets
SELECT msgid, partition, arrayJoin(bitmapToArray(bitmapSubsetLimit(chosen, first_number, {limit:UInt32}))) AS number
FROM (
  SELECT msgid, partition,
    if((msgid, partition) = ({after_msgid:UInt64}, {after_partition:UInt16}), {after_number:UInt32} + 1, 0) AS first_number,
    if({reason:String} = '', bitmapAndnot(states.devices, given.devices), bitmapAnd(states.devices, given.devices)) AS chosen
  FROM $of_states AS states LEFT JOIN (
    SELECT msgid, partition, state, groupBitmapMergeState(one.2) AS devices
    FROM ($reasons) ARRAY JOIN reasons AS one
    WHERE state = {state:String} AND ({reason:String} = '' OR one.1 = {reason:String})
    GROUP BY msgid, partition, state) AS given USING (msgid, partition, state)
  WHERE state = {state:String} AND (msgid, partition) >= ({after_msgid:UInt64}, {after_partition:UInt16}))
ORDER BY msgid, partition, number LIMIT {limit:UInt32}
