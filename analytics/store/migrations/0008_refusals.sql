-- Requests of app servers that were refused.

CREATE TABLE IF NOT EXISTS refused_requests (
  appkey LowCardinality(String),
  time DateTime64(3, 'UTC'),
  interface LowCardinality(String),
  -- The method and the path.
  call LowCardinality(String),
  result UInt16,
  answer String,
  -- The name of the error's code; empty for a text alone.
  code LowCardinality(String),
  address String,
  -- Whether the app's secret has signed the request.
  is_signed Bool,
  -- Refusals of the app before this one that are not recorded, because there were too many.
  left_out UInt32,
  _event_id FixedString(16),
  _topic LowCardinality(String),
  _partition UInt16,
  _offset UInt64,
  _index UInt32,
  _rank UInt64 MATERIALIZED 18446744073709551615 - _offset
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (appkey, time, _event_id, _index)
TTL toDateTime(time) + toIntervalDay(30)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
