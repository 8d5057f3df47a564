-- Counts of log-ins that are kept, so that a window of days is put together once and not for every question.

-- How many rows of `sessions` a set was made of. It grows with every log-in that is taken in, so it tells whether what
-- was counted from the set is still so.
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
  -- How many rows were in the sets of the longest window.
  version UInt64,
  kept DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(kept) ORDER BY (appkey, category, day, info);

-- The devices that logged in before a day, by when they did last: band 1 on the day before, band 7 more than six and
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
