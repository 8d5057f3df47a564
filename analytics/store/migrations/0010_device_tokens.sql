-- The token of each device again, for looking up a thousand devices among millions: the key is one number, and blocks are
-- small because each look-up decompresses one.

DROP VIEW IF EXISTS device_tokens_of_devices SYNC;
DROP TABLE IF EXISTS device_tokens SYNC;

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

INSERT INTO device_tokens
SELECT DISTINCT appkey, bitShiftLeft(toUInt64(partition), 32) + number AS device, token FROM devices;
