-- The history of pushes and devices.

-- Which ingester fills this database, so that an ingester notices when it meets the database of another one.
CREATE TABLE IF NOT EXISTS ingesters (
  instance String,
  identity String,
  time DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree(time) ORDER BY instance
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS push_partitions (
  msgid UInt64,
  appkey LowCardinality(String),
  partition UInt16,
  -- started, cancelled, finished, failed
  event LowCardinality(String),
  time DateTime64(3, 'UTC'),
  -- The device numbers as a portable roaring bitmap; `started` only.
  audience String CODEC(ZSTD),
  count UInt32,
  -- 1970 for events other than `started`.
  expires DateTime64(3, 'UTC'),
  -- Why the push failed in the partition: event `failed` only.
  reason String,
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (msgid, appkey, event, partition)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- The positions of a push's records: a push whose command or start is in the log twice has two rows here.
CREATE TABLE IF NOT EXISTS push_records (
  appkey LowCardinality(String),
  msgid UInt64,
  -- command, or the event of push_partitions
  event LowCardinality(String),
  time DateTime64(3, 'UTC'),
  _partition UInt16,
  _offset UInt64
) ENGINE = ReplacingMergeTree ORDER BY (appkey, msgid, event, _partition, _offset)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS push_records_of_pushes TO push_records AS
SELECT appkey, msgid, 'command' AS event, time, _partition, _offset FROM pushes;

CREATE MATERIALIZED VIEW IF NOT EXISTS push_records_of_partitions TO push_records AS
SELECT appkey, msgid, event, time, _partition, _offset FROM push_partitions;

-- One row for each outcome of a message on a device, with the attributes of the device at that time. An outcome is in the
-- topic `deliveries`, in the partition of its device. Parts are merged when they have ten times the rows of the largest
-- one, in place of five times: each row is merged fewer times, and there are more parts.
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
  _topic LowCardinality(String) ALIAS 'deliveries',
  _partition UInt16 ALIAS partition,
  _offset UInt64 CODEC(Delta, ZSTD),
  _index UInt32 CODEC(Delta, ZSTD),
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset CODEC(Delta, ZSTD),
  INDEX number_index number TYPE bloom_filter GRANULARITY 1
) ENGINE = ReplacingMergeTree(_rank) PARTITION BY toYYYYMM(time)
ORDER BY (appkey, msgid, kind, partition, number, time)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1,
  merge_selector_base = 10;

-- Receipts of unicast messages in the order of the log: a page of acknowledgements is a short range of each partition. In
-- blocks of a few hundred rows, as of each range whole blocks are decompressed; LZ4 packs them as fast as larger ones.
-- Receipts of a broadcast whose push command was not ingested yet are here too; pages leave them out.
CREATE TABLE IF NOT EXISTS acks (
  appkey LowCardinality(String),
  partition UInt16,
  number UInt32,
  msgid UInt64 CODEC(Delta, LZ4),
  -- When the device received the message, at most the time when the record was written.
  time DateTime64(3, 'UTC') CODEC(Delta, LZ4),
  _offset UInt64 CODEC(Delta, LZ4),
  _index UInt32 CODEC(Delta, LZ4)
) ENGINE = ReplacingMergeTree ORDER BY (appkey, partition, _offset, _index)
SETTINGS index_granularity = 256, min_compress_block_size = 4096, max_compress_block_size = 8192,
  non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

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
  attributes_revision UInt64,
  _event_id FixedString(16),
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset,
  INDEX token_index token TYPE bloom_filter GRANULARITY 1
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (appkey, partition, number, time, _event_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- Each device once, with its attributes at its first registration, so that no statistic reads every device.
CREATE TABLE IF NOT EXISTS registrations (
  appkey LowCardinality(String),
  registered DateTime64(3, 'UTC') CODEC(Delta, ZSTD),
  partition UInt16,
  number UInt32,
  region LowCardinality(String),
  carrier LowCardinality(String),
  channel LowCardinality(String),
  sdk_version LowCardinality(String),
  brand LowCardinality(String),
  resolution LowCardinality(String),
  os_version LowCardinality(String),
  app_version LowCardinality(String),
  token String,
  -- Of a device whose attributes or registration have changed since, from what its record keeps.
  kept Bool,
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (appkey, registered, partition, number)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- Each change of a device's attributes with those from then on, and in `former` those before, in the order of the columns.
CREATE TABLE IF NOT EXISTS attribute_changes (
  appkey LowCardinality(String),
  partition UInt16,
  number UInt32,
  revision UInt64,
  time DateTime64(3, 'UTC'),
  region LowCardinality(String),
  carrier LowCardinality(String),
  channel LowCardinality(String),
  sdk_version LowCardinality(String),
  brand LowCardinality(String),
  resolution LowCardinality(String),
  os_version LowCardinality(String),
  app_version LowCardinality(String),
  former Array(LowCardinality(String)),
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset,
  INDEX offset_index _offset TYPE minmax GRANULARITY 1
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (appkey, partition, number, revision)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- The token of each device, for looking up a thousand devices among millions: the key is one number, and blocks are small
-- because each look-up decompresses one.
CREATE TABLE IF NOT EXISTS device_tokens (
  appkey LowCardinality(String),
  -- The partition in the upper 32 bits, the number in the lower.
  device UInt64,
  partition UInt16 ALIAS toUInt16(bitShiftRight(device, 32)),
  number UInt32 ALIAS toUInt32(bitAnd(device, 4294967295)),
  token String
) ENGINE = ReplacingMergeTree ORDER BY (appkey, device)
SETTINGS index_granularity = 128, min_compress_block_size = 4096, max_compress_block_size = 8192,
  non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS device_tokens_of_devices TO device_tokens AS
SELECT DISTINCT appkey, bitShiftLeft(toUInt64(partition), 32) + number AS device, token FROM devices;

-- The tokens of former numbers, whose records in the compacted topic are gone.
CREATE MATERIALIZED VIEW IF NOT EXISTS device_tokens_of_registrations TO device_tokens AS
SELECT DISTINCT appkey, bitShiftLeft(toUInt64(partition), 32) + number AS device, token FROM registrations WHERE kept;

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
  -- The gateway of the connection; empty for reports over HTTP.
  gateway LowCardinality(String),
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
