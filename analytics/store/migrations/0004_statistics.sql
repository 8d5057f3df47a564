-- Sets of devices that statistics count, as bitmaps: a row that is inserted twice changes nothing.

-- Broadcasts and multicasts by when they were sent.
CREATE TABLE IF NOT EXISTS broadcasts (
  appkey LowCardinality(String),
  time DateTime64(3, 'UTC'),
  msgid UInt64,
  platform LowCardinality(String)
) ENGINE = ReplacingMergeTree ORDER BY (appkey, time, msgid)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS broadcasts_of_pushes TO broadcasts AS
SELECT appkey, time, msgid, platform FROM pushes WHERE kind != 'unicast';

INSERT INTO broadcasts SELECT appkey, time, msgid, platform FROM pushes WHERE kind != 'unicast';

-- Audiences: the bitmap of the log in ClickHouse's serialised form, which is one byte for its kind, the length in five
-- bytes of seven bits, and then the same bytes.
CREATE TABLE IF NOT EXISTS push_audiences (
  appkey LowCardinality(String),
  msgid UInt64,
  partition UInt16,
  devices AggregateFunction(groupBitmap, UInt32) CODEC(ZSTD)
) ENGINE = AggregatingMergeTree ORDER BY (appkey, msgid, partition)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS push_audiences_of_partitions TO push_audiences AS
SELECT appkey, msgid, partition,
  CAST(concat(char(1,
    bitOr(bitAnd(length(audience), 127), 128), bitOr(bitAnd(bitShiftRight(length(audience), 7), 127), 128),
    bitOr(bitAnd(bitShiftRight(length(audience), 14), 127), 128),
    bitOr(bitAnd(bitShiftRight(length(audience), 21), 127), 128),
    bitAnd(bitShiftRight(length(audience), 28), 127)), audience), 'AggregateFunction(groupBitmap, UInt32)') AS devices
FROM push_partitions WHERE event = 'started';

INSERT INTO push_audiences
SELECT appkey, msgid, partition,
  CAST(concat(char(1,
    bitOr(bitAnd(length(audience), 127), 128), bitOr(bitAnd(bitShiftRight(length(audience), 7), 127), 128),
    bitOr(bitAnd(bitShiftRight(length(audience), 14), 127), 128),
    bitOr(bitAnd(bitShiftRight(length(audience), 21), 127), 128),
    bitAnd(bitShiftRight(length(audience), 28), 127)), audience), 'AggregateFunction(groupBitmap, UInt32)') AS devices
FROM push_partitions WHERE event = 'started';

-- The devices with each kind of outcome.
CREATE TABLE IF NOT EXISTS push_outcomes (
  appkey LowCardinality(String),
  msgid UInt64,
  kind LowCardinality(String),
  partition UInt16,
  time SimpleAggregateFunction(max, DateTime64(3, 'UTC')),
  devices AggregateFunction(groupBitmap, UInt32) CODEC(ZSTD)
) ENGINE = AggregatingMergeTree ORDER BY (appkey, msgid, kind, partition)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS push_outcomes_of_deliveries TO push_outcomes AS
SELECT appkey, msgid, kind, partition, max(deliveries.time) AS time, groupBitmapState(number) AS devices
FROM deliveries GROUP BY appkey, msgid, kind, partition;

INSERT INTO push_outcomes
SELECT appkey, msgid, kind, partition, max(deliveries.time) AS time, groupBitmapState(number) AS devices
FROM deliveries GROUP BY appkey, msgid, kind, partition;

-- The devices that logged in by days of the service's time zone: once for all devices, under the category '', and once for
-- each value of each category. A device is its partition in the upper 32 bits and its number in the lower. The view that
-- fills the table depends on the zone, so the service creates it.
CREATE TABLE IF NOT EXISTS login_days (
  appkey LowCardinality(String),
  category LowCardinality(String),
  day Date32,
  info LowCardinality(String),
  devices AggregateFunction(groupBitmap, UInt64) CODEC(ZSTD)
) ENGINE = AggregatingMergeTree ORDER BY (appkey, category, day, info)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
