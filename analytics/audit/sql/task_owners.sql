-- The team and one app of each of these tasks and drafts, of those that may be named; empty where there is none.
SELECT task_key, max(team) AS team_id, max(app) AS appkey
FROM (
  SELECT task_key, toString(team_id) AS team, '' AS app FROM actions
  WHERE has({task_keys:Array(String)}, task_key) AND ({is_everything:Bool} OR has({team_ids:Array(String)}, team_id))
  UNION ALL
  SELECT task_key, '' AS team, toString(appkey) AS app FROM task_pushes
  WHERE has({task_keys:Array(String)}, task_key) AND ({is_everything:Bool} OR has({appkeys:Array(String)}, appkey)))
GROUP BY task_key
