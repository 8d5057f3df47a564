-- Stored counts of log-ins, so that the sets of a window of days are merged once and not for every query.

-- The number of rows of `sessions` in a set. It grows with every log-in, so it tells whether a count of the set is still
-- valid.
DROP VIEW IF EXISTS login_days_of_sessions;
ALTER TABLE login_days ADD COLUMN IF NOT EXISTS rows SimpleAggregateFunction(sum, UInt64) AFTER info;
TRUNCATE TABLE login_days;

CREATE TABLE IF NOT EXISTS login_counts (
  appkey LowCardinality(String),
  category LowCardinality(String),
  day Date32,
  info LowCardinality(String),
  -- Devices within 1, 2, 3, 4, 5, 6, 7 and 30 days up to this one.
  counts Array(UInt32),
  -- The number of rows in the sets of the longest window.
  version UInt64,
  kept DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(kept) ORDER BY (appkey, category, day, info);

-- The devices that logged in before a day, by their latest log-in: band 1 is the day before, band 7 is more than six and
-- less than thirty days before.
CREATE TABLE IF NOT EXISTS login_before (
  appkey LowCardinality(String),
  category LowCardinality(String),
  day Date32,
  info LowCardinality(String),
  band UInt8,
  version UInt64,
  devices AggregateFunction(groupBitmap, UInt64) CODEC(ZSTD),
  kept DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(kept) PARTITION BY day ORDER BY (appkey, category, day, info, band)
TTL toDateTime(kept) + toIntervalDay(2) SETTINGS index_granularity = 64;
