-- The changes of an hour in one row, by minute: reading those of a week took most of the time that counting them did.

DROP VIEW IF EXISTS connection_hours_of_changes SYNC;
DROP TABLE IF EXISTS connection_hours SYNC;

CREATE TABLE connection_hours (
  appkey LowCardinality(String),
  category LowCardinality(String),
  info LowCardinality(String),
  gateway LowCardinality(String),
  hour DateTime('UTC') CODEC(Delta, ZSTD),
  reader LowCardinality(String),
  -- The change of each minute of the hour; the last ones may be missing. Half the bytes of `sum`, and no ZSTD: reading them
  -- is most of the work.
  changes AggregateFunction(sumWithOverflowForEach, Array(Int32)) CODEC(LZ4)
) ENGINE = AggregatingMergeTree PARTITION BY reader ORDER BY (appkey, category, gateway, hour, info)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

INSERT INTO connection_hours
SELECT appkey, category, info, gateway, toStartOfHour(minute) AS hour, reader,
  sumWithOverflowForEachState(arrayResize([toInt32(change)], -toMinute(minute) - 1, toInt32(0)))
FROM connection_changes GROUP BY appkey, category, info, gateway, hour, reader;

CREATE MATERIALIZED VIEW connection_hours_of_changes TO connection_hours AS
SELECT appkey, category, info, gateway, toStartOfHour(minute) AS hour, reader,
  sumWithOverflowForEachState(arrayResize([toInt32(change)], -toMinute(minute) - 1, toInt32(0))) AS changes
FROM connection_changes GROUP BY appkey, category, info, gateway, hour, reader;
