-- One row for each device of a push's audience and message id: its state, the reason of it, and when what happened.
-- What exceeds the memory limits of the settings goes to the disk.
WITH
(SELECT groupUniqArray(partition) FROM push_partitions
 WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND event = 'cancelled') AS cancelled_in,
(SELECT groupUniqArray(partition) FROM push_partitions
 WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND event = 'finished') AS finished_in,
(SELECT groupUniqArray(partition) FROM push_partitions
 WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND event = 'failed') AS failed_in
SELECT $token AS token, number, partition, msgid,
  multiIf({is_unknown:Bool}, 'unknown', $states, has(cancelled_in, partition), 'cancelled',
    has(finished_in, partition), 'expired', has(failed_in, partition), 'failed', has(kinds, 'sent'), 'sent', 'pending') AS state,
  $reason AS reason, $times, $channel AS channel, simulated
FROM (
  SELECT partition, number, msgid, groupUniqArray(if(kind = 'dismissed', 'shown', kind)) AS kinds,
    arrayMap(r -> (r.1, r.2), arraySort(r -> (r.3, r.4),
      groupArrayIf((kind, reason, _offset, _index), reason != ''))) AS reasons,
    $first_times,
    anyIf(via, kind = 'handed_over') AS handed_to,
    max(by_simulator AND kind IN ('sent', 'handed_over')) AS simulated
  FROM ($events) GROUP BY partition, number, msgid HAVING has(kinds, 'audience')) AS happened
LEFT JOIN (
  SELECT partition, number, any(token) AS token FROM device_tokens
  WHERE appkey = {appkey:String} GROUP BY partition, number) AS known USING (partition, number)
SETTINGS engine_file_truncate_on_insert = 1, max_bytes_before_external_group_by = 268435456,
  join_algorithm = 'grace_hash', max_bytes_in_join = 268435456, max_threads = 2, format_csv_null_representation = '',
  output_format_parquet_row_group_size = 100000, output_format_parquet_string_as_string = 1
