-- Stored counts of broadcasts, so that their list merges the sets of those alone of which something has changed.

-- The number of outcomes in a set, as inserted. It grows with every outcome, so it tells whether a count of the set is
-- still valid; 0 in rows from before, which do not change any more.
ALTER TABLE push_outcomes ADD COLUMN IF NOT EXISTS rows SimpleAggregateFunction(sum, UInt64) AFTER first;

ALTER TABLE push_outcomes_of_deliveries MODIFY QUERY
SELECT appkey, msgid, kind, partition, max(deliveries.time) AS time, min(deliveries.time) AS first, count() AS rows,
  groupBitmapState(number) AS devices
FROM deliveries GROUP BY appkey, msgid, kind, partition;

CREATE TABLE IF NOT EXISTS broadcast_counts (
  appkey LowCardinality(String),
  msgid UInt64,
  -- The numbers of outcomes and of sets of outcomes, of events of its partitions, and of its audiences.
  version Array(UInt64),
  -- In the order of the columns of the list.
  counts Array(UInt64),
  kept DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(kept) ORDER BY (appkey, msgid);
