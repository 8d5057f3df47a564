-- The title of a push and the beginning of its text, by which people find it in lists.

ALTER TABLE pushes ADD COLUMN IF NOT EXISTS title String AFTER kind, ADD COLUMN IF NOT EXISTS text String AFTER title;

ALTER TABLE task_pushes ADD COLUMN IF NOT EXISTS title String AFTER kind, ADD COLUMN IF NOT EXISTS text String AFTER title;

ALTER TABLE broadcasts ADD COLUMN IF NOT EXISTS title String, ADD COLUMN IF NOT EXISTS text String;

ALTER TABLE broadcasts_of_pushes MODIFY QUERY
SELECT appkey, time, msgid, platform, title, text FROM pushes WHERE kind != 'unicast';

-- Of pushes from before, those whose request was stored with them.
INSERT INTO broadcasts (appkey, time, msgid, platform, title, text)
SELECT appkey, time, msgid, platform,
  if(JSONHas(request_json, 'msgStyle'), JSONExtractString(request_json, 'msgStyle', 'android', 'title'),
    JSONExtractString(request_json, 'title')) AS title,
  substringUTF8(multiIf(
    JSONType(request_json, 'message') = 'String', JSONExtractString(request_json, 'message'),
    JSONType(request_json, 'msgStyle', 'basic', 'content') = 'String',
      JSONExtractString(request_json, 'msgStyle', 'basic', 'content'),
    JSONExtractString(request_json, 'msgStyle', 'basic', 'content', toString(platform))), 1, 200) AS text
FROM pushes FINAL WHERE kind != 'unicast' AND request_json != '';
