-- The devices that logged in by days again, in granules of about one set: reading the set of one day read those of the
-- days beside it too, several megabytes each with millions of devices.

DROP TABLE IF EXISTS login_days_in_granules SYNC;

CREATE TABLE login_days_in_granules (
  appkey LowCardinality(String),
  category LowCardinality(String),
  day Date32,
  info LowCardinality(String),
  rows SimpleAggregateFunction(sum, UInt64),
  devices AggregateFunction(groupBitmap, UInt64) CODEC(ZSTD)
) ENGINE = AggregatingMergeTree ORDER BY (appkey, category, day, info)
SETTINGS index_granularity_bytes = 65536, min_bytes_for_wide_part = 0, non_replicated_deduplication_window = 10000,
  fsync_after_insert = 1, fsync_part_directory = 1;

INSERT INTO login_days_in_granules SELECT appkey, category, day, info, rows, devices FROM login_days;

-- The view that fills the table names it, so it fills the new one from here on.
EXCHANGE TABLES login_days_in_granules AND login_days;

-- A part of a few log-ins is one file; in larger ones the columns are apart, so that counting log-ins reads no sets.
ALTER TABLE login_days MODIFY SETTING min_bytes_for_wide_part = 1048576;

DROP TABLE login_days_in_granules SYNC;
