-- Sets of devices that statistics count, as bitmaps: a row that is inserted twice changes nothing.

-- Broadcasts and multicasts by when they were sent.
CREATE TABLE IF NOT EXISTS broadcasts (
  appkey LowCardinality(String),
  time DateTime64(3, 'UTC'),
  msgid UInt64,
  platform LowCardinality(String),
  title String,
  text String
) ENGINE = ReplacingMergeTree ORDER BY (appkey, time, msgid)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS broadcasts_of_pushes TO broadcasts AS
SELECT appkey, time, msgid, platform, title, text FROM pushes WHERE kind != 'unicast';

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

-- The audience of a push in one partition by each value of each attribute, as bitmaps like those of `push_audiences`.
CREATE TABLE IF NOT EXISTS push_values (
  appkey LowCardinality(String),
  msgid UInt64,
  partition UInt16,
  time DateTime64(3, 'UTC'),
  region Map(LowCardinality(String), String) CODEC(ZSTD),
  carrier Map(LowCardinality(String), String) CODEC(ZSTD),
  channel Map(LowCardinality(String), String) CODEC(ZSTD),
  sdk_version Map(LowCardinality(String), String) CODEC(ZSTD),
  brand Map(LowCardinality(String), String) CODEC(ZSTD),
  resolution Map(LowCardinality(String), String) CODEC(ZSTD),
  os_version Map(LowCardinality(String), String) CODEC(ZSTD),
  app_version Map(LowCardinality(String), String) CODEC(ZSTD),
  -- 1 + the offset of `sessions` before which changes count in the audience; 0: those that had been read when it was
  -- stored.
  attributes_until UInt64,
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (appkey, msgid, partition)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- The devices with each kind of outcome.
CREATE TABLE IF NOT EXISTS push_outcomes (
  appkey LowCardinality(String),
  msgid UInt64,
  kind LowCardinality(String),
  partition UInt16,
  time SimpleAggregateFunction(max, DateTime64(3, 'UTC')),
  -- When the first outcome came, so that an audit reads no outcomes for it.
  first SimpleAggregateFunction(min, DateTime64(3, 'UTC')),
  -- The number of outcomes in the set, as inserted. It grows with every outcome, so it tells whether a count of the set
  -- is still valid.
  rows SimpleAggregateFunction(sum, UInt64),
  devices AggregateFunction(groupBitmap, UInt32) CODEC(ZSTD)
) ENGINE = AggregatingMergeTree ORDER BY (appkey, msgid, kind, partition)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS push_outcomes_of_deliveries TO push_outcomes AS
SELECT appkey, msgid, kind, partition, max(deliveries.time) AS time, min(deliveries.time) AS first, count() AS rows,
  groupBitmapState(number) AS devices
FROM deliveries GROUP BY appkey, msgid, kind, partition;

-- Stored counts of broadcasts, so that their list merges the sets of those alone of which something has changed.
CREATE TABLE IF NOT EXISTS broadcast_counts (
  appkey LowCardinality(String),
  msgid UInt64,
  -- An attribute and its value; both empty for all devices.
  category LowCardinality(String),
  info LowCardinality(String),
  -- The numbers of outcomes and of sets of outcomes, of events of its partitions, and of its audiences.
  version Array(UInt64),
  -- In the order of the columns of the list.
  counts Array(UInt64),
  kept DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(kept) PRIMARY KEY (appkey, msgid) ORDER BY (appkey, msgid, category, info);

-- The devices that logged in by days of the service's time zone: once for all devices, under the category '', and once for
-- each value of each category. A device is its partition in the upper 32 bits and its number in the lower. The view that
-- fills the table depends on the zone, so the service creates it. Granules have about one set, as reading the set of one
-- day reads those beside it too, several megabytes each with millions of devices. A part of a few log-ins is one file; in
-- larger ones the columns are apart, so that counting log-ins reads no sets.
CREATE TABLE IF NOT EXISTS login_days (
  appkey LowCardinality(String),
  category LowCardinality(String),
  day Date32,
  info LowCardinality(String),
  -- The number of rows of `sessions` in the set. It grows with every log-in, so it tells whether a count of the set is
  -- still valid.
  rows SimpleAggregateFunction(sum, UInt64),
  devices AggregateFunction(groupBitmap, UInt64) CODEC(ZSTD)
) ENGINE = AggregatingMergeTree ORDER BY (appkey, category, day, info)
SETTINGS index_granularity_bytes = 65536, min_bytes_for_wide_part = 1048576, non_replicated_deduplication_window = 10000,
  fsync_after_insert = 1, fsync_part_directory = 1;

-- Stored counts of log-ins, so that the sets of a window of days are merged once and not for every query.
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
