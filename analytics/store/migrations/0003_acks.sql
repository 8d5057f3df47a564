-- Receipts of unicast messages in the order of the log: a page of acknowledgements is a range of each partition.

-- Receipts of a broadcast whose push command was not ingested yet are here too; pages leave them out.
CREATE TABLE IF NOT EXISTS acks (
  appkey LowCardinality(String),
  partition UInt16,
  number UInt32,
  msgid UInt64 CODEC(Delta, ZSTD),
  -- When the device received the message, at most the time when the record was written.
  time DateTime64(3, 'UTC') CODEC(Delta, ZSTD),
  _offset UInt64 CODEC(Delta, ZSTD),
  _index UInt32 CODEC(Delta, ZSTD)
) ENGINE = ReplacingMergeTree ORDER BY (appkey, partition, _offset, _index)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 10000,
  fsync_after_insert = 1, fsync_part_directory = 1;

INSERT INTO acks SELECT appkey, partition, number, msgid, time, _offset, _index FROM deliveries
WHERE kind = 'received' AND time > now64(3) - INTERVAL 2 DAY
  AND msgid NOT IN (SELECT msgid FROM pushes WHERE kind != 'unicast');

-- The token of each device, for looking up a few devices.
CREATE TABLE IF NOT EXISTS device_tokens (
  appkey LowCardinality(String),
  partition UInt16,
  number UInt32,
  token String
) ENGINE = ReplacingMergeTree ORDER BY (appkey, partition, number)
SETTINGS index_granularity = 128, non_replicated_deduplication_window = 10000,
  fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS device_tokens_of_devices TO device_tokens AS
SELECT DISTINCT appkey, partition, number, token FROM devices;

INSERT INTO device_tokens SELECT DISTINCT appkey, partition, number, token FROM devices;

-- The gateway of the connection; empty for reports over HTTP.
ALTER TABLE sessions ADD COLUMN IF NOT EXISTS gateway LowCardinality(String) AFTER reason;
