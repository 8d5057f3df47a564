-- The number of connections by attribute values, as changes, so that no statistic reads every connection.

-- Changes by openings and ends of connections from a full minute on; the number of connections is the sum of all changes
-- until then. `reader` is the identity of the ingester; changes of a replaced ingester do not count.
CREATE TABLE IF NOT EXISTS connection_changes (
  appkey LowCardinality(String),
  -- An attribute and its value when the device connected.
  category LowCardinality(String),
  info LowCardinality(String),
  gateway LowCardinality(String),
  minute DateTime('UTC') CODEC(Delta, ZSTD),
  reader LowCardinality(String),
  change Int64 CODEC(ZSTD)
) ENGINE = SummingMergeTree(change) PARTITION BY reader ORDER BY (appkey, category, gateway, minute, info)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- The same by UTC days, for the sum of changes before the days of a query.
CREATE TABLE IF NOT EXISTS connection_days (
  appkey LowCardinality(String),
  category LowCardinality(String),
  info LowCardinality(String),
  gateway LowCardinality(String),
  day Date32,
  reader LowCardinality(String),
  change Int64 CODEC(ZSTD)
) ENGINE = SummingMergeTree(change) PARTITION BY reader ORDER BY (appkey, category, gateway, day, info)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- A store without ingesters (table `readers`) is filled from the log again.
TRUNCATE TABLE readers;
