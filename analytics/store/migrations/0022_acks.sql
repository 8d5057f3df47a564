-- The receipts of unicast messages again, in blocks of a few hundred rows: a page of acknowledgements is a short range of
-- each partition, and of each range two whole blocks of 8,192 rows were decompressed. LZ4 packs them as fast as before.

DROP TABLE IF EXISTS acks_in_blocks SYNC;

CREATE TABLE acks_in_blocks (
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

INSERT INTO acks_in_blocks SELECT * FROM acks;

EXCHANGE TABLES acks_in_blocks AND acks;

DROP TABLE acks_in_blocks SYNC;
