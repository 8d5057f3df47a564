-- Stored counts of broadcasts by the values of an attribute too, so that a distribution merges the sets of devices once.

ALTER TABLE broadcast_counts
  -- An attribute and its value; both empty for all devices.
  ADD COLUMN IF NOT EXISTS category LowCardinality(String) AFTER msgid,
  ADD COLUMN IF NOT EXISTS info LowCardinality(String) AFTER category,
  MODIFY ORDER BY (appkey, msgid, category, info);
