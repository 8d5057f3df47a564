-- Pushes and timed tasks: each command with its origin and time.
-- Every table: _topic, _partition and _offset are the position of the record that a row comes from, _index the row in it.
-- Rows of a record that is in the log twice have the same key, so they replace each other; the earliest offset wins.

CREATE TABLE IF NOT EXISTS pushes (
  msgid UInt64,
  -- The message ids of a token list go from `msgid` up to this one; other pushes have one id.
  last_msgid UInt64,
  appkey LowCardinality(String),
  platform LowCardinality(String),
  kind LowCardinality(String),
  audience String CODEC(ZSTD),
  request_json String CODEC(ZSTD),
  time DateTime64(3, 'UTC'),
  period_s UInt32,
  qps UInt32,
  task_key String,
  writer LowCardinality(String),
  door LowCardinality(String),
  address String,
  request_id String,
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset,
  INDEX request_id_index request_id TYPE bloom_filter GRANULARITY 1
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (msgid, appkey)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS push_cancels (
  msgid UInt64,
  appkey LowCardinality(String),
  time DateTime64(3, 'UTC'),
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
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (msgid, appkey, time, _event_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS tasks (
  task_key String,
  event LowCardinality(String),
  time DateTime64(3, 'UTC'),
  -- 1970 for events other than `scheduled`.
  due DateTime64(3, 'UTC'),
  writer LowCardinality(String),
  door LowCardinality(String),
  address String,
  request_id String,
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (task_key, event)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- The pushes of timed tasks as scheduled; pushes of tasks that were sent are in `pushes` too.
CREATE TABLE IF NOT EXISTS task_pushes AS pushes
ENGINE = ReplacingMergeTree(_rank) ORDER BY (msgid, appkey)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
