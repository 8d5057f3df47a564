-- Pushes and tasks: what was asked for, from where, and when.
-- Every table: _topic, _partition, _offset and _index name the record, and the place in it, that a row comes from.
-- A record that stands in the log twice has one natural key, so its rows replace each other; the earliest offset wins.

CREATE TABLE IF NOT EXISTS pushes (
  msgid UInt64,
  -- The message ids of a token list follow each other up to this one; the same as `msgid` for other pushes.
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

-- The pushes of tasks, as scheduled; a task that was sent has them in `pushes` too.
CREATE TABLE IF NOT EXISTS task_pushes AS pushes
ENGINE = ReplacingMergeTree(_rank) ORDER BY (msgid, appkey)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
