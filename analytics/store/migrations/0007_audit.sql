-- Changes of devices and apps with their origins, and every record of a push.

-- Every command to a device, also if the resulting device record was compacted away before it was ingested.
CREATE TABLE IF NOT EXISTS device_commands (
  appkey LowCardinality(String),
  partition UInt16,
  -- Empty for a command to all devices of the partition.
  token String,
  time DateTime64(3, 'UTC'),
  command LowCardinality(String),
  detail String CODEC(ZSTD),
  writer LowCardinality(String),
  door LowCardinality(String),
  address String,
  request_id String,
  _event_id FixedString(16),
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) PARTITION BY toYYYYMM(time) ORDER BY (appkey, token, time, _event_id, partition)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS app_changes (
  appkey LowCardinality(String),
  time DateTime64(3, 'UTC'),
  action LowCardinality(String),
  detail String,
  writer LowCardinality(String),
  door LowCardinality(String),
  address String,
  request_id String,
  _event_id FixedString(16),
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (appkey, time, _event_id)
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

-- The filter of a push that has one, as in the log: a protos.push.v1.Filter.
ALTER TABLE pushes ADD COLUMN IF NOT EXISTS filter String CODEC(ZSTD) AFTER audience;
ALTER TABLE task_pushes ADD COLUMN IF NOT EXISTS filter String CODEC(ZSTD) AFTER audience;

-- A store without ingesters (table `readers`) is filled from the log again. Log-ins are then counted with the current
-- attributes of their devices, so those counted before are deleted.
TRUNCATE TABLE readers;
TRUNCATE TABLE login_days;
