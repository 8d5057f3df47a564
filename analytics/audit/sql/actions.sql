-- One page of what accounts and operators did, the newest first. Without a scope the team and the app do not matter; an
-- action of a task or draft that names neither belongs to those of the task or draft. Of a task's push that is in the log
-- twice, under two event ids, the first one counts; its detail begins with the message id.
SELECT toUnixTimestamp64Milli(time) AS time_ms, lower(hex(_event_id)) AS id, _index AS row, actor, action, team_id, appkey,
  detail, base64Encode(details), interface, address, request_id, task_key
FROM actions FINAL
WHERE time >= fromUnixTimestamp64Milli({from_ms:Int64}) AND time < fromUnixTimestamp64Milli({to_ms:Int64})
  AND ({actor:String} = '' OR actor = {actor:String})
  AND ({subject:String} = '' OR splitByChar(' ', toString(action))[1] = {subject:String})
  AND (empty({containing:Array(String)}) OR multiSearchAny(detail, {containing:Array(String)}))
  AND ({is_everything:Bool} OR has({team_ids:Array(String)}, team_id) OR has({appkeys:Array(String)}, appkey)
    OR (team_id = '' AND appkey = '' AND task_key != '' AND (
      task_key IN (SELECT task_key FROM task_pushes WHERE has({appkeys:Array(String)}, appkey))
      OR task_key IN (SELECT task_key FROM actions WHERE has({team_ids:Array(String)}, team_id)))))
  AND (action != 'push sent' OR task_key = '' OR _event_id IN (
    SELECT argMin(_event_id, _offset) FROM actions WHERE action = 'push sent' AND task_key != ''
    GROUP BY appkey, splitByChar(',', detail)[1]))
  AND (time_ms, id, row) < ({before_ms:Int64}, {before:String}, {before_row:UInt32})
ORDER BY time_ms DESC, id DESC, row DESC LIMIT {limit:UInt32}
