-- How many devices were connected by what they were like, as changes, so that no statistic looks at every connection.

-- What openings and ends of connections change from a full minute on; a level is the sum of all changes until then. Each
-- change comes once, from the reader whose identity it bears; changes of a reader that was replaced count for nothing.
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

-- The same by UTC days, for what there was before the days of a question.
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

-- A store without readers is filled from the log again.
TRUNCATE TABLE readers;
