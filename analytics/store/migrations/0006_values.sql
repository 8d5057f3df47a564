-- Devices by attribute values, so that no statistic reads every device.

-- Each device once, with its attributes at its first registration.
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
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (appkey, registered, partition, number)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

TRUNCATE TABLE registrations;

INSERT INTO registrations
SELECT appkey, registered, partition, number, region, carrier, channel, sdk_version, brand, resolution, os_version,
  app_version, _topic, _partition, _offset, _index
FROM devices ORDER BY appkey, partition, number, _offset LIMIT 1 BY appkey, partition, number;

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
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (appkey, msgid, partition)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- A store without ingesters (table `readers`) is filled from the log again.
TRUNCATE TABLE readers;
