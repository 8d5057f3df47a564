-- One page of everything that happened to an app in a span of time: pushes, cancels, timed tasks, settings, requests of
-- the app server about devices, and all other changes of devices, counted by hour. A command to all devices of the app
-- is a record without a token in each partition, and counts once.
SELECT time_ms, id, event, entry_count, push, push_kind, base64Encode(audience_filter),
  base64Encode(summary), of_task, change, is_hourly, writer, interface, address, request_id
FROM (
  SELECT toUnixTimestamp64Milli(time) AS time_ms, concat('push ', toString(msgid)) AS id, 'push' AS event,
    if(kind = 'unicast', length(target_numbers), sizes.devices) AS entry_count, msgid AS push,
    toString(kind) AS push_kind, filter AS audience_filter, audience_summary AS summary,
    task_key AS of_task, '' AS change, false AS is_hourly, writer, interface, address, request_id
  FROM (
    SELECT * FROM pushes FINAL
    WHERE appkey = {appkey:String} AND time >= fromUnixTimestamp64Milli({from_ms:Int64})
      AND time < fromUnixTimestamp64Milli({to_ms:Int64})) AS accepted
  LEFT JOIN (
    SELECT msgid, sum(count) AS devices FROM push_partitions FINAL
    WHERE appkey = {appkey:String} AND event = 'started' GROUP BY msgid) AS sizes USING (msgid)
  UNION ALL
  SELECT toUnixTimestamp64Milli(time) AS time_ms, concat('cancel ', hex(_event_id)) AS id, 'cancel push' AS event,
    1 AS entry_count, msgid AS push, '' AS push_kind, '' AS audience_filter, '' AS summary,
    '' AS of_task, '' AS change, false AS is_hourly, writer, interface, address, request_id
  FROM push_cancels FINAL
  WHERE appkey = {appkey:String} AND time >= fromUnixTimestamp64Milli({from_ms:Int64})
    AND time < fromUnixTimestamp64Milli({to_ms:Int64})
  UNION ALL
  SELECT toUnixTimestamp64Milli(time) AS time_ms, concat('task ', task_key, ' ', event) AS id,
    concat('task ', tasks.event) AS event, 1 AS entry_count, 0 AS push, '' AS push_kind,
    '' AS audience_filter, '' AS summary, task_key AS of_task, '' AS change, false AS is_hourly,
    writer, interface, address, request_id
  FROM tasks FINAL
  WHERE tasks.event IN ('scheduled', 'cancelled', 'expired')
    AND task_key IN (SELECT task_key FROM task_pushes WHERE appkey = {appkey:String})
    AND time >= fromUnixTimestamp64Milli({from_ms:Int64}) AND time < fromUnixTimestamp64Milli({to_ms:Int64})
  UNION ALL
  SELECT toUnixTimestamp64Milli(time) AS time_ms, concat('app ', hex(_event_id)) AS id,
    concat(if(appkey = '', 'all apps ', 'app '), action) AS event, 1 AS entry_count, 0 AS push, '' AS push_kind,
    '' AS audience_filter, '' AS summary, '' AS of_task, detail AS change, false AS is_hourly,
    writer, interface, address, request_id
  FROM app_changes FINAL
  WHERE appkey IN ({appkey:String}, '') AND time >= fromUnixTimestamp64Milli({from_ms:Int64})
    AND time < fromUnixTimestamp64Milli({to_ms:Int64})
  UNION ALL
  SELECT toUnixTimestamp64Milli(min(time)) AS time_ms, concat('command ', command, ' ', request_id) AS id,
    command AS event,
    countIf(token != '') + uniqExactIf(device_commands.request_id, token = '') AS entry_count, 0 AS push,
    '' AS push_kind, '' AS audience_filter, '' AS summary, '' AS of_task, '' AS change,
    false AS is_hourly, writer, interface, address, request_id
  FROM device_commands FINAL
  WHERE appkey = {appkey:String} AND time >= fromUnixTimestamp64Milli({from_ms:Int64})
    AND time < fromUnixTimestamp64Milli({to_ms:Int64})
    AND (command LIKE 'revoke%' OR command IN ('add stags', 'remove stags') AND interface = 'v2')
  GROUP BY command, writer, interface, address, request_id
  UNION ALL
  SELECT toUnixTimestamp64Milli(min(time)) AS time_ms,
    concat('hour ', toString(toStartOfHour(time)), ' ', command, ' ', writer, ' ', interface) AS id,
    command AS event,
    countIf(token != '') + uniqExactIf(device_commands.request_id, token = '') AS entry_count, 0 AS push,
    '' AS push_kind, '' AS audience_filter, '' AS summary, '' AS of_task, '' AS change,
    true AS is_hourly, writer, interface, '' AS address, '' AS request_id
  FROM device_commands FINAL
  WHERE appkey = {appkey:String} AND time >= fromUnixTimestamp64Milli({from_ms:Int64})
    AND time < fromUnixTimestamp64Milli({to_ms:Int64})
    AND command NOT LIKE 'revoke%' AND NOT (command IN ('add stags', 'remove stags') AND interface = 'v2')
  GROUP BY toStartOfHour(time), command, writer, interface)
WHERE (time_ms, id) > ({after_ms:Int64}, {after:String}) ORDER BY time_ms, id LIMIT {limit:UInt32}
