-- The history of pushes and devices.

CREATE TABLE IF NOT EXISTS push_partitions (
  msgid UInt64,
  appkey LowCardinality(String),
  partition UInt16,
  -- started, cancelled, finished
  event LowCardinality(String),
  time DateTime64(3, 'UTC'),
  -- The device numbers as a portable roaring bitmap; `started` only.
  audience String CODEC(ZSTD),
  count UInt32,
  -- 1970 for events other than `started`.
  expires DateTime64(3, 'UTC'),
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (msgid, appkey, event, partition)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- One row for each outcome of a message on a device, with the attributes of the device at that time.
CREATE TABLE IF NOT EXISTS deliveries (
  appkey LowCardinality(String),
  msgid UInt64 CODEC(Delta, ZSTD),
  partition UInt16,
  number UInt32,
  kind LowCardinality(String),
  time DateTime64(3, 'UTC') CODEC(Delta, ZSTD),
  reason LowCardinality(String),
  region LowCardinality(String),
  carrier LowCardinality(String),
  channel LowCardinality(String),
  sdk_version LowCardinality(String),
  brand LowCardinality(String),
  resolution LowCardinality(String),
  os_version LowCardinality(String),
  app_version LowCardinality(String),
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64 CODEC(Delta, ZSTD),
  _index UInt32 CODEC(Delta, ZSTD),
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset CODEC(Delta, ZSTD),
  INDEX number_index number TYPE bloom_filter GRANULARITY 1
) ENGINE = ReplacingMergeTree(_rank) PARTITION BY toYYYYMM(time)
ORDER BY (appkey, msgid, kind, partition, number, time)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- Every state of every device.
CREATE TABLE IF NOT EXISTS devices (
  appkey LowCardinality(String),
  partition UInt16,
  number UInt32,
  token String,
  time DateTime64(3, 'UTC'),
  platform LowCardinality(String),
  registered DateTime64(3, 'UTC'),
  -- 1970 while the device can be reached.
  removed DateTime64(3, 'UTC'),
  removed_reason LowCardinality(String),
  has_alias Bool,
  alias String,
  tags Array(Int32),
  stags Array(String),
  model LowCardinality(String),
  region LowCardinality(String),
  carrier LowCardinality(String),
  channel LowCardinality(String),
  sdk_version LowCardinality(String),
  brand LowCardinality(String),
  resolution LowCardinality(String),
  os_version LowCardinality(String),
  app_version LowCardinality(String),
  _event_id FixedString(16),
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset,
  INDEX token_index token TYPE bloom_filter GRANULARITY 1
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (appkey, partition, number, time, _event_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS sessions (
  appkey LowCardinality(String),
  partition UInt16,
  number UInt32,
  token String,
  -- opened, closed, app_opened, logged_in, logged_out
  kind LowCardinality(String),
  time DateTime64(3, 'UTC'),
  connection UInt64,
  reason LowCardinality(String),
  region LowCardinality(String),
  carrier LowCardinality(String),
  channel LowCardinality(String),
  sdk_version LowCardinality(String),
  brand LowCardinality(String),
  resolution LowCardinality(String),
  os_version LowCardinality(String),
  app_version LowCardinality(String),
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) PARTITION BY toYYYYMM(time)
ORDER BY (appkey, partition, number, time, kind, connection)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS connection_counts (
  appkey LowCardinality(String),
  minute DateTime64(3, 'UTC'),
  gateway LowCardinality(String),
  connections UInt32,
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) PARTITION BY toYYYYMM(minute) ORDER BY (appkey, minute, gateway)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- Which reader filled this database, so that a reader notices when it meets another one.
CREATE TABLE IF NOT EXISTS readers (
  instance String,
  identity String,
  time DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(time) ORDER BY instance
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
