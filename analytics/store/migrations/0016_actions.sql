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
) ENGINE = ReplacingMergeTree(_rank) ORDER BY (time, _event_id, _index)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- What operators did before this table was there; of accounts, the topics of that time had no facts in this store.
INSERT INTO actions (time, action, appkey, detail, writer, door, address, request_id, _event_id, _topic, _partition,
  _offset, _index)
SELECT time, concat(if(appkey = '', 'app all ', 'app '), action), appkey, detail, writer, door, address, request_id,
  _event_id, _topic, _partition, _offset, _index FROM app_changes FINAL WHERE door = 'cli';

INSERT INTO actions (time, action, appkey, detail, writer, door, address, request_id, _event_id, _topic, _partition,
  _offset, _index)
SELECT time, concat('device ', command), appkey, arrayStringConcat(arrayFilter(text -> text != '', [token, detail]), ', '),
  writer, door, address, request_id, _event_id, _topic, _partition, _offset, _index
FROM device_commands FINAL WHERE door = 'cli';
