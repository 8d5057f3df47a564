-- When the first outcome of each kind came, so that an audit reads no outcomes for it; 1970 in rows from before.

ALTER TABLE push_outcomes
  ADD COLUMN IF NOT EXISTS first SimpleAggregateFunction(min, DateTime64(3, 'UTC')) AFTER time;

ALTER TABLE push_outcomes_of_deliveries MODIFY QUERY
SELECT appkey, msgid, kind, partition, max(deliveries.time) AS time, min(deliveries.time) AS first,
  groupBitmapState(number) AS devices
FROM deliveries GROUP BY appkey, msgid, kind, partition;
