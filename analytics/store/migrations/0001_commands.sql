-- Commands of clients, accounts and operators, each with its origin and time.
-- Every table: _topic, _partition and _offset are the position of the record that a row comes from, _index the row in it.
-- Rows of a record that is in the log twice have the same key, so they replace each other; the earliest offset wins.

CREATE TABLE IF NOT EXISTS pushes (
  msgid UInt64,
  -- The message ids of a token list go from `msgid` up to this one; other pushes have one id.
  last_msgid UInt64,
  appkey LowCardinality(String),
  platform LowCardinality(String),
  kind LowCardinality(String),
  -- The title, and the beginning of the text, by which people find the push in lists.
  title String,
  text String,
  audience String CODEC(ZSTD),
  -- What `audience` says, as a protos.analytics.v1.AudienceSummary; empty for a filter.
  audience_summary String,
  -- The filter of a push that has one, as in the log: a protos.push.v1.Filter.
  filter String CODEC(ZSTD),
  request_json String CODEC(ZSTD),
  time DateTime64(3, 'UTC'),
  period_s UInt32,
  qps UInt32,
  task_key String,
  -- The devices of a push with a list of devices, for audits of each of its messages: columns of equal length. The
  -- message id of a target is the push's first id plus its offset.
  target_partitions Array(UInt16) CODEC(ZSTD),
  target_numbers Array(UInt32) CODEC(ZSTD),
  target_offsets Array(UInt32) CODEC(ZSTD),
  writer LowCardinality(String),
  interface LowCardinality(String),
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

-- The pushes of timed tasks as scheduled; pushes of tasks that were sent are in `pushes` too.
CREATE TABLE IF NOT EXISTS task_pushes AS pushes
ENGINE = ReplacingMergeTree(_rank) ORDER BY (msgid, appkey)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS push_cancels (
  msgid UInt64,
  appkey LowCardinality(String),
  time DateTime64(3, 'UTC'),
  writer LowCardinality(String),
  interface LowCardinality(String),
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
  -- Why the task was not sent: event `failed` only.
  reason String,
  writer LowCardinality(String),
  interface LowCardinality(String),
  address String,
  request_id String,
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (task_key, event)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- Every command to a device, also if the resulting device record was compacted away before it was ingested.
CREATE TABLE IF NOT EXISTS device_commands (
  appkey LowCardinality(String),
  partition UInt16,
  -- Empty for a command to all devices of the partition.
  token String,
  time DateTime64(3, 'UTC'),
  command LowCardinality(String),
  detail String CODEC(ZSTD),
  -- What `detail` says, for texts in other languages: a protos.analytics.v1.Details.
  details String,
  writer LowCardinality(String),
  interface LowCardinality(String),
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
  interface LowCardinality(String),
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

-- What accounts and operators did, by the console and the commands.
CREATE TABLE IF NOT EXISTS actions (
  time DateTime64(3, 'UTC'),
  -- user/ID or token/ID; empty for an operator, whom the address names.
  actor LowCardinality(String),
  -- Its first word is what it concerns: app, push, task, device, user, team, token, log-in, data or draft.
  action LowCardinality(String),
  team_id LowCardinality(String),
  appkey LowCardinality(String),
  task_key String,
  detail String,
  -- What `detail` says, for texts in other languages: a protos.analytics.v1.Details.
  details String,
  writer LowCardinality(String),
  interface LowCardinality(String),
  address String,
  request_id String,
  _event_id FixedString(16),
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (time, _event_id, _index)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
