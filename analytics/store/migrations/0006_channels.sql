-- By which channel a push left for a device, and whether a simulator answered in the place of the channel's service.

-- The channel that was asked to take the message over, or answered: "webpush", "fcm"; empty for Carillon's own
-- connections, and for Apple, which an iOS app's outcomes are about anyway.
ALTER TABLE deliveries ADD COLUMN IF NOT EXISTS via LowCardinality(String) AFTER reason;

-- The channel's service, or Apple's for an empty `via`, was a simulator: nothing left the installation.
ALTER TABLE deliveries ADD COLUMN IF NOT EXISTS simulated Bool AFTER via;

-- The devices to which a push service sent the push: those that a channel took over, and those for which a simulator
-- answered in Apple's place. Their receipts are in `push_outcomes`. What Apple itself was sent is not here.
CREATE TABLE IF NOT EXISTS push_channels (
  appkey LowCardinality(String),
  msgid UInt64,
  via LowCardinality(String),
  simulated Bool,
  partition UInt16,
  time SimpleAggregateFunction(max, DateTime64(3, 'UTC')),
  -- The number of outcomes in the set, as inserted, as in `push_outcomes`.
  rows SimpleAggregateFunction(sum, UInt64),
  devices AggregateFunction(groupBitmap, UInt32) CODEC(ZSTD)
) ENGINE = AggregatingMergeTree ORDER BY (appkey, msgid, via, simulated, partition)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS push_channels_of_deliveries TO push_channels AS
SELECT appkey, msgid, if(deliveries.via = '', 'apns', toString(deliveries.via)) AS via, simulated, partition,
  max(deliveries.time) AS time, count() AS rows, groupBitmapState(number) AS devices
FROM deliveries
WHERE (deliveries.kind = 'handed_over' AND deliveries.via != '') OR (deliveries.kind = 'sent' AND deliveries.simulated)
GROUP BY appkey, msgid, via, simulated, partition;

-- The stored counts of the same broadcast by channel, columns of equal length: empty for a push that no push service
-- was handed. Of each: 1 if a simulator answered, and the devices sent, received, shown and clicked.
ALTER TABLE broadcast_counts ADD COLUMN IF NOT EXISTS channels Array(String) AFTER counts;
ALTER TABLE broadcast_counts ADD COLUMN IF NOT EXISTS channel_counts Array(Array(UInt64)) AFTER channels;
