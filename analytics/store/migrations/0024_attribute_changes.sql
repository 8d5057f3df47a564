-- What sessions, registrations and audiences are counted under follows from the log: devices' changes of attributes.

-- Each change with the attributes from then on, and in `former` those before, in the order of the columns.
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

ALTER TABLE devices ADD COLUMN IF NOT EXISTS attributes_revision UInt64 AFTER app_version;

-- `from_log`: not true of a row that an earlier version stored, with the attributes that it knew then. `kept`: of a device
-- whose attributes or registration have changed since, from what its record keeps.
ALTER TABLE registrations ADD COLUMN IF NOT EXISTS token String AFTER app_version,
  ADD COLUMN IF NOT EXISTS kept Bool AFTER token,
  ADD COLUMN IF NOT EXISTS from_log Bool AFTER kept;

-- The tokens of former numbers, whose records in the compacted topic are gone.
CREATE MATERIALIZED VIEW IF NOT EXISTS device_tokens_of_registrations TO device_tokens AS
SELECT DISTINCT appkey, bitShiftLeft(toUInt64(partition), 32) + number AS device, token FROM registrations WHERE kept;

ALTER TABLE sessions ADD COLUMN IF NOT EXISTS from_log Bool AFTER app_version;

-- The offset of `sessions` up to which changes count in the audience; 0: those that had been read when it was stored.
ALTER TABLE push_values ADD COLUMN IF NOT EXISTS attributes_until UInt64 AFTER app_version,
  ADD COLUMN IF NOT EXISTS from_log Bool AFTER attributes_until;
